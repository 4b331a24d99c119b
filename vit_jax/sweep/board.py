"""Where every job of a sweep stands, judged from its folder."""

import dataclasses
import json
import time
from typing import Any

from vit_jax.config.file import load_config
from vit_jax.config.init import AUTO, OF_THE_RUN
from vit_jax.config.run import Config
from vit_jax.errors import UserError, first_few
from vit_jax.schema import differences
from vit_jax.sweep.plan import Plan, PlannedJob
from vit_jax.sweep.records import (
    RUN_AGAIN,
    Attempt,
    Progress,
    log_file,
    read_attempt,
    read_json,
)

# In the order in which they are shown.
STATES = ("failed", "running", "queued", "ready", "stopped", "waiting", "blocked", "finished")
_TRACES = ("result.json", "metrics.jsonl", "checkpoints")


@dataclasses.dataclass
class Row:
    """One job of the table.

    Attributes:
        job: as planned.
        state: one of STATES. "ready" could start; "stopped" is to go on; "waiting" needs others;
            "blocked" needs one that failed.
        note: why, in words.
        step: last step it has logged.
        total: steps it is to make; None: not known.
        result: its result.json, where finished.
        attempt: the latest.
    """

    job: PlannedJob
    state: str = "waiting"
    note: str = ""
    step: int = 0
    total: int | None = None
    result: dict[str, Any] | None = None
    attempt: Attempt | None = None
    scores: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def score(self) -> tuple[str, float] | None:
        """The figure to show: that of the selection, else a top-1 accuracy."""
        figures = {**self.scores, **(self.result or {})}
        shown = [self.job.metric] if self.job.metric else []
        shown += [name for name in figures if name.endswith("accuracy_top1")]
        for name in shown:
            if isinstance(figures.get(name), int | float):
                return name, float(figures[name])
        return None

    @property
    def seconds(self) -> float | None:
        """How long it took, or has been running."""
        if self.result is not None and "wall_time_s" in self.result:
            return float(self.result["wall_time_s"])
        if self.attempt is None:
            return None
        return (self.attempt.ended or time.time()) - self.attempt.started


class Board:
    """All rows of a sweep, kept up to date.

    Args:
        plan: the jobs.
        retry_failed: whether jobs that have failed before are to be run again, once.
    """

    def __init__(self, plan: Plan, *, retry_failed: bool):
        self.plan = plan
        self.rows = {name: Row(job) for name, job in plan.jobs.items()}
        self._progress = {name: Progress(job.folder) for name, job in plan.jobs.items()}
        self._failed: dict[str, str] = {}
        self._retry: set[str] = set()
        if retry_failed:
            self.update({})
            self._retry = {name for name, row in self.rows.items() if row.state == "failed"}

    def update(self, running: dict[str, str]) -> None:
        """Looks at every job that is not finished.

        Args:
            running: name -> "running" or "queued", of jobs that an engine has.
        """
        for name, row in self.rows.items():
            row.job = self.plan.jobs[name]
            if row.state != "finished":
                self._look(row, running.get(name))
        for row in self.rows.values():
            if row.state in ("ready", "stopped"):
                self._check_needs(row)

    def fail(self, name: str, why: str) -> None:
        """Notes that a job is not to be started any more by this launcher."""
        self._failed[name] = why

    def retried(self, name: str) -> None:
        """Notes that a job that had failed was started again."""
        self._retry.discard(name)

    def named(self, state: str) -> list[str]:
        """Returns the names of the jobs in a state."""
        return [name for name, row in self.rows.items() if row.state == state]

    def _look(self, row: Row, engine: str | None) -> None:
        folder = row.job.folder
        row.result, row.attempt, row.note = read_json(row.job.result), read_attempt(folder), ""
        progress = self._progress[row.job.name]
        progress.update()
        row.step, row.scores = progress.step, progress.scores
        row.total = row.total or _total_steps(row.job)
        if row.result is not None:
            row.state, row.step = "finished", int(row.result.get("step", row.step))
            row.total = row.step or row.total
        elif engine is not None:
            row.state = engine
        elif row.job.name in self._failed:
            row.state, row.note = "failed", self._failed[row.job.name]
        elif row.attempt is None:
            row.state = "ready"
        else:
            why = why_failed(row.attempt)
            failed = why is not None and row.job.name not in self._retry
            row.state, row.note = ("failed", why or "") if failed else ("stopped", "")

    def _check_needs(self, row: Row) -> None:
        """A job that could start waits while others are not finished."""
        choice = self.plan.choices.get(row.job.undecided or "")
        skippable = choice is not None and choice.selection.on_failed == "skip"
        lacking = []
        for need in row.job.needs:
            other = self.rows[need]
            if other.state == "finished" or (
                skippable and choice and need in choice.candidates and _is_lost(other)
            ):
                continue
            lacking.append(other)
        lost = [other for other in lacking if _is_lost(other)]
        if lost:
            names = first_few([repr(other.job.name) for other in lost], 2)
            row.state, row.note = "blocked", f"waits for failed {names}"
        elif lacking:
            row.state = "waiting"
            row.note = f"waits for {first_few([other.job.name for other in lacking], 1)}"
        elif row.job.undecided:
            row.state, row.note = "waiting", "waits for the choice"


def _is_lost(row: Row) -> bool:
    return row.state in ("failed", "blocked")


def why_failed(attempt: Attempt) -> str | None:
    """Returns why a job is not simply to be started again; None: it is."""
    if attempt.failure is not None:
        return attempt.failure
    code = attempt.exit_code
    if attempt.ended is None or code is None or code in RUN_AGAIN:
        return None
    if code == 0:
        return "ended without a result.json"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def changes(job: PlannedJob) -> str | None:
    """Returns how a job that has run, or has begun to, differs from what is asked for now.

    A training run is compared by its whole config, others by their command line. None: not at all.
    """
    if not any((job.folder / trace).exists() for trace in _TRACES):
        return None
    if job.job.command == "train" and job.config is not None:
        path = job.folder / "config.json"
        try:
            there = load_config(str(path))
        except UserError:  # Of another version of this code, or cut off: nothing to compare.
            return None
        rows = [
            f"{key}: {old!r} there, {new!r} now"
            for key, old, new in differences(there, _with_model_of(there, job.config))
            # The fingerprint of a subset is filled in by the run itself.
            if not (key.endswith(".hash") and new is None)
        ]
        return first_few(rows, 3, "; ") or None
    there = read_json(job.folder / "job.json") or {}
    now = json.loads(json.dumps(job.about("")))  # Tuples are lists there.
    rows = [
        f"{key}: {there[key]!r} there, {now[key]!r} now"
        for key in ("command", "config", "overrides", "arguments")
        if key in there and there[key] != now[key]
    ]
    return first_few(rows, 3, "; ") or None


def _with_model_of(there: Config, now: Config) -> Config:
    """Returns a config whose `model.name=auto` has become the model that a run has found.

    Args:
        there: config of the run, its model section filled in from its weights.
        now: what is asked for; what it sets itself stays, also in what is the run's own.
    """
    if now.model.name != AUTO:
        return now
    from vit_jax.models.registry import model_options  # Imports JAX.

    usual, asked = model_options(AUTO).to_mapping(), now.model.to_mapping()
    found = {
        key: value
        for key, value in there.model.to_mapping().items()
        if key not in OF_THE_RUN and asked[key] == usual[key]
    }
    model = model_options(**{**asked, **found, "name": there.model.name})
    return dataclasses.replace(now, model=model)


def _total_steps(job: PlannedJob) -> int | None:
    """Returns a run's steps: as its config says, else as it prints them ("step 20/60")."""
    if job.config is not None and job.config.train_steps is not None:
        return job.config.train_steps if job.job.command == "train" else None
    path = log_file(job.folder)
    if not path.is_file():
        return None
    with path.open(errors="replace") as file:
        for line in file.read(100_000).splitlines():
            word = line.partition("step ")[2].partition(" ")[0]
            if line.startswith("step ") and "/" in word:
                total = word.partition("/")[2]
                return int(total) if total.isdecimal() else None
    return None
