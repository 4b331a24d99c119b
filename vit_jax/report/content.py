"""Gathers what a report shows: tables, pictures, choices, what is missing, hardware."""

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from vit_jax.errors import ConfigError, first_few
from vit_jax.report.curves import curve_rows, curve_sheets
from vit_jax.report.defaults import reported, suggested_curves, suggested_plots, suggested_tables
from vit_jax.report.facts import Choice, Hardware, Missing, choices, hardware, missing
from vit_jax.report.fields import Fields
from vit_jax.report.lineage import efforts
from vit_jax.report.plots import draw, plot_data
from vit_jax.report.requests import ReportRequest, read_report
from vit_jax.report.runs import STATES, Found
from vit_jax.report.style import Palette, save
from vit_jax.report.tables import ReportTable, build_table

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture that was written as PNG and SVG.

    Attributes:
        title: heading.
        file: name without its ending.
        svg: its text.
        notes: sentences on what is shown.
    """

    title: str
    file: str
    svg: str
    notes: list[str]


@dataclasses.dataclass(frozen=True)
class Content:
    """A whole report.

    Attributes:
        title: heading.
        question: what the runs are to answer; "": not said.
        summary: how many runs there are and how far they are, in a sentence.
        fields: looks up fields of the runs.
        tables: of scores.
        plots: of scores.
        curves: of learning.
        choices: what chose the settings of final runs.
        missing: runs without a result.
        hardware: machines.
    """

    title: str
    question: str
    summary: str
    fields: Fields
    tables: list[ReportTable]
    plots: list[Picture]
    curves: list[Picture]
    choices: list[Choice]
    missing: list[Missing]
    hardware: list[Hardware]


def gather(found: Found, request: ReportRequest, folder: Path) -> Content:
    """Makes tables and pictures.

    Args:
        found: the runs.
        request: what is asked for; what it leaves open is taken from the sweeps, or suggested.
        folder: gets the pictures.

    Raises:
        ConfigError: a field or metric that no run has.
    """
    given, request = request, _with_sweeps(found, request)
    runs, gone = found.runs, missing(found)
    fields, palette = Fields(runs, efforts(runs)), Palette()
    kept = reported(runs)
    tables, plots, asked = request.tables, request.plots, request.curves
    if tables is None:
        tables = suggested_tables(runs, fields)
    if plots is None:
        plots = suggested_plots(runs, fields)
    if asked is None:
        asked = suggested_curves(runs, fields)
    # All at once, so that a wrong name costs nothing. What a sweep file asks for may not be there
    # before all jobs are finished.
    built = _possible(
        lambda t: build_table(t, kept, fields), tables, early=bool(gone) and given.tables is None
    )
    data = _possible(
        lambda p: plot_data(p, kept, fields), plots, early=bool(gone) and given.plots is None
    )
    rows = _possible(
        lambda c: (c, curve_rows(c, runs, fields)), asked,
        early=bool(gone) and given.curves is None,
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    pictures = []
    for i, d in enumerate(data):
        if d.points():
            name = f"plot-{i + 1}"
            pictures.append(Picture(d.title, name, save(draw(d, palette), folder / name), d.notes))
    sheets = [s for c, shown in rows for s in curve_sheets(c, shown, fields, palette)]
    curves = [
        Picture(s.title, f"curves-{i + 1}", save(s.figure, folder / f"curves-{i + 1}"), [s.note])
        for i, s in enumerate(sheets)
    ]
    return Content(
        title=request.title or _title(found),
        question=request.question or "",
        summary=_summary(found, gone),
        fields=fields,
        tables=built,
        plots=pictures,
        curves=curves,
        choices=choices(runs, [t.metric for t in built]),
        missing=gone,
        hardware=hardware(runs),
    )


def _possible(make: Callable[[Any], Any], requests: Iterable[Any], *, early: bool) -> list[Any]:
    """Returns what is made of requests; what cannot be is an error, or told while it is early."""
    made = []
    for request in requests:
        try:
            made.append(make(request))
        except ConfigError as error:
            if not early:
                raise
            log.warning("left out while runs are missing: %s", error.got)
    return made


def _with_sweeps(found: Found, request: ReportRequest) -> ReportRequest:
    """Returns the request; what it leaves open is as the first sweep that says it has it."""
    for folder, sweep in found.sweeps.items():
        if sweep.get("report"):
            said = read_report(sweep["report"], f"report of {folder / 'sweep.json'}")
            left = {
                field.name: getattr(said, field.name)
                for field in dataclasses.fields(request)
                if getattr(request, field.name) is None
            }
            request = dataclasses.replace(request, **left)
    return request


def _title(found: Found) -> str:
    names = [folder.name for folder in found.sweeps or found.roots]
    return first_few(names, 3)


def _summary(found: Found, gone: Sequence[Missing]) -> str:
    finished = sum(run.finished for run in found.runs)
    counts = Counter({"finished": finished}) + Counter(m.state for m in gone)
    parts = [f"{counts[state]} {state}" for state in STATES if counts[state]]
    total = finished + len(gone)
    return f"{total} run{'' if total == 1 else 's'}: {', '.join(parts)}."
