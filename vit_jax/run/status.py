"""The status of a run, read from the files of its folder while it may be running elsewhere."""

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vit_jax.errors import RunFolderError
from vit_jax.run.environment import changed_code
from vit_jax.run.job_folder import (
    Attempt,
    is_running,
    read_attempt,
    read_optional_json,
    read_progress,
)
from vit_jax.run.result import RESULT, read_result
from vit_jax.run.time_account import clock_text, read_sessions, why_failed

# In the order in which a table shows them. "killed": ended without saving its last step.
STATES = ("running", "failed", "killed", "stopped", "not started", "finished")
# A run appends a line to sessions.jsonl every second at first, later every 1/200 of its time. It
# runs if its last line is at most this many times older, plus a margin for slow disks.
_MISSED_LINES, _MARGIN_S = 3, 5.0
# How the names of accuracies start, most important first.
_PREFIXES = ("eval/", "linear_probe/", "fewshot/", "knn/")


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """Where a run stands."""

    state: str  # one of STATES
    note: str = ""  # why it failed
    step: int = 0  # number of finished steps
    total_steps: int | None = None  # None: not known
    metric: str = ""  # name of the score; "": there is none yet
    score: float | None = None  # latest value of this metric
    seconds: float | None = None  # that the run has taken; None: not known
    eta_s: float | None = None  # left, of a running run; None: not known
    updated: float | None = None  # last change of its files, in unix seconds; None: it has none
    changed_code: bool = False  # whether it was resumed with other code or packages

    @property
    def steps_text(self) -> str:
        """Finished and all steps, e.g. "20/1,000"."""
        if self.total_steps:
            return f"{self.step:,}/{self.total_steps:,}"
        return f"{self.step:,}" if self.step else ""

    @property
    def score_text(self) -> str:
        """The score after a short name of its metric, e.g. "test 0.9125"."""
        if self.score is None:
            return ""
        name = self.metric.removeprefix("eval/").removesuffix("/accuracy_top1")
        return f"{name} {self.score:.4f}"

    @property
    def time_text(self) -> str:
        return "" if self.seconds is None else str(datetime.timedelta(seconds=round(self.seconds)))

    @property
    def eta_text(self) -> str:
        return "" if self.eta_s is None else clock_text(self.eta_s)


def read_status(folder: Path, *, running: bool | None = None, metric: str = "") -> RunStatus:
    """Reads the status of a run, or of a job of a sweep.

    `running` says whether it is running; None: find out. `metric` names the score; "": the metric
    that the run itself chooses by, else an accuracy.
    """
    result = None
    with contextlib.suppress(RunFolderError):  # A damaged file; the run counts as unfinished.
        result = read_result(folder)
    config = read_optional_json(folder / "config.json") or {}
    if result is not None and not running:
        updated = (folder / RESULT).stat().st_mtime
        status = finished_status(result, config, metric=metric, updated=updated)
        return dataclasses.replace(status, changed_code=changed_code(folder))
    attempt, sessions = read_attempt(folder), read_sessions(folder)
    step, total, scores = read_progress(folder)
    name, score = _score(scores, config, metric)
    last = sessions[-1] if sessions else None
    if last is not None:
        step, total = max(step, last["step"]), last.get("total_steps") or total
    total = total or config.get("train_steps")
    now = time.time()
    state, note = ("running", "") if running else _state(folder, attempt, last, now)
    seconds, eta, updated = None, None, None
    if last is not None:
        seconds, updated = sum(last["seconds"].values()), last["time"]
        eta = _eta_s(sessions, total, now) if state == "running" else None
    elif attempt is not None:
        updated = attempt.ended or attempt.started
        seconds = (attempt.ended or now) - attempt.started
    changed = changed_code(folder)
    return RunStatus(state, note, step, total, name, score, seconds, eta, updated, changed)


def finished_status(
    result: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    metric: str = "",
    updated: float | None = None,
) -> RunStatus:
    """Returns the status of a finished run.

    `config` may be empty. `metric` is as in `read_status`; `updated` says when the result was
    written, in unix seconds.
    """
    name, score = _score(result, config, metric)
    step, parts = result.get("step") or 0, result.get("seconds")  # Older versions have no parts.
    seconds = sum(parts.values()) if parts else result.get("wall_time_s")
    return RunStatus("finished", "", step, step or None, name, score, seconds, updated=updated)


def _state(
    folder: Path, attempt: Attempt | None, last: Mapping[str, Any] | None, now: float
) -> tuple[str, str]:
    """Returns the state of a run without a result, and why it failed."""
    if attempt is not None and attempt.why_failed:
        return "failed", attempt.why_failed
    if last is None:
        runs = is_running(folder) or (attempt is not None and attempt.may_be_running)
        return ("running" if runs else "not started"), ""
    if last["event"] != "running":
        why = why_failed([last])
        return ("stopped", "") if why is None else ("failed", why)
    silent, interval = now - last["time"], max((last["time"] - last["began"]) / 200, 1.0)
    # Looking at the lock is left to the end: a run that starts at this moment would find it held.
    if silent < _MISSED_LINES * interval + _MARGIN_S or is_running(folder):
        return "running", ""
    return "killed", ""


def _eta_s(sessions: Sequence[Mapping[str, Any]], total: int | None, now: float) -> float | None:
    """Returns the time left, from the steps of the latest session after its first ones."""
    last = sessions[-1]
    own = [row for row in sessions if row["session"] == last["session"]]
    trained = [row for row in own if row["step"] > own[0]["step"]]
    if total is None or not trained or last["step"] <= trained[0]["step"]:
        return None
    first = trained[0]
    step_s = (last["time"] - first["time"]) / (last["step"] - first["step"])
    return max((total - last["step"]) * step_s - (now - last["time"]), 0.0)


def _score(
    figures: Mapping[str, Any], config: Mapping[str, Any], metric: str
) -> tuple[str, float | None]:
    """Returns the name and the value of the figure by which runs are compared."""
    own = (config.get("early_stopping") or {}).get("metric")
    accuracies = [
        name
        for prefix in _PREFIXES
        for name in figures
        if name.startswith(prefix) and name.endswith("accuracy_top1")
    ]
    for name in (metric, own, *accuracies):
        if name and isinstance(figures.get(name), int | float):
            return name, float(figures[name])
    return "", None
