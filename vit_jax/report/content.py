"""Puts a report together: makes its tables and pictures, and renders it as Markdown."""

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from vit_jax.errors import ConfigError, first_few
from vit_jax.report import defaults, overview
from vit_jax.report.chart import Drawing, Panel
from vit_jax.report.curves import draw_learning_curves
from vit_jax.report.differences import difference_table
from vit_jax.report.drawing import draw, save
from vit_jax.report.frame import run_frame
from vit_jax.report.plots import draw_plot
from vit_jax.report.requests import PlotRequest, ReportRequest, TableRequest, read_report
from vit_jax.report.run import STATES, Run
from vit_jax.report.runs import Runs
from vit_jax.report.scores import has_metric
from vit_jax.report.style import Palette
from vit_jax.report.tables import Table, score_table

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture, written as PNG and SVG, and its chart."""

    title: str
    notes: list[str]  # sentences below the picture
    file: str  # name without a suffix
    panels: list[Panel]  # the interactive chart of the page


@dataclasses.dataclass(frozen=True)
class Content:
    """A whole report."""

    title: str
    question: str
    states: dict[str, int]  # number of runs in each state
    sections: dict[str, list[Any]]  # heading -> tables or pictures
    csv: pd.DataFrame  # one row per run with all columns, for runs.csv
    left_out: int = 0  # number of runs with damaged files, which are in no table
    runs: list[Run] = dataclasses.field(default_factory=list)  # in the order of the rows of `csv`
    above: Path | None = None  # the folder whose path the report does not show

    @property
    def scores(self) -> list[Table]:
        """The tables of mean scores."""
        return self.sections.get("Scores", [])

    @property
    def pictures(self) -> list[Picture]:
        return [p for items in self.sections.values() for p in items if isinstance(p, Picture)]

    @property
    def summary(self) -> str:
        """How many runs there are in which state, as a sentence."""
        total, parts = sum(self.states.values()), [f"{n} {s}" for s, n in self.states.items()]
        parts += [f"{self.left_out} left out because of damaged files"] if self.left_out else []
        return f"{total} run{'' if total == 1 else 's'}: {', '.join(parts)}."

    def markdown(self, folder: Path, title: str | None = None) -> str:
        """Returns the report as Markdown without its title; pictures are in `folder`.

        With a title, only the first table or picture that has it, without a heading.
        """

        def lines(item: Any) -> list[str]:
            if isinstance(item, Picture):
                body = f"![{item.title}]({(folder / item.file).as_posix()}.svg)"
            else:
                body = item.markdown()
            return [body, " ".join(item.notes)]

        parts = [self.summary] if title is None else []
        for heading, items in self.sections.items():
            for item in items if heading != "All runs" else []:
                if title is None:
                    prefix = "Learning curves: " if heading == "Learning curves" else ""
                    parts += [f"## {prefix}{item.title}", *lines(item)]
                elif item.title == title and not parts:
                    parts = lines(item)
        if not parts:
            titles = [item.title for items in self.sections.values() for item in items]
            raise ConfigError(
                f"--into a page with <!-- report: {title} -->",
                f"one of {', '.join(titles)}",
                "correct the line",
            )
        return "\n\n".join(filter(None, parts)) + "\n"


def make_report(found: Runs, request: ReportRequest, folder: Path) -> Content:
    """Makes the tables and pictures of a report; pictures are written to `folder`.

    Fields of the request that are None come from the sweep files, or else are chosen to fit the
    runs.
    """
    asked, frame = _with_sweeps(found, request), run_frame(found.runs)
    palette = Palette(asked.families)
    reported, missing = defaults.exclude_candidates(frame), overview.missing_table(found, frame)

    def make_all(kind: str, default: Callable[..., Any], make: Callable[[Any], Any]) -> list[Any]:
        """Returns everything that `make` returns for the requests of a kind."""
        requests, made = getattr(asked, kind), []
        for one in default(frame) if requests is None else requests:
            try:
                made += make(one)
            except ConfigError as error:
                # A sweep file may ask for metrics that its first jobs do not have.
                if not missing.rows or getattr(request, kind) is not None:
                    raise
                log.warning("left out while runs are missing: %s", error.got)
        return made

    def of(request: TableRequest | PlotRequest, metric: str) -> pd.DataFrame:
        # Candidates are shown if a stage is asked for, or if only they have the metric.
        asks = "stage" in request.where
        return reported if has_metric(reported, metric) and not asks else frame

    def make_tables(one: TableRequest) -> list[Table]:
        scores = score_table(one, of(one, one.metric))
        if asked.tables is None:
            scores.notes.extend(defaults.other_stages(one, frame))
            scores.notes.extend(defaults.other_splits(one, frame))
        return [scores] if one.against is None else [scores, difference_table(one, scores)]

    # Everything is made before anything is written, so a wrong name leaves no files behind.
    scores = make_all("tables", defaults.default_tables, make_tables)
    plots = make_all("plots", defaults.default_plots, lambda r: draw_plot(r, of(r, r.y), palette))
    curves = make_all(
        "curves", defaults.default_curves, lambda r: draw_learning_curves(r, frame, palette)
    )
    csv = overview.runs_csv(found, frame)
    tables = (
        overview.models_table(frame),
        overview.selections_table(found, frame, scores),
        missing,
        overview.all_runs_table(frame, csv, scores),
        overview.hardware_table(frame),
    )
    folder.mkdir(parents=True, exist_ok=True)
    sections = {
        "Scores": scores,
        "Classes": overview.confusion_tables(found.runs),
        "Plots": _save_all(plots, folder, "plot"),
        "Learning curves": _save_all(curves, folder, "curves"),
        **{table.title: [table] for table in tables if table.rows},
    }
    states = Counter(row[1].text for row in missing.rows)
    states["finished"] = sum(frame["state"] == "finished")
    return Content(
        title=asked.title or first_few([f.name for f in found.sweeps or found.roots], 3),
        question=asked.question or "",
        states={state: states[state] for state in STATES if states[state]},
        sections={heading: items for heading, items in sections.items() if items},
        csv=csv,
        left_out=len(found.left_out),
        runs=found.runs,
        above=found.above,
    )


def _save_all(drawings: Iterable[Drawing], folder: Path, name: str) -> list[Picture]:
    pictures = []
    for i, drawing in enumerate(drawings, 1):
        file = f"{name}-{i}"
        save(draw(drawing), folder / file)
        pictures.append(Picture(drawing.title, drawing.notes, file, drawing.panels))
    return pictures


def _with_sweeps(found: Runs, request: ReportRequest) -> ReportRequest:
    """Returns the request, its missing fields filled from the first sweep file that has them."""
    for folder, sweep in found.sweeps.items():
        if sweep.get("report"):
            given = read_report(sweep["report"], f"report of {folder / 'sweep.json'}")
            asked = {name: value for name, value in request if value is not None}
            request = given.replace(**asked)
    return request
