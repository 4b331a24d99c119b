"""One look for every picture: colours that colour-blind readers tell apart, markers, fonts, files.

The colours of a series are the same in every picture of a report. Each of a palette's colours has
a contrast of at least 2.9 with its background, and any two differ under simulated protanopia,
deuteranopia and tritanopia (Machado et al., 2009); markers differ as well.
"""

import html
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vit_jax.report.runs import natural
from vit_jax.report.words import JOIN

# (on white, on the page's dark background)
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
DARK_INK = {INK: "#e8eaee", MUTED: "#a3abb8", GRID: "#30363f", SURFACE: "#171a20"}
MARKERS = "osD^vPX"
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))

_SETTINGS: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.facecolor": SURFACE,
    "figure.facecolor": SURFACE,
    "savefig.facecolor": SURFACE,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "svg.hashsalt": "vit_jax",
    "figure.constrained_layout.use": True,
}
DPI = 160


class Palette:
    """Gives every member of a field its colour and marker, the same in all pictures.

    In a field joined by "+", members with the same first part have one colour, and the rest chooses
    marker and dashes.
    """

    def __init__(self) -> None:
        self._members: dict[str, list[str]] = {}

    def add(self, field: str, members: Iterable[str]) -> None:
        """Takes in members of a field; those known already keep their place."""
        first, plus, rest = field.partition("+")
        known = self._members.setdefault(first, [])
        parts = [m.partition(JOIN) if plus else (m, "", "") for m in members]
        known.extend(m for m in sorted({p[0] for p in parts}, key=natural) if m not in known)
        if plus:
            self.add(rest, [p[2] for p in parts])

    def style(self, field: str, member: str) -> dict[str, Any]:
        """Returns matplotlib's keywords for a line; from the eighth member on it is dashed."""
        self.add(field, [member])
        first, plus, rest = field.partition("+")
        head, _, tail = member.partition(JOIN) if plus else (member, "", "")
        turn, i = divmod(self._members[first].index(head), len(COLOURS))
        style = {"color": COLOURS[i][0], "marker": MARKERS[i], "linestyle": _DASHES[turn % 4]}
        if plus:
            j = self._members[rest.partition("+")[0]].index(tail.partition(JOIN)[0])
            style |= {"marker": MARKERS[j % len(MARKERS)], "linestyle": _DASHES[(turn + j) % 4]}
        return style


@contextmanager
def house_style() -> Iterator[None]:
    """Sets colours, fonts and lines for what is drawn inside."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        yield


def new_figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, Any]:
    """Returns a figure and its axes [rows, columns]; sizes of a panel in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows + 0.45))
    return figure, figure.subplots(rows, columns, squeeze=False)


def add_legend(
    figure: Any, handles: Sequence[Any], labels: Sequence[str], title: str = "", side: str = "left"
) -> None:
    """Puts a legend above all panels, where it covers nothing; the figure grows with it.

    Args:
        figure: of matplotlib.
        handles: lines.
        labels: their names; one alone needs no legend.
        title: what the names are; "": they speak for themselves.
        side: "left" or "right".
    """
    if len(labels) > 1:
        width = figure.get_figwidth()
        longest = max(map(len, labels))
        most = max(1, min(len(labels), int(width * 10.5 / (longest + 5))))
        rows = math.ceil(len(labels) / most)
        columns = math.ceil(len(labels) / rows)
        # Two lines have room in any figure.
        figure.set_figheight(figure.get_figheight() + 0.2 * max(0, rows + bool(title) - 2))
        figure.legend(
            handles, labels, loc=f"outside upper {side}", ncols=columns, title=title or None,
            alignment="left", handlelength=1.6, columnspacing=1.4, borderaxespad=0.2,
        )  # fmt: skip


def save(figure: Any, path: Path) -> str:
    """Writes PATH.png and PATH.svg and returns the SVG.

    Args:
        figure: of matplotlib.
        path: without its ending.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with house_style():
        figure.savefig(path.with_name(f"{path.name}.png"), dpi=DPI)
        figure.set_layout_engine("none")  # What was laid out stays so.
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    path.with_name(f"{path.name}.svg").write_text(text.getvalue())
    return text.getvalue()


def inline_svg(svg: str, prefix: str, label: str) -> str:
    """Returns an SVG for the middle of an HTML page, whose colours follow the page's.

    Args:
        svg: as matplotlib writes it.
        prefix: set before ids, so that two pictures of a page do not share any.
        label: what it shows, for readers who do not see it.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(r'(xlink:)?href="#', f'href="#{prefix}-', svg)
    for i, (light, _) in enumerate(COLOURS):
        svg = svg.replace(light, f"var(--series-{i + 1})")
    for name, colour in (("ink", INK), ("muted", MUTED), ("grid", GRID), ("surface", SURFACE)):
        svg = svg.replace(colour, f"var(--plot-{name})")
    size = re.search(r'<svg[^>]*? width="([\d.]+)pt"', svg)
    width = float(size[1]) * 4 / 3 if size else 600.0
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    text = html.escape(label)
    style = f"width:{width:.0f}px;min-width:{min(width, 760):.0f}px"
    return svg.replace("<svg", f'<svg role="img" aria-label="{text}" style="{style}"', 1)


def css_variables(dark: bool) -> str:
    """Returns the pictures' colours as CSS variables."""
    inks = {"ink": INK, "muted": MUTED, "grid": GRID, "surface": SURFACE}
    rows = [f"--series-{i + 1}:{pair[dark]}" for i, pair in enumerate(COLOURS)]
    rows += [f"--plot-{name}:{DARK_INK[c] if dark else c}" for name, c in inks.items()]
    return ";".join(rows)


def short_number(value: Any, _: Any = None) -> str:
    """Returns a number as it stands on an axis.

    >>> [short_number(x) for x in (0.012, 5, 999.9999, 1500, 1.3e6, 303e6, 2e9)]
    ['0.012', '5', '1k', '1.5k', '1.3M', '303M', '2B']
    """
    value = float(f"{value:.3g}")
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    if value and abs(value) < 1e-3:
        exponent = math.floor(math.log10(abs(value)))
        return f"{value / 10**exponent:.3g}e{exponent}"
    return f"{value:.3g}"
