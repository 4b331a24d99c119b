"""What a picture of a report shows, as data.

`drawing` makes a PNG and an SVG of it with matplotlib, `page.js` an interactive chart with Plotly.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.report.style import DOTTED, page_look

# Points of a line; of longer ones, this many are kept at equal distances.
MAX_POINTS = 200


@dataclasses.dataclass(frozen=True)
class Trace:
    """One series in a panel. `x`, `y`, `low` and `high` are sequences or arrays [n].

    `kind` is "means", "runs" (faint points behind means), "curve", "chance" (the accuracy of
    guessing) or "end" (the end of a run without a result).
    """

    series: str  # name in the legend
    style: Mapping[str, Any]  # matplotlib's keywords, see `Palette.style`
    kind: str
    x: Any
    y: Any
    low: Any = ()  # lower ends of intervals
    high: Any = ()
    n: Sequence[int] = ()  # runs in each mean
    runs: Sequence[Any] = ()  # the `Run` that each point belongs to; None where it is a mean
    at: Any = ()  # where points are drawn, if beside their x

    def to_json(self, index: Mapping[Any, int]) -> dict[str, Any]:
        """Returns its columns without empty ones; runs become their number on the page."""
        made: dict[str, Any] = {"series": self.series, "kind": self.kind}
        made |= page_look(self.style)
        for name in ("x", "y", "low", "high", "at"):
            if len(values := getattr(self, name)):
                made[name] = [short(value) for value in values]
        made |= {"n": [*self.n]} if len(self.n) else {}
        runs = [None if run is None else index.get(run) for run in self.runs]
        return made | ({"runs": runs} if any(run is not None for run in runs) else {})


def dotted(trace: Trace) -> Trace:
    """Returns a trace with a dotted line."""
    return dataclasses.replace(trace, style={**trace.style, "linestyle": DOTTED})


@dataclasses.dataclass(frozen=True)
class Panel:
    """A panel of a chart."""

    title: str
    x: str  # title of the axis
    y: str  # title of the axis
    traces: list[Trace]
    log_x: bool = False
    log_y: bool = False
    from_zero: bool = False  # the y-axis begins at zero
    rows: list[str] = dataclasses.field(default_factory=list)  # if the y-axis has no numbers

    def to_json(self, index: Mapping[Any, int]) -> dict[str, Any]:
        """Returns the panel as JSON, without traces that have no point."""
        made = {
            "title": self.title,
            "x": self.x,
            "y": self.y,
            "log_x": self.log_x,
            "log_y": self.log_y,
            "from_zero": self.from_zero,
        }
        traces = [one.to_json(index) for one in self.traces if len(one.x)]
        return {**made, "rows": self.rows, "traces": traces}


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A picture before it is drawn."""

    title: str
    notes: list[str]  # sentences below it
    panels: list[Panel]
    columns: int  # panels in a row, at most
    panel_size: tuple[float, float]  # width and height of a panel in inches
    legend: str | None = ""  # column whose values the series are; None: no legend


def short(value: Any) -> Any:
    """Returns a number with six digits, None if it is not finite; other values as they are."""
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def thin(count: int, most: int = MAX_POINTS) -> Any:
    """Returns the places of at most `most` of `count` points, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
