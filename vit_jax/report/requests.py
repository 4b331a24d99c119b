"""What is asked for, tables, plots, curves: on the command line, in a sweep file, or by nobody."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.errors import ConfigError, nearest
from vit_jax.report.words import lower_first, title_of


@dataclasses.dataclass(frozen=True)
class TableRequest:
    """A table of means and standard deviations over seeds.

    Attributes:
        metric: name of a figure; {word} in it stands for any part and becomes a field.
        rows: field, or several joined by "+".
        columns: the same.
        where: field -> the value it must have.
        title: heading; None: from the metric.
    """

    metric: str
    rows: str = "model"
    columns: str = "dataset"
    where: tuple[tuple[str, str], ...] = ()
    title: str | None = None


@dataclasses.dataclass(frozen=True)
class PlotRequest:
    """A plot of means with standard deviations over seeds.

    Attributes:
        x: field of the horizontal axis; words instead of numbers give a row for each.
        y: name of a figure; {word} in it stands for any part and becomes a field.
        series: field, or several joined by "+"; a colour each.
        panel: field; a panel each. None: one panel.
        through: a member of `series` whose points lie on the lines of all others as well, as the
            base of a study does. None: none does.
        log_x: whether the horizontal axis is logarithmic.
        where: field -> the value it must have.
        title: heading; None: from y and x.
    """

    x: str
    y: str
    series: str = "model"
    panel: str | None = None
    through: str | None = None
    log_x: bool = False
    where: tuple[tuple[str, str], ...] = ()
    title: str | None = None


@dataclasses.dataclass(frozen=True)
class CurvesRequest:
    """Learning curves: a line a run, training loss beside the score that says most.

    Attributes:
        series: field, or several joined by "+"; a colour each.
        panel: the same; a row of two panels each.
        where: field -> the value it must have.
        title: heading; None: "Runs".
    """

    series: str = "model"
    panel: str = "dataset"
    where: tuple[tuple[str, str], ...] = ()
    title: str | None = None


def plot_title(request: PlotRequest) -> str:
    """Returns the heading of a plot that was given none."""
    x = lower_first(title_of(request.x).partition(",")[0])
    return f"{title_of(request.y)}, against {x}"


@dataclasses.dataclass(frozen=True)
class ReportRequest:
    """A whole report.

    Attributes:
        title: of the page; None: made from the folders.
        question: what the runs are to answer.
        tables: None: whatever the runs suggest.
        plots: None: whatever the runs suggest.
        curves: None: whatever the runs suggest.
    """

    title: str | None = None
    question: str | None = None
    tables: tuple[TableRequest, ...] | None = None
    plots: tuple[PlotRequest, ...] | None = None
    curves: tuple[CurvesRequest, ...] | None = None


def parse_request(text: str, kind: type, option: str) -> Any:
    """Reads "x=FIELD,y=METRIC,log_x,where.stage=final" from the command line.

    Args:
        text: comma-separated KEY=VALUE; a KEY alone is true.
        kind: TableRequest, PlotRequest or CurvesRequest.
        option: its name, for errors.

    Raises:
        ConfigError: an unknown or missing key.
    """
    given: dict[str, Any] = {}
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        given[key] = value if equals else True
    return read_request(given, kind, option)


def read_request(given: Any, kind: type, what: str) -> Any:
    """Reads a request from keys and values.

    Args:
        given: as in a sweep file's REPORT: the attributes of `kind`, `where` a dict.
        kind: TableRequest, PlotRequest or CurvesRequest.
        what: where it stands, for errors.

    Raises:
        ConfigError: an unknown or missing key.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"{what} is {given!r}", "keys and values", "write e.g. {'metric': ...}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    where = given.get("where") or {}
    if not isinstance(where, Mapping):
        raise ConfigError(
            f"{what}: where is {where!r}", "fields and values", "write where.FIELD=..."
        )
    where = dict(where)
    for key, value in given.items():
        if key.startswith("where."):
            where[key.removeprefix("where.")] = value
        elif key not in fields:
            raise ConfigError(
                f"{what}: unknown key {key!r}", f"one of {', '.join(fields)}, where.FIELD",
                f"did you mean {nearest(key, fields)!r}?",
            )  # fmt: skip
        elif key == "log_x":
            values[key] = value in (True, "true", "True", "1", 1)
        elif key != "where":
            if not isinstance(value, str) and (
                value is not None or fields[key].default is not None
            ):
                raise ConfigError(f"{what}: {key!r} is {value!r}", "a name", f"write {key}=NAME")
            values[key] = value
    values["where"] = tuple((k, str(v)) for k, v in where.items())
    needed = [n for n, f in fields.items() if f.default is dataclasses.MISSING]
    missing = [n for n in needed if not values.get(n)]
    if missing:
        raise ConfigError(
            f"{what}: no {' and no '.join(repr(n) for n in missing)}",
            f"{', '.join(f'{n}=...' for n in needed)}",
            f"add {missing[0]}=NAME",
        )
    return kind(**values)


def read_report(given: Any, what: str) -> ReportRequest:
    """Reads the "report" of a sweep.json.

    Raises:
        ConfigError: an unknown key, or one of a wrong kind.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"{what} is {given!r}", "keys and values", "see `report --help`")
    known = [field.name for field in dataclasses.fields(ReportRequest)]
    for key in given:
        if key not in known:
            raise ConfigError(
                f"{what}: unknown key {key!r}", f"one of {', '.join(known)}",
                f"did you mean {nearest(key, known)!r}?",
            )  # fmt: skip

    def requests(key: str, kind: type) -> tuple[Any, ...] | None:
        items: Sequence[Any] | None = given.get(key)
        if items is None:
            return None
        if not isinstance(items, list | tuple):
            raise ConfigError(f"{what}: {key!r} is {items!r}", "a list", "put it into [...]")
        return tuple(read_request(r, kind, f"{what}, {key}[{i}]") for i, r in enumerate(items))

    return ReportRequest(
        given.get("title"), given.get("question"), requests("tables", TableRequest),
        requests("plots", PlotRequest), requests("curves", CurvesRequest),
    )  # fmt: skip
