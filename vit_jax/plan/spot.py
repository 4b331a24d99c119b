"""Compares save intervals on machines that are preempted, and these with on-demand machines."""

import dataclasses
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from vit_jax.plan.preemption import Outcome, RunCosts, Sessions, at_rate, simulate
from vit_jax.tables import plain_table
from vit_jax.train.save_interval import DEFAULT_INTERVAL, best_interval_s

RUNS = 1000
# Intervals to compare, as multiples of Young's.
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_PERCENTILES = (5, 50, 95)


@dataclasses.dataclass(frozen=True)
class Prices:
    """Prices of one chip for one hour; None: not given."""

    spot: float | None
    on_demand: float | None


@dataclasses.dataclass(frozen=True)
class SpotPlan:
    """What a run takes on spot and on on-demand machines.

    Attributes:
        costs: times of the run.
        chips: number of chips.
        prices: of a chip.
        between_s: mean time between preemptions.
        young_steps: interval by Young's formula.
        spot: save interval in steps -> outcome of the simulated runs, sorted.
        on_demand: outcome without preemptions, with the save interval of the run.
    """

    costs: RunCosts
    chips: int
    prices: Prices
    between_s: float
    young_steps: int
    spot: dict[int, Outcome]
    on_demand: Outcome

    @property
    def best(self) -> int:
        """The interval with the shortest median time."""
        return _best(self.spot)


def make_spot_plan(
    costs: RunCosts,
    *,
    chips: int,
    prices: Prices,
    between_s: float,
    sessions: Callable[[], Sessions],
    intervals: tuple[int, ...] = (),
    notice_s: float = 0.0,
) -> SpotPlan:
    """Simulates a run for several save intervals.

    Args:
        costs: times of the run.
        chips: number of chips.
        prices: of a chip.
        between_s: mean time between preemptions.
        sessions: makes the sessions of all simulated runs, the same for every interval.
        intervals: save intervals to compare in addition to Young's and its multiples; the first
            one is the run's.
        notice_s: see `simulate`.
    """
    young_s = best_interval_s(costs.save_s, between_s, costs.write_s)
    steps = [round(factor * young_s / costs.step_s) for factor in _FACTORS]
    tried = sorted({min(max(n, 1), costs.steps) for n in (*steps, *intervals)})
    spot = {n: simulate(costs, n, sessions(), notice_s=notice_s) for n in tried}
    never = at_rate(0.0, 0.0, 1, np.random.default_rng(0))
    return SpotPlan(
        costs=costs,
        chips=chips,
        prices=prices,
        between_s=between_s,
        young_steps=min(max(steps[2], 1), costs.steps),
        spot=spot,
        on_demand=simulate(costs, [*intervals, DEFAULT_INTERVAL][0], never),
    )


def _best(spot: dict[int, Outcome]) -> int:
    return min(spot, key=lambda n: float(np.median(spot[n].total_s)))


def show_spot_plan(plan: SpotPlan, source: str, preemptions: str, console: Console) -> None:
    """Prints a plan.

    Args:
        plan: the plan.
        source: where the times come from.
        preemptions: what preempts the machines, for the title.
        console: prints it.
    """
    costs = plan.costs

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False)

    chips = "1 chip" if plan.chips == 1 else f"{plan.chips:,} chips"
    say(f"{preemptions}; {RUNS:,} simulated runs on {chips}", "bold")
    say(
        f"{costs.steps:,} steps of {_time(costs.step_s)}, {source}. A session starts in"
        f" {_time(costs.start_s)}, compiles in {_time(costs.compile_s)} and restores in"
        f" {_time(costs.restore_s)}. A save blocks training for {_time(costs.save_s)} and is"
        f" complete after {_time(costs.write_s)}."
    )
    console.print(_table(plan))
    for line in _conclusion(plan):
        say(line)


def _table(plan: SpotPlan) -> Table:
    cost = "chip-hours" if plan.prices.spot is None else "cost"
    table = plain_table(
        "save every",
        right=("time", "5 %", "95 %", "lost", "saving", "starts", "idle", cost),
        left="",
    )
    for steps, outcome in plan.spot.items():
        notes = ["best"] * (steps == plan.best) + ["Young"] * (steps == plan.young_steps)
        _add_row(table, f"{steps:,} steps", outcome, plan, plan.prices.spot, ", ".join(notes))
    table.add_section()
    _add_row(table, "on demand", plan.on_demand, plan, plan.prices.on_demand, "")
    return table


def _add_row(
    table: Table, name: str, outcome: Outcome, plan: SpotPlan, price: float | None, note: str
) -> None:
    low, middle, high = np.percentile(outcome.total_s, _PERCENTILES, method="nearest")
    if not np.isfinite(middle):
        table.add_row(name, "never ends")
        return
    ended = np.isfinite(outcome.total_s)
    whole = outcome.total_s[ended].sum()
    hours = float(np.median(outcome.machine_s)) / 3600 * plan.chips
    table.add_row(
        name,
        _time(middle),
        *("" if low == high else _time(time) for time in (low, high)),
        *(
            f"{part[ended].sum() / whole:.1%}"
            for part in (outcome.lost_s, outcome.saving_s, outcome.restart_s, outcome.idle_s)
        ),
        _amount(hours if price is None else hours * price),
        note,
        style="bold green" if "best" in note else None,
    )


def _conclusion(plan: SpotPlan) -> list[str]:
    spot, demand = plan.spot[plan.best], plan.on_demand
    if not np.isfinite(np.median(spot.total_s)):
        return ["The run does not end: its machines rarely last until a checkpoint is complete."]
    ratio = float(np.median(spot.total_s) / demand.total_s[0])
    text = (
        f"With a median of {np.median(spot.preemptions):,.0f} preemptions, the run takes"
        f" {ratio:.2f} times as long as on demand"
    )
    if plan.prices.spot is not None and plan.prices.on_demand is not None:
        paid = float(np.median(spot.machine_s)) * plan.prices.spot
        paid /= float(demand.machine_s[0]) * plan.prices.on_demand
        text += f" and costs {paid:.2f} times as much"
    hours = plan.between_s / 3600
    return [
        f"{text}. Save every {plan.best:,} steps: --config.checkpoint.interval_steps={plan.best},"
        " or --config.checkpoint.interval=auto"
        f" --config.checkpoint.hours_between_failures={hours:.3g}"
    ]


def spot_row(plan: SpotPlan) -> dict[str, float | int | None]:
    """Returns the figures of a plan by name, for JSON and CSV."""
    row: dict[str, float | int | None] = {
        "spot_steps": plan.costs.steps,
        "spot_chips": plan.chips,
        "spot_hours_between_preemptions": round(plan.between_s / 3600, 4),
        "spot_interval_steps": plan.best,
    }
    outcomes = {"spot": (plan.spot[plan.best], plan.prices.spot)}
    outcomes["on_demand"] = plan.on_demand, plan.prices.on_demand
    for name, (outcome, price) in outcomes.items():
        for percent in _PERCENTILES if name == "spot" else (50,):
            total, machine = (
                float(np.percentile(s, percent, method="nearest")) / 3600
                for s in (outcome.total_s, outcome.machine_s)
            )
            chip_hours = machine * plan.chips
            cost = None if price is None else chip_hours * price
            figures = {"hours": total, "chip_hours": chip_hours, "cost": cost}
            for figure, value in figures.items():
                finite = value is not None and np.isfinite(value)
                row[f"{name}_{figure}_p{percent}"] = float(f"{value:.5g}") if finite else None
    return row


def _amount(value: float) -> str:
    """Formats hours or a price.

    >>> _amount(0.01234), _amount(12.345), _amount(1234.5)
    ('0.0123', '12.35', '1,234')
    """
    return f"{value:.3g}" if value < 1 else f"{value:,.{2 if value < 1000 else 0}f}"


def _time(seconds: float) -> str:
    """Formats a duration with three digits.

    >>> _time(0.0123), _time(75), _time(5400), _time(400000)
    ('12.3 ms', '75 s', '90 min', '111 h')
    """
    for unit, name in ((3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= (2 * unit if unit > 1 else unit):
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e3:.3g} ms"
