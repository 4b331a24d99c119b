"""The look of every picture: colours, markers, fonts and files.

A series has the same colour in every picture of a report. Each colour has a contrast of at least
2.9 with its background, and any two are distinguishable under simulated protanopia,
deuteranopia and tritanopia (Machado et al., 2009). Markers differ as well.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.report.chart import Panel
from vit_jax.report.labels import FAMILIES, JOIN, known_family, natural_key, title_of

# (on white, on the dark background of the HTML page)
COLOURS = (
    ("#3355d8", "#5b8dff"),
    ("#ab5200", "#fa8521"),
    ("#039681", "#7aefde"),
    ("#7d1fa3", "#b876ad"),
    ("#a39611", "#f4d51f"),
    ("#02a0dc", "#18bdec"),
    ("#8b1c51", "#f0445c"),
)
INK, MUTED, GRID, SURFACE = "#23272f", "#5d6673", "#e3e6eb", "#fefefe"
MARKERS = "osD^vPX<>*"
MODEL_COLUMNS = ("model", "model.name", "family")
# The first colours and markers, which only ViTs, hybrids and ResNets have.
_RESERVED = 3
_FILLS = ("full", "top", "left", "bottom")
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
# Colours of matplotlib's pictures -> those on dark.
_ON_DARK = dict(COLOURS) | {MUTED: "#a3abb8", GRID: "#454c58"}
# Markers and dashes of matplotlib -> Plotly's.
_SYMBOLS = dict(zip(MARKERS, ("circle", "square", "diamond", "triangle-up", "triangle-down",
                              "cross", "x", "triangle-left", "triangle-right", "star"),
                    strict=True))  # fmt: skip
CHANCE: dict[str, Any] = {"color": MUTED, "linestyle": _DASHES[2], "linewidth": 1.1}
"""The line of the accuracy of guessing."""
_PLOTLY_DASHES = dict(zip(map(str, _DASHES), ("solid", "dash", "dot", "dashdot"), strict=True))
# CSS variable -> (on white, on dark).
_CSS_COLOURS = {
    "plot-ink": (INK, "#e8eaee"),
    "plot-muted": (MUTED, "#a3abb8"),
    "plot-grid": (GRID, "#30363f"),
    "plot-surface": (SURFACE, "#171a20"),
}
DPI = 160


class Drawing(NamedTuple):
    """A picture before it is written."""

    title: str
    figure: Any  # of matplotlib
    notes: list[str]  # sentences below it
    panels: list[Panel]  # the same figures for the interactive chart of the page


_SETTINGS: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"], "font.size": 9.5,
    "axes.titlesize": 10.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.labelsize": 9.5, "axes.linewidth": 0.8, "axes.axisbelow": True, "axes.grid": True,
    "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": MUTED, "axes.labelcolor": INK, "axes.titlecolor": INK, "text.color": INK,
    "axes.facecolor": SURFACE, "figure.facecolor": SURFACE, "savefig.facecolor": SURFACE,
    "grid.color": GRID, "grid.linewidth": 0.8,
    "xtick.color": MUTED, "xtick.labelcolor": INK, "xtick.major.size": 3, "xtick.minor.size": 0,
    "ytick.color": MUTED, "ytick.labelcolor": INK, "ytick.major.size": 0, "ytick.minor.size": 0,
    "legend.frameon": False, "legend.fontsize": 9.5,
    "lines.linewidth": 1.8, "lines.markersize": 6, "lines.solid_capstyle": "round",
    "svg.fonttype": "none", "svg.hashsalt": "vit_jax", "figure.constrained_layout.use": True,
}  # fmt: skip


class Palette:
    """Assigns each value of a column a colour and marker, the same in all pictures of a report.

    A family of models has the same colour and marker in all reports; its models differ in dashes
    and in how markers are filled. Other series never have the colour or marker of a ViT, a hybrid
    or a ResNet. In columns joined by "+", the first one chooses the colour, and the others choose
    dashes and, except for models, markers. `families` names the family of series whose name does
    not say it.
    """

    def __init__(self, families: Mapping[str, str] | None = None) -> None:
        self._families = families or {}
        self._members: dict[str, list[str]] = {}

    def add(self, column: str, members: Iterable[str]) -> None:
        """Adds values of a column; those added before keep their colour."""
        names = column.split("+")
        parts = [member.split(JOIN, len(names) - 1) for member in members]
        for i, name in enumerate(names):
            known = self._members.setdefault(name, [])
            known += sorted({p[i] for p in parts if len(p) > i} - {*known}, key=natural_key)

    def style(self, column: str, member: str) -> dict[str, Any]:
        """Returns matplotlib's keywords for a line; colours that are used again are dashed."""
        self.add(column, [member])
        names = column.split("+")
        parts = member.split(JOIN, len(names) - 1)
        _, *others = [
            self._members[name].index(part) for name, part in zip(names, parts, strict=False)
        ]
        kinds = {m: self._family(names[0], m) for m in self._members[names[0]]}
        kind = kinds[parts[0]]
        first = [m for m in kinds if kinds[m] == kind].index(parts[0])
        if kind is None:
            taken = {FAMILIES.index(family) for family in kinds.values() if family}
            free = [i for i in range(_RESERVED, len(COLOURS)) if i not in taken]
            turn, place = divmod(first, len(free))
            i, own = free[place], MARKERS[_RESERVED:]
            marker = own[(others[0] if others else i - _RESERVED + turn * len(free)) % len(own)]
            dashes = turn + (others[0] if others else 0)
        else:
            i = FAMILIES.index(kind)
            marker = MARKERS[i]
            turn, dashes = (first, others[0]) if others else divmod(first, len(_DASHES))
        return {
            "color": COLOURS[i][0],
            "marker": marker,
            "linestyle": _DASHES[dashes % len(_DASHES)],
            "fillstyle": _FILLS[(turn + dashes) % len(_FILLS)],
            "markeredgecolor": COLOURS[i][0],
            "markerfacecoloralt": SURFACE,
            "label": member,
        }

    def _family(self, column: str, member: str) -> str | None:
        named = known_family(member) if column in MODEL_COLUMNS else None
        return self._families.get(member, named)


@contextmanager
def plot_style() -> Iterator[None]:
    """Sets colours, fonts and lines for the figures that are drawn inside."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        yield


def new_figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, Any]:
    """Returns a figure and its axes [rows, columns]; the size of a panel is in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows + 0.45))
    return figure, figure.subplots(rows, columns, squeeze=False)


def add_legend(
    figure: Any, handles: Mapping[str, Any], column: str = "", side: str = "left"
) -> None:
    """Puts a legend above all panels, on a `side`, and makes room; a single entry needs no legend.

    If the names are values of a `column`, they are sorted, and it becomes the title unless they are
    models.
    """
    if len(handles) < 2:
        return
    names = sorted(handles, key=natural_key) if column else [*handles]
    is_model = column.partition("+")[0] in MODEL_COLUMNS
    title = "" if is_model else title_of(column)
    longest = max(map(len, handles))
    most = max(1, min(len(handles), int(figure.get_figwidth() * 10.5 / (longest + 8))))
    rows = math.ceil(len(handles) / most)
    # Every figure has room for two lines.
    figure.set_figheight(figure.get_figheight() + 0.2 * max(0, rows + bool(title) - 2))
    figure.legend(
        [handles[name] for name in names],
        names,
        loc=f"outside upper {side}",
        ncols=math.ceil(len(handles) / rows),
        title=title or None,
        alignment="left",
        handlelength=3.5,  # Shorter ones do not show the dashes.
        columnspacing=1.4,
        borderaxespad=0.2,
    )


def start_at_zero(panel: Any) -> None:
    """Lets the y-axis begin at zero and end a little above the largest finite value."""
    heights = [y for line in panel.lines for y in line.get_ydata() if math.isfinite(y)]
    if heights and max(heights) > 0:
        panel.set_ylim(0, 1.06 * max(heights))


def save(figure: Any, path: Path) -> None:
    """Writes PATH.png and PATH.svg."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with plot_style():
        figure.savefig(path.with_name(f"{path.name}.png"), dpi=DPI)
        figure.set_layout_engine("none")  # Keep the layout of the PNG.
        figure.savefig(path.with_name(f"{path.name}.svg"), metadata={"Date": None})


def page_look(style: Mapping[str, Any]) -> dict[str, Any]:
    """Returns colours, symbol and dash on the page for matplotlib's keywords of a line."""
    symbol = _SYMBOLS[style.get("marker", MARKERS[0])]
    return {
        "colour": [style["color"], _ON_DARK[style["color"]]],
        "symbol": symbol if style.get("fillstyle", "full") == "full" else f"{symbol}-open",
        "dash": _PLOTLY_DASHES[str(style.get("linestyle", "-"))],
    }


def css_variables(*, dark: bool) -> str:
    """Returns the colours of the pictures as CSS variables."""
    return ";".join(f"--{name}:{colours[dark]}" for name, colours in _CSS_COLOURS.items())
