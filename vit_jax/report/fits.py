"""Scaling laws of runs: their tables and pictures."""

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from vit_jax.errors import ConfigError, first_few, nearest
from vit_jax.plan.scaling_fit import ScalingFit
from vit_jax.plan.scaling_law import DRAWS, bootstrap_laws, fit_law
from vit_jax.report.chart import Panel, Trace
from vit_jax.report.curves import main_score
from vit_jax.report.frame import column, in_natural_order
from vit_jax.report.labels import (
    FAMILIES,
    flops_unit,
    format_metric,
    is_number,
    lower_first,
    short_number,
    title_of,
)
from vit_jax.report.requests import FitRequest
from vit_jax.report.scores import VALUE, observe
from vit_jax.report.style import (
    Drawing,
    Palette,
    add_legend,
    new_figure,
    page_look,
    plot_style,
)
from vit_jax.report.tables import Cell, Table
from vit_jax.rng import generator

_KEYS = ["@panel", "@series"]
_SIZE, _EXAMPLES = "@size", "@examples"
_UNKNOWNS = {"floor": "E", "size_factor": "A", "size_exponent": "a", "data_factor": "B",
             "data_exponent": "b"}  # fmt: skip
# Amounts of compute at which series are compared, between the smallest and the largest of all.
_COMPARED = 3
# Beyond this many times the compute of the largest run, a law is extrapolated.
_EXTRAPOLATED = 2.0
# A task is not learned if the best loss is a larger share of that of guessing, ln C for C classes.
_LEARNED = 0.95


@dataclasses.dataclass(frozen=True)
class FittedRuns:
    """The scaling law of one series, and its runs.

    Attributes:
        fit: the law of all runs.
        before: the law of the runs that saw fewer examples than the longest; None: they are too
            few.
        runs: one row per run: size, examples, loss.
    """

    fit: ScalingFit
    before: ScalingFit | None
    runs: pd.DataFrame


def fit_runs(request: FitRequest, frame: pd.DataFrame) -> list[FittedRuns]:
    """Fits a scaling law to each series of each panel.

    Args:
        request: which runs and columns.
        frame: of the runs to report.

    Raises:
        ConfigError: no run has a column or metric of that name, the runs are too few, or no series
            is called `request.against`.
    """
    metric = request.metric or _main_loss(frame)
    axes = {name: getattr(request, name) for name in ("panel", "series", "size", "examples")}
    observed = observe(frame, metric, request.where, **axes)
    observed = observed[observed["@series"] != ""]
    observed[_SIZE], observed[_EXAMPLES] = (
        column(observed, name) for name in (request.size, request.examples)
    )
    known = observed[[_SIZE, _EXAMPLES]].map(is_number).all(axis="columns")
    if not known.all() or observed.empty:
        without = first_few(sorted({run.name for run in observed.index[~known]}), 3)
        raise ConfigError(
            f"--fit: {without or 'no run'} has no {request.size} or {request.examples}",
            f"finished runs with numbers in {request.size} and {request.examples}",
            "choose runs with where.COLUMN=VALUE, or other columns with size= and examples=",
        )
    names = {*observed["@series"]}
    if request.against is not None and request.against not in names:
        raise ConfigError(
            f"against={request.against}: no {request.series} has this name",
            f"one of {first_few(sorted(names), 8)}",
            f"did you mean {nearest(request.against, names)!r}?",
        )
    fitted = []
    for at, runs in in_natural_order(observed, _KEYS).groupby(_KEYS, sort=False):
        panel, series = map(str, cast(tuple[Any, Any], at))
        table = pd.DataFrame(
            {
                "size": runs[_SIZE].astype(float),
                "examples": runs[_EXAMPLES].astype(float),
                "loss": runs[VALUE].astype(float),
            }
        )
        try:
            fitted.append(_fit(panel, series, metric, table))
        except ConfigError as error:
            got = f"--fit: {' '.join(filter(None, (panel, series)))} has {error.got}"
            raise ConfigError(got, error.expected, error.fix) from None
    return fitted


def _main_loss(frame: pd.DataFrame) -> str:
    names = {name for run in frame.index if run.finished for name in run.figures}
    score = main_score(names)
    return f"{score.rpartition('/')[0]}/loss" if score else "train/loss"


def _fit(panel: str, series: str, metric: str, runs: pd.DataFrame) -> FittedRuns:
    flops = _flops_by_size(runs)

    def of(some: pd.DataFrame) -> ScalingFit:
        sizes, examples, losses = (some[name].to_numpy() for name in ("size", "examples", "loss"))
        law = fit_law(sizes, examples, losses)
        draws = bootstrap_laws(sizes, examples, losses, law)
        size_range, example_range = ((float(v.min()), float(v.max())) for v in (sizes, examples))
        return ScalingFit(panel, series, metric, law, draws, flops, size_range, example_range)

    shorter = runs[runs["examples"] < runs["examples"].max()]
    whole = of(runs)
    try:
        return FittedRuns(whole, of(shorter), runs)
    except ConfigError:
        return FittedRuns(whole, None, runs)


def _flops_by_size(runs: pd.DataFrame) -> dict[float, float]:
    """Returns the training FLOPs of an example for each size; {} if some are not known."""
    found = {}
    for run, size in zip(runs.index, runs["size"], strict=True):
        if not run.train_exaflops or not run.examples_seen:
            return {}
        found[float(size)] = 1e18 * run.train_exaflops / run.examples_seen
    return found


def fit_tables(request: FitRequest, fitted: Sequence[FittedRuns]) -> list[Table]:
    """Returns the tables of laws, of what they predicted, and of compute to equal loss."""
    tables = [_law_table(fitted), _prediction_table(fitted), _compute_table(request, fitted)]
    return [table for table in tables if table.rows]


def _law_table(fitted: Sequence[FittedRuns]) -> Table:
    rows = []
    for one in fitted:
        fit, cells = one.fit, []
        for name in _UNKNOWNS:
            value = getattr(fit.law, name)
            low, high = np.quantile([getattr(law, name) for law in fit.draws], [0.025, 0.975])
            cells.append(Cell(f"{value:.3g} [{low:.3g}, {high:.3g}]", value))
        residuals = np.log(one.runs["loss"] / fit.law.loss(one.runs["size"], one.runs["examples"]))
        typical = float(np.median(np.abs(residuals)))
        cells += [Cell(f"{100 * typical:.1f} %", typical), Cell(f"{len(one.runs)}", len(one.runs))]
        rows.append([*_names(fit), *cells])
    header = ["dataset", "series", *_UNKNOWNS.values(), "typical error", "runs"]
    loss = lower_first(title_of(fitted[0].fit.metric))
    notes = [
        f"{loss[:1].upper()}{loss[1:]} = E + A / N^a + B / D^b for N parameters and D examples,"
        f" fitted to the runs by the Huber loss of the logarithm; in brackets the 95 % interval of"
        f" {DRAWS} residual bootstraps. The typical error is the median over the runs."
    ]
    notes += filter(None, map(_not_learned, fitted))
    return _without_empty(Table("Scaling law", header, rows, notes))


def _not_learned(one: FittedRuns) -> str:
    """Returns a warning about a law of runs that do no better than guessing, else ""."""
    classes, best = len(one.runs.index[0].classes), float(one.runs["loss"].min())
    is_evaluated = re.fullmatch("eval/.+/loss", one.fit.metric) is not None
    if not classes or not is_evaluated or best < _LEARNED * math.log(classes):
        return ""
    name = " ".join(filter(None, (one.fit.panel, one.fit.series)))
    return (
        f"Not learned: the best loss of {name}, {best:.3g}, is close to that of guessing,"
        f" ln {classes} = {math.log(classes):.3g}. Its law describes noise."
    )


def _prediction_table(fitted: Sequence[FittedRuns]) -> Table:
    rows, inside = [], []
    for one in fitted:
        if one.before is None:
            continue
        longest = one.runs[one.runs["examples"] == one.runs["examples"].max()]
        for size, runs in longest.groupby("size"):
            examples, measured = float(runs["examples"].iloc[0]), float(runs["loss"].mean())
            law = one.before.law
            low, high = _prediction_interval(one, float(size), examples, len(runs))
            predicted = float(law.loss(size, examples))
            inside.append(low <= measured <= high)
            metric = one.fit.metric
            shown = [format_metric(value, metric, like=predicted) for value in (low, high)]
            rows.append(
                [
                    *_names(one.fit),
                    Cell(short_number(size), float(size)),
                    Cell(short_number(examples), examples),
                    Cell(f"{format_metric(predicted, metric)} [{', '.join(shown)}]", predicted),
                    Cell(format_metric(measured, metric, like=predicted), measured),
                    Cell(f"{100 * (predicted / measured - 1):+.1f} %", predicted / measured),
                    Cell("yes" if inside[-1] else "no"),
                ]
            )
    header = ["dataset", "series", "parameters", "examples", "predicted", "measured", "error",
              "inside"]  # fmt: skip
    notes = [
        "Predicted by the law of the runs that saw fewer examples, with the 95 % interval of new"
        f" runs. {sum(inside)} of {len(inside)} measurements are inside."
    ]
    return _without_empty(Table("Prediction of the longest runs", header, rows, notes))


def _prediction_interval(
    one: FittedRuns, size: float, examples: float, count: int
) -> tuple[float, float]:
    """Returns the interval of the mean loss of new runs: other laws, and other residuals."""
    assert one.before is not None
    used = one.runs[one.runs["examples"] < one.runs["examples"].max()]
    residuals = np.log(used["loss"] / one.before.law.loss(used["size"], used["examples"]))
    # Five unknowns make the residuals of few runs too small.
    residuals = residuals.to_numpy() * math.sqrt(len(used) / max(1, len(used) - 5))
    draws = [float(law.loss(size, examples)) for law in one.before.draws]
    rng = generator(0, f"new runs: {one.fit.panel} {one.fit.series} {size}", 0)
    noise = rng.choice(residuals, (len(draws), count)).mean(axis=1)
    low, high = np.quantile(np.array(draws) * np.exp(noise), [0.025, 0.975])
    return float(low), float(high)


def _compute_table(request: FitRequest, fitted: Sequence[FittedRuns]) -> Table:
    by_panel: dict[str, list[FittedRuns]] = {}
    for one in fitted:
        by_panel.setdefault(one.fit.panel, []).append(one)
    rows = []
    against = request.against or min((one.fit.series for one in fitted), key=_rank)
    for members in by_panel.values():
        known = {one.fit.series: one for one in members if one.fit.flops}
        if against not in known:
            continue
        reference = known.pop(against)
        low, high = _flops_range(reference)
        for flops in np.geomspace(low, high, _COMPARED):
            loss = reference.fit.best_loss(flops)[0]
            for one in known.values():
                ratio, least, most = one.fit.flops_ratio(reference.fit, flops)
                ends = f"[{_ratio_text(least)}, {_ratio_text(most)}]"
                beyond = ratio * flops > _EXTRAPOLATED * _flops_range(one)[1]
                ends += " extrapolated" if beyond and math.isfinite(ratio) else ""
                rows.append(
                    [
                        *_names(one.fit),
                        Cell(_flops_text(flops), float(flops)),
                        Cell(format_metric(loss, one.fit.metric), loss),
                        Cell(f"{_ratio_text(ratio)} {ends}", ratio),
                    ]
                )
    header = ["dataset", "series", f"compute of {against}", "loss", "ratio of compute"]
    notes = [
        f"The compute with which a series reaches the loss that {against} reaches, divided by"
        f" that of {against}; below 1 it needs less. Each at its best size between the smallest and"
        " the largest of its runs. never: the law does not reach the loss. extrapolated: more than"
        f" {_EXTRAPOLATED:g} times the compute of its largest run."
    ]
    return _without_empty(Table("Compute to equal loss", header, rows, notes))


def _rank(series: str) -> tuple[int, str]:
    """Orders series: ResNets first, because the paper compares with them, then by name."""
    return (0 if series == FAMILIES[2] else 1, series)


def _flops_range(one: FittedRuns) -> tuple[float, float]:
    spent = [run.train_exaflops * 1e18 for run in one.runs.index]
    return min(spent), max(spent)


def _ratio_text(ratio: float) -> str:
    return f"{ratio:.2g}" if math.isfinite(ratio) else "never"


def _flops_text(flops: float) -> str:
    factor, unit = flops_unit(flops / 1e18)
    return f"{flops / 1e18 * factor:.3g} {unit}"


def _names(fit: ScalingFit) -> list[Cell]:
    return [Cell(fit.panel), Cell(fit.series)]


def _without_empty(table: Table) -> Table:
    """Returns a table without its first column if this is empty."""
    if any(row[0].text for row in table.rows):
        return table
    rows = [row[1:] for row in table.rows]
    return dataclasses.replace(table, header=table.header[1:], rows=rows)


def draw_fits(request: FitRequest, fitted: Iterable[FittedRuns], palette: Palette) -> list[Drawing]:
    """Draws the loss of each series against compute: its runs, and its law at the best size."""
    panels: dict[str, list[FittedRuns]] = {}
    for one in fitted:
        if one.fit.flops:
            panels.setdefault(one.fit.panel, []).append(one)
    if not panels:
        return []
    metric = next(iter(panels.values()))[0].fit.metric
    every = [one for members in panels.values() for one in members]
    palette.add(request.series, [one.fit.series for one in every])
    factor, unit = flops_unit(max(_flops_range(one)[1] for one in every) / 1e18)
    handles: dict[str, Any] = {}
    with plot_style():
        figure, axes = new_figure(1, len(panels), width=4.6, height=3.5)
        for panel, (name, members) in zip(axes.flat, panels.items(), strict=True):
            for one in members:
                handles[one.fit.series] = _draw_fit(panel, request, one, palette, factor)
            panel.set_title(name)
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter(short_number)
            panel.set_xlabel(f"Training compute, {unit}")
        axes.flat[0].set_ylabel(title_of(metric))
        add_legend(figure, handles, request.series)
    notes = [
        "Points: runs. Lines: the law at the best size for an amount of compute, with its 95 %"
        " interval; the dotted part is beyond the runs."
    ]
    shown = [
        Panel(
            name,
            f"Training compute, {unit}",
            title_of(metric),
            [trace for one in members for trace in _fit_traces(request, one, palette, factor)],
            log_x=True,
        )
        for name, members in panels.items()
    ]
    return [Drawing("Loss against compute, and the scaling law", figure, notes, shown)]


def _law(one: FittedRuns) -> Iterable[tuple[str, np.ndarray, np.ndarray]]:
    """Yields dashes, exaFLOPs [30] and losses [30, 3] of the law: over the runs, and beyond."""
    low, high = _flops_range(one)
    for start, stop, dashes in ((low, high, "-"), (high, 10 * high, ":")):
        flops = np.geomspace(start, stop, 30)
        yield dashes, flops / 1e18, np.array([one.fit.best_loss(value) for value in flops])


def _fit_traces(
    request: FitRequest, one: FittedRuns, palette: Palette, factor: float
) -> Iterable[Trace]:
    """Yields the runs of a series, its law and the interval of the law, for the page."""
    name, look = one.fit.series, page_look(palette.style(request.series, one.fit.series))
    runs = [*one.runs.index]
    spent = [run.train_exaflops * factor for run in runs]
    yield Trace(name, look, "runs", spent, [*one.runs["loss"]], runs=runs)
    for dashes, exaflops, losses in _law(one):
        drawn = look | {"dash": "solid" if dashes == "-" else "dot"}
        yield Trace(name, drawn, "curve", exaflops * factor, losses[:, 0])
        yield Trace(
            name, drawn, "band", exaflops * factor, losses[:, 0], losses[:, 1], losses[:, 2]
        )


def _draw_fit(
    panel: Any, request: FitRequest, one: FittedRuns, palette: Palette, factor: float
) -> Any:
    style = palette.style(request.series, one.fit.series)
    spent = [run.train_exaflops * factor for run in one.runs.index]
    points = panel.plot(
        spent, one.runs["loss"], **{**style, "linestyle": "none"}, markersize=4, alpha=0.7
    )
    for dashes, exaflops, losses in _law(one):
        at = exaflops * factor
        panel.plot(at, losses[:, 0], color=style["color"], linestyle=dashes)
        panel.fill_between(at, losses[:, 1], losses[:, 2], color=style["color"], alpha=0.15)
    return points[0]
