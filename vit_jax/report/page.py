"""The page: one HTML file that asks nothing of the network."""

import datetime
from collections.abc import Sequence
from importlib import resources
from typing import Any

from vit_jax.report.content import Content
from vit_jax.report.curves import main_score
from vit_jax.report.facts import short_revision, words_of
from vit_jax.report.fields import differing_settings
from vit_jax.report.runs import STATES, Run, shown_path
from vit_jax.report.style import css_variables, inline_svg
from vit_jax.report.tables import Cell, ReportTable
from vit_jax.report.words import number_text, show, title_of

# More columns of settings or scores than these are in runs.csv alone.
_MOST_SETTINGS = 8
_MOST_SCORES = 6


def html_page(content: Content) -> str:
    """Returns the page."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    folder = resources.files("vit_jax.report")
    columns, rows, left_out = _runs_table(content)
    pictures = [*content.plots, *content.curves]
    svgs = {
        p.file: inline_svg(p.svg, f"p{i}", f"{p.title}. {' '.join(p.notes)}")
        for i, p in enumerate(pictures)
    }
    return environment.from_string((folder / "page.html").read_text()).render(
        content=content,
        style=(folder / "page.css").read_text(),
        script=(folder / "page.js").read_text(),
        light=css_variables(dark=False),
        dark=css_variables(dark=True),
        svgs=svgs,
        columns=columns,
        rows=rows,
        left_out=left_out,
        counts=_counts(content),
        notes=_lineage_notes(content),
        each=_each,
        score=lambda value, metric: "" if value is None else number_text(value, metric),
        words_of=words_of,
        made=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
    )


def _each(cell: Cell, table: ReportTable) -> str:
    """Returns the figures behind a mean."""
    values = cell.summary.values if cell.summary else ()
    return ", ".join(number_text(value, table.metric) for value in values)


def _counts(content: Content) -> list[tuple[str, int]]:
    states = [m.state for m in content.missing]
    states += ["finished" for run in content.fields.runs if run.finished]
    return [(state, states.count(state)) for state in STATES if state in states]


def _runs_table(content: Content) -> tuple[list[str], list[list[dict[str, Any]]], str]:
    """Returns headings and cells of the table of all runs, and what it has no room for."""
    fields, runs = content.fields, content.fields.runs
    labels = sorted({name for run in runs for name in run.labels} - {"seed"})
    labels = labels or ["model", "dataset"]
    settings = _settings(content, labels)
    scores = _scores(content)
    stage = ["stage"] if any(run.stage for run in runs) else []
    shown, shown_scores = settings[:_MOST_SETTINGS], scores[:_MOST_SCORES]
    names = ["run", "state", *stage, *labels, "seed", *shown, *map(title_of, shown_scores),
             "steps", "minutes", "device", "git revision"]  # fmt: skip
    rows = []
    for run in runs:
        minutes = None if run.wall_time_s is None else run.wall_time_s / 60
        row = [_cell(run.name, title=shown_path(run.path, runs)), _cell(run.state, kind="state")]
        row += [_cell(run.stage) for _ in stage]
        row += [_cell(fields.of(run, name)) for name in labels]
        row += [_cell(run.seed)]
        row += [_cell(run.config.get(key)) for key in shown]
        row += [_score_cell(run, name) for name in shown_scores]
        row += [_cell(run.step), _cell(minutes, f"{minutes:.1f}" if minutes is not None else "")]
        row += [_cell(run.device), _cell(short_revision(run))]
        rows.append(row)
    more = [f"{len(all_) - len(some)} more {what}" for all_, some, what in
            ((settings, shown, "settings"), (scores, shown_scores, "figures"))
            if len(all_) > len(some)]  # fmt: skip
    return names, rows, " and ".join(more)


def _settings(content: Content, labels: Sequence[str]) -> list[str]:
    """Returns the settings that differ and are no labels; where sweeps set some, only these."""
    fields, runs = content.fields, content.fields.runs
    asked = {key for run in runs for key in run.job.get("overrides") or {}}
    told = [[show(fields.of(run, label)) for run in runs if run.config] for label in labels]
    return [
        key for key in differing_settings(runs)
        if (not asked or key in asked)
        and [show(run.config.get(key)) for run in runs if run.config] not in told
    ]  # fmt: skip


def _scores(content: Content) -> list[str]:
    """Returns the figures of the tables first, then the others that runs were scored by."""
    runs = content.fields.runs
    names = {name for run in runs for name in run.figures}
    first = [t.metric for t in content.tables if t.metric in names]
    chosen = [c.metric for c in content.choices if c.metric in names]
    top = main_score(names)
    scores = sorted(n for n in names if n.endswith(("accuracy_top1", "/roc_auc")))
    return list(dict.fromkeys([*first, *chosen, *([top] if top else []), *scores]))


def _cell(value: Any, text: str | None = None, **more: str) -> dict[str, Any]:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    shown = show(value) if text is None else text
    if number and text is None and isinstance(value, int) and abs(value) >= 10_000:
        shown = f"{value:,}"
    return {"text": shown, "value": value if number else shown, "number": number, **more}


def _score_cell(run: Run, name: str) -> dict[str, Any]:
    value = run.figures.get(name)
    if value is None:
        return _cell(None)
    return _cell(value, number_text(value, name), kind="" if run.finished else "latest")


def _lineage_notes(content: Content) -> list[str]:
    """Returns what is not known of the runs that others start from."""
    efforts = content.fields.efforts
    notes = sorted({effort.note for effort in efforts.values()} - {""})
    return [f"{note} ({sum(e.note == note for e in efforts.values())} runs)" for note in notes]
