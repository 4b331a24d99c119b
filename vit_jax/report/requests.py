"""Requests for tables, plots and learning curves, from the command line or a sweep file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from vit_jax.errors import ConfigError
from vit_jax.evaluation.metric_kinds import kind_of
from vit_jax.report.labels import lower_first, title_of
from vit_jax.schema import Section, option

R = TypeVar("R", bound=Section)
# A margin above this was meant in percentage points.
_LARGEST_MARGIN = 0.1


class _Request(Section):
    """Columns are labels, settings or metrics; "a+b" joins two of them."""

    where: dict[str, str] = option({})
    """Column -> the value it must have."""
    title: str | None = option(None)
    """Heading. None: made from the metric or the columns."""


class TableRequest(_Request):
    """A table of means with 95 % intervals over test images and seeds."""

    metric: str
    """Name of a metric; {word} matches any part of a name and becomes a column."""
    rows: str = option("model")
    """Column; each value gets a row."""
    columns: str = option("dataset")
    """Column; each value gets a column."""
    against: str | None = option(None)
    """Value of `rows`, such as a baseline. A second table has the differences from it."""
    lower: bool | None = option(None)
    """Whether smaller values of the metric are better. None: as the table of metrics says
    (`evaluation/metric_kinds.py`); of a metric of your own, larger values are."""
    margin: float | None = option(None, above=0)
    """Differences that do not matter, in the unit of the metric: the table of differences says
    which are shown to be smaller. Accuracies are fractions: 0.005 is half a percentage point, and
    more than 0.1 is refused."""
    pool: str = option("dataset")
    """Column; the deviation over seeds is pooled over all cells with the same value."""

    def check(self) -> None:
        margin = self.margin or 0
        if kind_of(self.metric).is_fraction and margin > _LARGEST_MARGIN:
            raise ConfigError(
                f"is {margin:g}, which is {100 * margin:g} percentage points",
                f"at most {_LARGEST_MARGIN}: {self.metric} is a fraction",
                f"for {margin:g} percentage points, give margin={margin / 100:g}",
                key="margin",
            )

    @property
    def heading(self) -> str:
        """The title, or one made from the metric."""
        return self.title or title_of(self.metric)

    @property
    def smallest_is_best(self) -> bool:
        return kind_of(self.metric).lower if self.lower is None else self.lower


class PlotRequest(_Request):
    """A plot of means with 95 % intervals over test images and seeds."""

    x: str
    """Column for the x-axis; if its values are text, each gets a row."""
    y: str
    """Name of a metric; {word} matches any part of a name and becomes a column."""
    series: str = option("model")
    """Column; each value gets one colour."""
    panel: str | None = option(None)
    """Column; each value gets one panel. None: a single panel."""
    through: str | None = option(None)
    """Value of `series`, such as a baseline, whose points are added to every line."""
    log_x: bool = option(False)
    """Whether the x-axis is logarithmic."""
    log_y: bool = option(False)
    """Whether the y-axis is logarithmic."""
    pool: str = option("dataset")
    """Column; the deviation over seeds is pooled over all points with the same value."""

    @property
    def heading(self) -> str:
        """The title, or one made from the axes."""
        x = lower_first(title_of(self.x).partition(",")[0])
        return self.title or f"{title_of(self.y)}, against {x}"


class CurvesRequest(_Request):
    """Learning curves with one line per run: training loss, and the main score beside it."""

    series: str = option("model")
    """Column; each value gets one colour."""
    panel: str = option("dataset")
    """Column; each value gets a row of two panels."""


class ReportRequest(Section):
    """A whole report. None: as the sweep file says, or else chosen to fit the runs."""

    title: str | None = option(None)
    """Title of the page."""
    question: str | None = option(None)
    """The question that the runs answer."""
    tables: tuple[TableRequest, ...] | None = option(None)
    """Tables of scores."""
    plots: tuple[PlotRequest, ...] | None = option(None)
    """Plots of scores."""
    curves: tuple[CurvesRequest, ...] | None = option(None)
    """Learning curves."""
    families: dict[str, str] | None = option(None)
    """Series -> family whose colour and marker it has, for series whose name does not say so."""


_SWITCHES = {"log_x", "log_y", "lower"}
# Field of a report -> what its items are.
_KINDS: dict[str, type[_Request]] = {
    "tables": TableRequest,
    "plots": PlotRequest,
    "curves": CurvesRequest,
}


def parse_requests(texts: Sequence[str] | None, kind: type[R], option: str) -> tuple[R, ...] | None:
    """Reads requests such as "x=COLUMN,y=METRIC,log_x,where.stage=final" from the command line.

    A KEY without a value is true. The texts are None if the option is not given. Errors name
    `option`.
    """
    requests = []
    for text in texts or ():
        items: list[str] = []
        for item in text.split(","):
            if items and "=" not in item and item.strip() not in _SWITCHES:
                items[-1] += f",{item}"  # A value with a comma, such as the name of a class.
            else:
                items.append(item)
        pairs = [item.partition("=") for item in items]
        counts = Counter(key.strip() for key, _, _ in pairs)
        if twice := [key for key, count in counts.items() if count > 1]:
            raise ConfigError(
                f"{option}={text} has {twice[0]} more than once",
                "each key once",
                f"give one {option} for each value",
            )
        given: dict[str, Any] = {
            key.strip(): value.strip() if equals else True for key, equals, value in pairs
        }
        for key in given.keys() & _SWITCHES:
            given[key] = _bool(given[key], f"{option}: {key}")
        if "margin" in given:
            given["margin"] = _number(given["margin"], f"{option}: margin")
        requests.append(_read(given, kind, option))
    return tuple(requests) or None


def _bool(value: Any, source: str) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    if str(value).lower() not in words:
        raise ConfigError(f"{source}={value}", "true or false", "correct it, or leave =... out")
    return words[str(value).lower()]


def _number(text: Any, source: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{source}={text}", "a number", "give e.g. margin=0.005") from None


def read_report(given: Any, source: str) -> ReportRequest:
    """Makes a request from the REPORT of a sweep file."""
    values = dict(given) if isinstance(given, Mapping) else given
    for key, kind in _KINDS.items():
        if isinstance(values, dict) and isinstance(values.get(key), list | tuple):
            items = enumerate(values[key])
            values[key] = [_read(item, kind, f"{source}, {key}[{i}]") for i, item in items]
    return _read(values, ReportRequest, source)


def _read(given: Any, kind: type[R], source: str) -> R:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{source} is {given!r}", "keys and values", "see `report --help`")
    values = {key: value for key, value in given.items() if not key.startswith("where.")}
    dotted = {key.removeprefix("where."): given[key] for key in given if key not in values}
    if isinstance(values.get("where", dotted or None), Mapping):
        where = {**values.get("where", {}), **dotted}
        values["where"] = {name: str(value) for name, value in where.items()}
    required = [name for name, field in kind.model_fields.items() if field.is_required()]
    missing = [name for name in required if not values.get(name)]
    try:
        if values.keys() <= kind.model_fields.keys() and missing:
            names = ", ".join(f"{name}=..." for name in required)
            raise ConfigError(f"no {missing[0]!r}", names, f"add {missing[0]}=NAME")
        return kind.from_mapping(values)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error.got}", error.expected, error.fix) from None
