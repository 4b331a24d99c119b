"""Puts a report together: makes its tables and pictures, and renders it as Markdown."""

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from vit_jax.errors import ConfigError, first_few
from vit_jax.report import overview, suggest
from vit_jax.report.curves import draw_learning_curves
from vit_jax.report.frame import run_frame
from vit_jax.report.plots import draw_plot
from vit_jax.report.requests import ReportRequest, read_report
from vit_jax.report.runs import STATES, Runs
from vit_jax.report.style import Drawing, Palette, save
from vit_jax.report.tables import Table, score_table

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture, written as PNG and SVG.

    Attributes:
        title: heading.
        file: name without a suffix.
        svg: its text.
        notes: sentences below the picture.
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
        question: the question that the runs answer; "" if not given.
        states: number of runs in each state.
        scores: tables of mean scores.
        plots: plots of mean scores.
        curves: learning curves.
        selections: how the settings of final runs were selected; None: no run was selected.
        missing: runs without a result; None: there are none.
        all_runs: one row per run.
        hardware: devices, and the hours that runs took on each; None: no run has started.
        csv: one row per run with all columns, for runs.csv.
    """

    title: str
    question: str
    states: dict[str, int]
    scores: list[Table]
    plots: list[Picture]
    curves: list[Picture]
    selections: Table | None
    missing: Table | None
    all_runs: Table | None
    hardware: Table | None
    csv: pd.DataFrame

    @property
    def summary(self) -> str:
        """How many runs there are in which state, as a sentence."""
        total, parts = sum(self.states.values()), [f"{n} {s}" for s, n in self.states.items()]
        return f"{total} run{'' if total == 1 else 's'}: {', '.join(parts)}."

    def markdown(self, folder: Path) -> str:
        """Returns the report as Markdown without its title; pictures are in `folder`."""
        parts = [self.summary]
        for table in self.scores:
            parts += [f"## {table.title}", table.markdown(), " ".join(table.notes)]
        for heading, pictures in (("", self.plots), ("Learning curves: ", self.curves)):
            for p in pictures:
                image = f"![{p.title}]({(folder / p.file).as_posix()}.svg)"
                parts += [f"## {heading}{p.title}", image, " ".join(p.notes)]
        for table in (self.selections, self.missing, self.hardware):
            if table is not None:
                parts += [f"## {table.title}", table.markdown()]
        return "\n\n".join(part for part in parts if part) + "\n"


def make_report(found: Runs, request: ReportRequest, folder: Path) -> Content:
    """Makes the tables and pictures of a report.

    Args:
        found: the runs.
        request: what to show. Fields that are None come from the sweep files, or else are chosen to
            fit the runs.
        folder: where pictures are written.

    Raises:
        ConfigError: no run has a requested column or metric.
    """
    asked = _with_sweeps(found, request)
    frame, missing, palette = run_frame(found.runs), overview.missing_table(found), Palette()
    reported = suggest.exclude_candidates(frame)

    def make_all(kind: str, suggested: Callable[..., Any], make: Callable[[Any], Any]) -> list[Any]:
        """Returns everything that `make` returns for the requests of a kind."""
        requests, made = getattr(asked, kind), []
        for one in suggested(frame) if requests is None else requests:
            try:
                made += make(one)
            except ConfigError as error:
                # A sweep file may ask for metrics that its first jobs do not have.
                if missing is None or getattr(request, kind) is not None:
                    raise
                log.warning("left out while runs are missing: %s", error.got)
        return made

    # Everything is made before anything is written, so a wrong name leaves no files behind.
    scores = make_all("tables", suggest.suggest_tables, lambda r: [score_table(r, reported)])
    plots = make_all("plots", suggest.suggest_plots, lambda r: draw_plot(r, reported, palette))
    curves = make_all(
        "curves", suggest.suggest_curves, lambda r: draw_learning_curves(r, frame, palette)
    )
    csv = overview.runs_csv(found, frame)
    states = Counter(row[1].text for row in missing.rows) if missing is not None else Counter()
    states["finished"] = sum(run.finished for run in found.runs)
    folder.mkdir(parents=True, exist_ok=True)
    return Content(
        title=asked.title or first_few([f.name for f in found.sweeps or found.roots], 3),
        question=asked.question or "",
        states={state: states[state] for state in STATES if states[state]},
        scores=scores,
        plots=_save_all(plots, folder, "plot"),
        curves=_save_all(curves, folder, "curves"),
        selections=overview.selections_table(found.runs, scores),
        missing=missing,
        all_runs=overview.all_runs_table(found.runs, csv, scores),
        hardware=overview.hardware_table(found.runs),
        csv=csv,
    )


def _save_all(drawings: Iterable[Drawing], folder: Path, name: str) -> list[Picture]:
    pictures = []
    for i, (title, figure, notes) in enumerate(drawings, 1):
        file = f"{name}-{i}"
        pictures.append(Picture(title, file, save(figure, folder / file), notes))
    return pictures


def _with_sweeps(found: Runs, request: ReportRequest) -> ReportRequest:
    """Returns the request, its missing fields filled from the first sweep file that has them."""
    for folder, sweep in found.sweeps.items():
        if sweep.get("report"):
            given = read_report(sweep["report"], f"report of {folder / 'sweep.json'}")
            missing = [
                name for name in type(request).model_fields if getattr(request, name) is None
            ]
            request = request.replace(**{name: getattr(given, name) for name in missing})
    return request
