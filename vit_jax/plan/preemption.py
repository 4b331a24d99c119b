"""Simulates runs on machines that are taken away: how long they take, and what the time goes to.

A session starts, compiles, restores the last complete checkpoint and trains. A save blocks training
for a moment and is complete later; the next save waits for it. When the machine is taken away, the
steps after the last complete checkpoint are lost, and the run waits for another machine. This is
what `vit_jax.train` does, with constant times.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

# A run that has not ended after this many sessions never will, for all practical purposes; nor
# will it if this many sessions in a row bring no run forward.
_MAX_SESSIONS, _MAX_USELESS = 20_000, 500
# Sessions: (seconds that each run's machine lasts, seconds until the next one) after each other.
Sessions = Iterator[tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class RunCosts:
    """The times of a run, in seconds.

    Attributes:
        steps: number of training steps.
        step_s: time of a step, with its share of waiting for data and of evaluation.
        save_s: time that a save blocks training.
        write_s: time from the begin of a save until its checkpoint is complete.
        start_s: time of a session before it compiles and restores.
        compile_s: time to compile the training step.
        restore_s: time to restore a checkpoint.
    """

    steps: int
    step_s: float
    save_s: float
    write_s: float
    start_s: float
    compile_s: float
    restore_s: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What simulated runs took. Each array has one value for each run; inf: it never ends.

    Attributes:
        total_s: time from the first start to the end.
        lost_s: time of the work that was done again, and of unfinished saves.
        restart_s: time to start, compile and restore, in all sessions.
        saving_s: time that complete saves blocked training.
        idle_s: time without a machine.
        preemptions: number of preemptions.
    """

    total_s: np.ndarray
    lost_s: np.ndarray
    restart_s: np.ndarray
    saving_s: np.ndarray
    idle_s: np.ndarray
    preemptions: np.ndarray

    @property
    def machine_s(self) -> np.ndarray:
        """Time for which a machine is paid."""
        return self.total_s - self.idle_s


def at_rate(per_hour: float, down_s: float, runs: int, rng: np.random.Generator) -> Sessions:
    """Yields sessions of machines that are preempted at a constant rate, independently.

    Args:
        per_hour: preemptions per hour, of all machines of the run together.
        down_s: time until there is another machine.
        runs: number of runs.
        rng: draws the times.
    """
    while True:
        up_s = rng.exponential(3600 / per_hour, runs) if per_hour else np.full(runs, np.inf)
        yield up_s, np.full(runs, down_s)


def along_trace(up_s: np.ndarray, down_s: np.ndarray, begin_s: np.ndarray) -> Sessions:
    """Yields sessions along a trace of preemptions, which starts again at its end.

    Args:
        up_s: f64[n], how long each machine lasted.
        down_s: f64[n], time from the end of each machine until the next one.
        begin_s: f64[runs], machine time in the trace at which each run starts, below `up_s.sum()`.
    """
    ends = np.cumsum(up_s)
    at = np.searchsorted(ends, begin_s, side="right")
    left = ends[at] - begin_s
    while True:
        yield left, down_s[at]
        at = (at + 1) % len(up_s)
        left = up_s[at]


def simulate(
    costs: RunCosts, interval_steps: int, sessions: Sessions, *, notice_s: float = 0.0
) -> Outcome:
    """Simulates runs from their first start to their end.

    Args:
        costs: the times of a run.
        interval_steps: steps between saves. The last step is always saved.
        sessions: of one or several runs, see `at_rate` and `along_trace`.
        notice_s: time between the signal to stop and the end of a machine. A session's time ends at
            the signal. If the time is enough to finish a step and to save, nothing is lost.
    """
    outcome, saved, running, useless = None, np.zeros(0, int), np.zeros(0, bool), 0
    for _, (up_s, down_s) in zip(range(_MAX_SESSIONS), sessions, strict=False):
        if outcome is None:
            outcome = Outcome(*(np.zeros(len(up_s)) for _ in dataclasses.fields(Outcome)))
            saved, running = np.zeros(len(up_s), int), np.ones(len(up_s), bool)
        end = _session(costs, interval_steps, saved, up_s, notice_s)
        for total, part in (
            (outcome.total_s, end.time_s + np.where(end.finished, 0.0, down_s)),
            (outcome.lost_s, end.lost_s),
            (outcome.restart_s, end.restart_s),
            (outcome.saving_s, end.saving_s),
            (outcome.idle_s, np.where(end.finished, 0.0, down_s)),
            (outcome.preemptions, ~end.finished),
        ):
            total[running] += part[running]
        now = np.where(running, end.saved, saved)
        useless = useless + 1 if np.array_equal(now, saved) else 0
        saved = now
        running &= ~end.finished
        if not running.any() or useless >= _MAX_USELESS:
            break
    assert outcome is not None
    outcome.total_s[running] = np.inf
    return outcome


@dataclasses.dataclass(frozen=True)
class _End:
    """How a session of each run has ended.

    Attributes:
        finished: whether the run has ended.
        time_s: time of the session.
        saved: step of the last complete checkpoint.
        restart_s: time to start, compile and restore.
        lost_s: time of what the next session does again, and of unfinished saves.
        saving_s: time that complete saves blocked training.
    """

    finished: np.ndarray
    time_s: np.ndarray
    saved: np.ndarray
    restart_s: np.ndarray
    lost_s: np.ndarray
    saving_s: np.ndarray


def _session(
    costs: RunCosts, interval: int, saved: np.ndarray, up_s: np.ndarray, notice_s: float
) -> _End:
    """Runs one session of each run, from the step of its last complete checkpoint."""
    start_s = costs.start_s + costs.compile_s + np.where(saved > 0, costs.restore_s, 0.0)
    # Saves lie at multiples of the interval, also after a stop that saved another step.
    first = interval - saved % interval
    left = costs.steps - saved
    # Saves before the last step. From the begin of one to that of the next takes `cycle_s`.
    count = np.maximum(-(-(left - first) // interval), 0)
    cycle_s = max(costs.save_s + interval * costs.step_s, costs.write_s)
    first_s = start_s + first * costs.step_s
    tail_steps = np.where(count > 0, left - first - (count - 1) * interval, left)
    tail_s = np.where(
        count > 0,
        first_s
        + (count - 1) * cycle_s
        + np.maximum(costs.save_s + tail_steps * costs.step_s, costs.write_s),
        start_s + tail_steps * costs.step_s,
    )
    finish_s = tail_s + costs.write_s
    kill_s = up_s + notice_s
    # A stopped process finishes its step, saves, and waits until the checkpoint is complete.
    stop_s = up_s + costs.step_s + costs.write_s
    stops = (stop_s <= kill_s) & (up_s >= start_s)
    finished = finish_s <= np.where(stops, up_s, kill_s)
    # Saves that began before the signal, and those complete before the end of the machine.
    begun = np.clip(np.floor((up_s - first_s) / cycle_s) + 1, 0, count)
    complete = np.floor((kill_s - costs.write_s - first_s) / cycle_s) + 1
    complete = np.clip(complete, 0, begun).astype(int)
    kept = np.where(complete > 0, saved + first + (complete - 1) * interval, saved)
    # Steps until the signal: those before the last save, and those after it.
    since_s = up_s - np.where(begun > 0, first_s + (begun - 1) * cycle_s + costs.save_s, start_s)
    done = np.where(begun > 0, first + (begun - 1) * interval, 0)
    with np.errstate(invalid="ignore"):
        done = done + np.maximum(since_s, 0) // costs.step_s + 1
    stopped_at = saved + np.minimum(np.nan_to_num(done, posinf=costs.steps), left).astype(int)
    kept = np.where(finished, costs.steps, np.where(stops, stopped_at, kept))
    time_s = np.where(finished, finish_s, np.where(stops, stop_s, kill_s))
    restart_s = np.minimum(start_s, time_s)
    rest_s = time_s - restart_s - (kept - saved) * costs.step_s
    saving_s = complete * (cycle_s - interval * costs.step_s)
    # Nothing is lost by a session that has saved its last step.
    lost_s = np.where(finished | stops, 0.0, rest_s - saving_s)
    return _End(finished, time_s, kept, restart_s, lost_s, rest_s - lost_s)
