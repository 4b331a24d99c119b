"""Shows a sweep to the user: a live table on a terminal, one line per change elsewhere."""

import datetime
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from vit_jax.run.job_folder import last_log_lines, read_attempt, read_progress
from vit_jax.sweep.plan import PlannedJob
from vit_jax.sweep.state import STATES, JobStatus

_COLOURS = {"failed": "red", "blocked": "red", "running": "green", "finished": "dim"}
_WIDTH_WITHOUT_TERMINAL = 160
# Terminal lines reserved for the table's header, its caption and the prompt.
_OTHER_LINES = 7


class TableView:
    """Shows the jobs. Use as a context manager."""

    def __init__(self) -> None:
        console = Console()
        self._console = console if console.is_terminal else Console(width=_WIDTH_WITHOUT_TERMINAL)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._shown: dict[str, tuple[str, str]] = {}

    def __enter__(self) -> "TableView":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Prints a line above the table."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, jobs: Sequence[JobStatus]) -> None:
        """Shows all jobs; without a terminal, prints only those whose state has changed."""
        if self._console.is_terminal:
            most = max(1, self._console.height - _OTHER_LINES)
            self._live.update(job_table(jobs, most), refresh=True)
            return
        finished = sum(job.state == "finished" for job in jobs)
        for job in jobs:
            now = job.state, job.note
            if self._shown.get(job.name) != now and job.state not in ("waiting", "ready"):
                _, score, taken = _progress(job)
                line = "  ".join(filter(None, [job.state, job.note, score, taken]))
                self.say(f"[{finished}/{len(jobs)}] {job.name}: {line}")
            self._shown[job.name] = now

    def close(self, jobs: Sequence[JobStatus]) -> None:
        """Prints the final table and the last log lines of each failed job."""
        self._live.stop()
        self._console.print(job_table(jobs, len(jobs)))
        for job in jobs:
            if job.state == "failed":
                self.say(f"\n{job.name}: {job.note}; end of {job.job.folder / 'log.txt'}:")
                for line in last_log_lines(job.job.folder):
                    self.say(f"  {line}")


def job_table(jobs: Sequence[JobStatus], most: int) -> Table:
    """Returns a table of at most `most` jobs, in the order of STATES if there are more."""
    table = Table(box=box.SIMPLE_HEAD, caption=summary(jobs), caption_justify="left")
    table.add_column("job", overflow="fold")
    for column in ("step", "score", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    hidden = max(0, len(jobs) - most)
    for job in sorted(jobs, key=lambda job: STATES.index(job.state))[:most] if hidden else jobs:
        state = f"{job.state}: {job.note}" if job.state in ("failed", "blocked") else job.state
        state = f"[{_COLOURS.get(job.state, 'none')}]{escape(state)}[/]"
        table.add_row(escape(job.name), *_progress(job), state)
    if hidden:
        table.add_row(f"and {hidden} more")
    return table


def summary(jobs: Sequence[JobStatus]) -> str:
    """Returns the number of jobs in each state, such as "3 finished, 1 running"."""
    counts = Counter(job.state for job in jobs)
    return ", ".join(f"{counts[state]} {state}" for state in reversed(STATES) if counts[state])


def _progress(status: JobStatus) -> tuple[str, str, str]:
    """Returns a job's steps, its score and how long it took or has been running."""
    job, attempt, total = status.job, status.attempt, None
    step, scores = 0, dict[str, float]()
    if status.result is None and (attempt is not None or status.state == "running"):
        attempt = attempt or read_attempt(job.folder)
        step, total, scores = read_progress(job.folder)
    seconds = None if attempt is None else (attempt.ended or time.time()) - attempt.started
    if job.config is not None and job.config.train_steps is not None:
        total = job.config.train_steps
    if status.result is not None:
        step, scores = int(status.result.get("step", step)), status.result
        total, seconds = step or total, scores.get("wall_time_s", seconds)
    steps = f"{step:,}/{total:,}" if total else f"{step:,}" if step else ""
    taken = "" if seconds is None else str(datetime.timedelta(seconds=round(seconds)))
    return steps, _score(job, scores), taken


def _score(job: PlannedJob, scores: Mapping[str, Any]) -> str:
    """Returns the score of the job's selection, or else a top-1 accuracy."""
    keys = [key for key in scores if key.endswith("accuracy_top1")]
    if job.selection is not None and job.final_of is None:
        keys = [job.selection.metric, *keys]
    for key in keys:
        if isinstance(scores.get(key), int | float):
            name = key.removeprefix("eval/").removesuffix("/accuracy_top1")
            return f"{name} {scores[key]:.4f}"
    return ""
