"""Shows a sweep to the user: a live table on a terminal, one line per change elsewhere."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from vit_jax.run.job_folder import last_log_lines, read_all
from vit_jax.run.status import RunStatus, finished_status, read_status
from vit_jax.run.time_account import clock_text
from vit_jax.sweep.state import STATES, JobStatus

_COLOURS = {"failed": "red", "blocked": "red", "running": "green", "finished": "dim"}
_WIDTH_WITHOUT_TERMINAL = 160
# Terminal lines reserved for the table's header, its caption and the prompt.
_OTHER_LINES = 7


class TableView:
    """Shows the jobs. Use as a context manager."""

    at_once: int | None = None  # jobs at the same time; None: not limited, or not known yet

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
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, jobs: Sequence[JobStatus]) -> None:
        """Shows all jobs; without a terminal, prints only those whose state has changed."""
        changed = [job for job in jobs if self._shown.get(job.name) != (job.state, job.note)]
        if not (self._console.is_terminal or changed):
            return
        progress = read_jobs(jobs)
        left = sweep_eta_s(jobs, progress, self.at_once)
        if self._console.is_terminal:
            most = max(1, self._console.height - _OTHER_LINES)
            table = job_table(jobs, most, progress, self._eta(left))
            self._live.update(table, refresh=True)
            return
        finished = sum(job.state == "finished" for job in jobs)
        for job in changed:
            self._shown[job.name] = job.state, job.note
            if job.state not in ("waiting", "ready"):
                found = progress[job.name]
                line = [job.state, job.note, found.score_text, found.time_text, self._eta(left)]
                self.say(f"[{finished}/{len(jobs)}] {job.name}: {'  '.join(filter(None, line))}")

    def _eta(self, left: float | None) -> str:
        return "" if left is None else f"sweep eta {clock_text(left)}"

    def close(self, jobs: Sequence[JobStatus]) -> None:
        """Prints the final table and the last log lines of each failed job."""
        self._live.stop()
        self._console.print(job_table(jobs, len(jobs), read_jobs(jobs)))
        for job in jobs:
            if job.state == "failed":
                self.say(f"\n{job.name}: {job.note}; end of {job.job.folder / 'log.txt'}:")
                for line in last_log_lines(job.job.folder):
                    self.say(f"  {line}")


def job_table(
    jobs: Sequence[JobStatus], most: int, progress: Mapping[str, RunStatus], eta: str = ""
) -> Table:
    """Returns a table of at most `most` jobs, in the order of STATES if there are more.

    `progress` is by name of the job. `eta`, the time left of the sweep, is for the line below the
    table.
    """
    caption = ", ".join(filter(None, [summary(jobs), eta]))
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    table.add_column("job", overflow="fold")
    for column in ("step", "score", "time", "eta"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    hidden = max(0, len(jobs) - most)
    for job in sorted(jobs, key=lambda job: STATES.index(job.state))[:most] if hidden else jobs:
        state = f"{job.state}: {job.note}" if job.state in ("failed", "blocked") else job.state
        state = f"[{_COLOURS.get(job.state, 'none')}]{escape(state)}[/]"
        found = progress[job.name]
        figures = (found.steps_text, found.score_text, found.time_text, found.eta_text)
        table.add_row(escape(job.name), *figures, state)
    if hidden:
        table.add_row(f"and {hidden} more")
    return table


def summary(jobs: Sequence[JobStatus]) -> str:
    """Returns the number of jobs in each state, such as "3 finished, 1 running"."""
    counts = Counter(job.state for job in jobs)
    return ", ".join(f"{counts[state]} {state}" for state in reversed(STATES) if counts[state])


def sweep_eta_s(
    jobs: Sequence[JobStatus], progress: Mapping[str, RunStatus], at_once: int | None
) -> float | None:
    """Returns the time until all jobs have ended; None: it is not known yet.

    A job that has not run counts as the mean of the finished ones. `at_once` is the number of jobs
    that run at the same time; None: as many as do now.
    """
    ended = ("finished", "failed", "blocked")
    running = [progress[job.name].eta_s for job in jobs if job.state == "running"]
    waiting = [job for job in jobs if job.state not in ("running", *ended)]
    taken = [
        seconds
        for job in jobs
        if job.state == "finished" and (seconds := progress[job.name].seconds) is not None
    ]
    known = [eta for eta in running if eta is not None]
    if len(known) < len(running) or (waiting and not taken) or not (running or waiting):
        return None
    work = sum(known) + len(waiting) * (sum(taken) / len(taken) if taken else 0.0)
    return max([work / max(at_once or len(running), 1), *known])


def read_jobs(jobs: Sequence[JobStatus]) -> dict[str, RunStatus]:
    """Returns name -> progress of all jobs; many files are read at the same time."""
    return dict(zip([job.name for job in jobs], read_all(_read_job, jobs), strict=True))


def _read_job(status: JobStatus) -> RunStatus:
    """Returns a job's steps, score, how long it took or has been running, and the time left."""
    job = status.job
    score = job.selection.metric if job.selection is not None and job.final_of is None else ""
    if status.result is not None:
        found, attempt = finished_status(status.result, {}, metric=score), status.attempt
        if found.seconds is None and attempt is not None and attempt.ended is not None:
            found = dataclasses.replace(found, seconds=attempt.ended - attempt.started)
        return found
    if status.state != "running" and status.attempt is None:
        found = RunStatus("not started")
    else:
        found = read_status(job.folder, running=status.state == "running", metric=score)
    if found.total_steps is None and job.config is not None:
        found = dataclasses.replace(found, total_steps=job.config.train_steps)
    return found
