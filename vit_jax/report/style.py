"""The look of every series: colours, markers and dashes, in pictures and on the page.

A series has the same colour in every picture of a report. Each colour has a contrast of at least
2.9 with its background, and any two are distinguishable under simulated protanopia,
deuteranopia and tritanopia (Machado et al., 2009). Markers differ as well.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax.report.labels import FAMILIES, JOIN, known_family, natural_key

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
DOTTED: Any = _DASHES[2]
CHANCE: dict[str, Any] = {"color": MUTED, "linestyle": DOTTED, "linewidth": 1.1}
"""The line of the accuracy of guessing."""
_PLOTLY_DASHES = dict(zip(map(str, _DASHES), ("solid", "dash", "dot", "dashdot"), strict=True))
# CSS variable -> (on white, on dark).
_CSS_COLOURS = {
    "plot-ink": (INK, "#e8eaee"),
    "plot-muted": (MUTED, "#a3abb8"),
    "plot-grid": (GRID, "#30363f"),
    "plot-surface": (SURFACE, "#171a20"),
}


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
