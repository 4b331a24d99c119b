"""Shows a sweep to the user: a live table on a terminal, one line per change elsewhere."""

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from vit_jax.sweep.job_folder import last_log_lines, log_file
from vit_jax.sweep.plan import Plan
from vit_jax.sweep.status import STATES, JobStatus, SweepStatus

_COLOURS = {"failed": "red", "blocked": "red", "running": "green", "finished": "dim"}
_WIDTH_WITHOUT_TERMINAL = 160
# Terminal lines reserved for the table's header, its caption and the prompt.
_OTHER_LINES = 7


class TableView:
    """Shows the jobs. Use as a context manager."""

    def __init__(self) -> None:
        console = Console()
        self._is_terminal = console.is_terminal
        self._console = console if self._is_terminal else Console(width=_WIDTH_WITHOUT_TERMINAL)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._shown: dict[str, tuple[str, str]] = {}

    def __enter__(self) -> "TableView":
        if self._is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Prints a line above the table."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, status: SweepStatus) -> None:
        """Shows all jobs; without a terminal, prints only those whose state has changed."""
        jobs = list(status.jobs.values())
        if self._is_terminal:
            most = max(1, self._console.height - _OTHER_LINES)
            self._live.update(job_table(jobs, most, status.plan), refresh=True)
            return
        finished = sum(job.state == "finished" for job in jobs)
        for job in jobs:
            now = (job.state, job.note if job.state in ("failed", "blocked") else "")
            changed = self._shown.get(job.job.name, ("waiting", "")) != now
            self._shown[job.job.name] = now
            if changed and job.state not in ("waiting", "ready"):
                details = filter(None, [job.note, _score(job, status.plan), _time(job.seconds)])
                line = "  ".join([job.state, *details])
                self.say(f"[{finished}/{len(jobs)}] {job.job.name}: {line}")

    def close(self, status: SweepStatus) -> None:
        """Prints the final table and the last log lines of each failed job."""
        self._live.stop()
        jobs = list(status.jobs.values())
        self._console.print(job_table(jobs, len(jobs), status.plan))
        for job in jobs:
            if job.state == "failed":
                self.say(f"\n{job.job.name}: {job.note}; end of {log_file(job.job.folder)}:")
                for line in last_log_lines(job.job.folder):
                    self.say(f"  {line}")


def job_table(jobs: Sequence[JobStatus], most: int, plan: Plan) -> Table:
    """Returns a table of at most `most` jobs, in the order of STATES if there are more."""
    shown = jobs
    if len(jobs) > most:
        shown = sorted(jobs, key=lambda job: STATES.index(job.state))[:most]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("job", overflow="fold")
    for column in ("step", "score", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for job in shown:
        steps = f"{job.step:,}/{job.total:,}" if job.total else f"{job.step:,}" if job.step else ""
        state = f"{job.state}: {job.note}" if job.state in ("failed", "blocked") else job.state
        colour = _COLOURS.get(job.state, "none")
        table.add_row(
            escape(job.job.name),
            steps,
            _score(job, plan),
            _time(job.seconds),
            f"[{colour}]{escape(state)}[/]",
        )
    if len(shown) < len(jobs):
        table.add_row(f"and {len(jobs) - len(shown)} more", "", "", "", "")
    table.caption, table.caption_justify = escape(summary(jobs)), "left"
    return table


def summary(jobs: Sequence[JobStatus]) -> str:
    """Returns the number of jobs in each state, such as "3 finished, 1 running"."""
    counts = Counter(job.state for job in jobs)
    return ", ".join(f"{counts[state]} {state}" for state in reversed(STATES) if counts[state])


def _score(job: JobStatus, plan: Plan) -> str:
    """Returns the score of the job's selection, or else a top-1 accuracy."""
    keys = [key for key in job.scores if key.endswith("accuracy_top1")]
    if job.job.job.selection and job.job.job.stage == "search":
        keys = [plan.selections[job.job.job.selection].metric, *keys]
    for key in keys:
        if isinstance(job.scores.get(key), int | float):
            name = key.removeprefix("eval/").removesuffix("/accuracy_top1")
            return f"{name} {job.scores[key]:.4f}"
    return ""


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
