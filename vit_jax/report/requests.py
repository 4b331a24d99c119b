"""What a report shows: tables, plots and learning curves, from the command line or a sweep file."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax.errors import ConfigError, nearest
from vit_jax.report.labels import lower_first, title_of

Where = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class TableRequest:
    """A table of means and standard deviations over seeds.

    Attributes:
        metric: name of a metric; {word} in it matches any part and becomes a column of the data.
        rows: label, setting or metric, or several joined by "+".
        columns: likewise.
        where: (column, the value it must have).
        title: heading; by default made from the metric.
    """

    metric: str
    rows: str = "model"
    columns: str = "dataset"
    where: Where = ()
    title: str | None = None


@dataclasses.dataclass(frozen=True)
class PlotRequest:
    """A plot of means with standard deviations over seeds.

    Attributes:
        x: column for the horizontal axis; if its values are text, each gets a row.
        y: name of a metric; {word} in it matches any part and becomes a column of the data.
        series: column, or several joined by "+"; one colour each.
        panel: column; one panel each. None: a single panel.
        through: member of `series` whose points are part of every line, such as a baseline.
        log_x: whether the horizontal axis is logarithmic.
        where: (column, the value it must have).
        title: heading; by default made from y and x.
    """

    x: str
    y: str
    series: str = "model"
    panel: str | None = None
    through: str | None = None
    log_x: bool = False
    where: Where = ()
    title: str | None = None

    @property
    def heading(self) -> str:
        """The title, or one made from the axes."""
        x = lower_first(title_of(self.x).partition(",")[0])
        return self.title or f"{title_of(self.y)}, against {x}"


@dataclasses.dataclass(frozen=True)
class CurvesRequest:
    """Learning curves: one line a run, training loss beside the main score.

    Attributes:
        series: column, or several joined by "+"; one colour each.
        panel: likewise; a row of two panels each.
        where: (column, the value it must have).
        title: heading.
    """

    series: str = "model"
    panel: str = "dataset"
    where: Where = ()
    title: str | None = None


@dataclasses.dataclass(frozen=True)
class ReportRequest:
    """A whole report; what is None is taken from the sweep file or suggested by the runs.

    Attributes:
        title: of the page.
        question: that the runs are meant to answer.
        tables: of scores.
        plots: of scores.
        curves: learning curves.
    """

    title: str | None = None
    question: str | None = None
    tables: tuple[TableRequest, ...] | None = None
    plots: tuple[PlotRequest, ...] | None = None
    curves: tuple[CurvesRequest, ...] | None = None


_KINDS = {"tables": TableRequest, "plots": PlotRequest, "curves": CurvesRequest}


def parse_request(text: str, kind: type, option: str) -> Any:
    """Reads "x=COLUMN,y=METRIC,log_x,where.stage=final" from the command line.

    Args:
        text: comma-separated KEY=VALUE; a KEY alone is true.
        kind: TableRequest, PlotRequest or CurvesRequest.
        option: its name, for error messages.

    Raises:
        ConfigError: a key is unknown or missing.
    """
    pairs = (item.partition("=") for item in text.split(","))
    given = {key.strip(): value.strip() if equals else True for key, equals, value in pairs}
    return read_request(given, kind, option)


def read_request(given: Any, kind: type, source: str) -> Any:
    """Makes a request from a dict.

    Args:
        given: the attributes of `kind`; `where` is a dict, or keys that begin with "where.".
        kind: TableRequest, PlotRequest or CurvesRequest.
        source: where it was written, for error messages.

    Raises:
        ConfigError: a key is unknown or missing, or a value has a wrong type.
    """
    _check_mapping(given, source, "write e.g. {'metric': ...}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    where = given.get("where") or {}
    _check_mapping(where, f"{source}: where", "write where.COLUMN=...")
    where = dict(where) | {
        key.removeprefix("where."): given[key] for key in given if key.startswith("where.")
    }
    values: dict[str, Any] = {"where": tuple((name, str(value)) for name, value in where.items())}
    for key, value in given.items():
        if key == "where" or key.startswith("where."):
            continue
        _check_known(key, fields, source, ", where.COLUMN")
        if key == "log_x":
            value = value in (True, "true", "True", "1", 1)
        elif not (isinstance(value, str) or (value is None and fields[key].default is None)):
            raise ConfigError(f"{source}: {key!r} is {value!r}", "a name", f"write {key}=NAME")
        values[key] = value
    required = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
    missing = [name for name in required if not values.get(name)]
    if missing:
        raise ConfigError(
            f"{source}: no {' and no '.join(map(repr, missing))}",
            ", ".join(f"{name}=..." for name in required), f"add {missing[0]}=NAME",
        )  # fmt: skip
    return kind(**values)


def read_report(given: Any, source: str) -> ReportRequest:
    """Makes a request from the REPORT of a sweep file.

    Raises:
        ConfigError: a key is unknown, or a value has a wrong type.
    """
    _check_mapping(given, source, "see `report --help`")
    known = [field.name for field in dataclasses.fields(ReportRequest)]
    values: dict[str, Any] = dict(given)
    for key, items in given.items():
        _check_known(key, known, source)
        if key in _KINDS and items is not None:
            if not isinstance(items, list | tuple):
                raise ConfigError(f"{source}: {key!r} is {items!r}", "a list", "put it into [...]")
            values[key] = tuple(
                read_request(item, _KINDS[key], f"{source}, {key}[{i}]")
                for i, item in enumerate(items)
            )
    return ReportRequest(**values)


def _check_mapping(given: Any, source: str, fix: str) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{source} is {given!r}", "keys and values", fix)


def _check_known(key: str, known: Iterable[str], source: str, more: str = "") -> None:
    if key not in known:
        raise ConfigError(
            f"{source}: unknown key {key!r}", f"one of {', '.join(known)}{more}",
            f"did you mean {nearest(key, known)!r}?",
        )  # fmt: skip
