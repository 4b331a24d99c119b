"""Console output of a run: two live lines on a terminal, plain lines in a file or a pipe."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from vit_jax.run.time_account import PARTS, clock_text, duration_text

# Shortest time between two plain lines of logged steps, and the longest time without any line.
_LINE_INTERVAL_S, _LONGEST_SILENCE_S = 2.0, 30.0
# Seconds between two updates of the figures on a terminal.
_FIGURES_INTERVAL_S = 1.0
# A run says how long it will take if that is longer, once its steps were timed for this long.
_LONG_RUN_S, _TIMED_S = 600.0, 3.0


class ProgressView:
    """Shows steps, loss, speed, time left and what comes next. Use as a context manager.

    Only the first host prints, so `enabled` is False on the others.

    Attributes:
        console: what is printed here appears above the live lines.
        upcoming: what happens at intervals, e.g. "evaluation" -> function from a step to the next
            step after which it happens; None: not known yet.
    """

    def __init__(self, total_steps: int, start_step: int, *, enabled: bool = True):
        self.console = Console(quiet=not enabled)
        self.upcoming: dict[str, Callable[[int], int | None]] = {}
        self._total, self._step = total_steps, start_step
        self._begin = time.perf_counter()
        # Step and time after the first step of this session, which includes warm-up.
        self._first: tuple[int, float] | None = None
        self._said_how_long = False
        self._shown_at = 0.0
        self._figures: list[str] = []
        self._stage: tuple[str, float, Spinner] | None = None
        self._live: Live | None = None
        if self.console.is_terminal and enabled:
            self._live = Live(
                console=self.console,
                get_renderable=self._render,
                redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
            )

    def __enter__(self) -> "ProgressView":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def print_line(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def stage(self, text: str, *, line: bool = False) -> Iterator[None]:
        """Shows on a terminal what training waits for, such as "evaluating".

        Elsewhere, `line` prints it as a line.
        """
        if line and self._live is None:
            self.print_line(text)
        before, self._stage = self._stage, (text, time.perf_counter(), Spinner("dots"))
        try:
            yield
        finally:
            self._stage = before

    def begin_steps(self) -> None:
        """Starts to time the first step."""
        self._begin = time.perf_counter()

    def advance(self, step: int, loss: float, speed: Callable[[], Mapping[str, float]]) -> None:
        """Shows a finished step, if nothing was shown for some time.

        `speed` is called only then.
        """
        self._step, now = step, time.perf_counter()
        if self._first is None:
            self._first, self._shown_at = (step, now), now
            self._figures = [f"loss {loss:.4f}"]
            took = duration_text(now - self._begin)
            self.print_line(f"step {step}/{self._total}  loss {loss:.4f}  first step: {took}")
            return
        self._say_how_long(now)
        terminal = self._live is not None
        if now - self._shown_at > (_FIGURES_INTERVAL_S if terminal else _LONGEST_SILENCE_S):
            self.show_step(step, {"train/loss": loss, **speed()}, now=True)

    def show_step(self, step: int, metrics: Mapping[str, float], *, now: bool = False) -> None:
        """Shows the metrics of a step, unless `now` is false and a line was printed just before."""
        figures = [
            f"loss {metrics['train/loss']:.4f}",
            f"{metrics['train/images_per_second']:,.0f} images/s",
        ]
        if "train/mfu" in metrics:
            figures.append(f"MFU {metrics['train/mfu']:.1%}")
        figures.append(f"data wait {metrics['train/data_wait_fraction']:.0%}")
        since = time.perf_counter() - self._shown_at
        self._figures = figures
        if self._live is not None:
            self._shown_at += since
        elif now or since > _LINE_INTERVAL_S or step == self._total:
            self._shown_at += since
            parts = [*figures, f"eta {self._eta(step)}", *self._upcoming(step)]
            self.print_line("  ".join([f"step {step}/{self._total}", *parts]))

    def show_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        shown = [
            f"{name.removeprefix('eval/')} {value:.4f}"
            for name, value in metrics.items()
            if name.endswith(("accuracy_top1", "loss"))
        ]
        if shown:
            self.print_line(f"step {step}  " + "  ".join(shown))

    def _say_how_long(self, now: float) -> None:
        """Says once how long the run will take, if the first steps show that it is long."""
        left, first = self._seconds_left(self._step), self._first
        if self._said_how_long or left is None or first is None or now - first[1] < _TIMED_S:
            return
        self._said_how_long = True
        if left > _LONG_RUN_S:
            step_s = (now - first[1]) / (self._step - first[0])
            self.print_line(
                f"this run will take about {duration_text(left)} more:"
                f" {self._total - self._step:,} steps of {duration_text(step_s)}"
            )

    def _upcoming(self, step: int) -> list[str]:
        """Returns what comes next, e.g. "next evaluation 100"."""
        found = {name: next_step(step) for name, next_step in self.upcoming.items()}
        return [f"next {name} {at}" for name, at in found.items() if at is not None and at > step]

    def _seconds_left(self, step: int) -> float | None:
        if self._first is None or step <= self._first[0]:
            return None
        first, since = self._first
        return (time.perf_counter() - since) / (step - first) * (self._total - step)

    def _eta(self, step: int) -> str:
        left = self._seconds_left(step)
        return "-" if left is None else clock_text(left)

    def _render(self) -> RenderableType:
        """Returns the live lines: the bar, then the figures, both at most as wide as a terminal."""
        stage = self._stage
        rows: list[RenderableType] = []
        if self._first is not None:
            bar = Table.grid(padding=(0, 1), expand=True)
            bar.add_column()
            bar.add_column(ratio=1)
            bar.add_column()
            bar.add_row(
                Text(f"step {self._step}/{self._total}", style="bold"),
                ProgressBar(total=self._total, completed=self._step),
                f"eta {self._eta(self._step)}",
            )
            parts = [*self._figures, *self._upcoming(self._step)]
            rows += [bar, Text("  ".join(parts), no_wrap=True, overflow="ellipsis")]
        if stage is not None:
            text, since, spinner = stage
            spinner.update(text=f"{text}: {time.perf_counter() - since:.0f} s")
            rows.append(spinner)
        return Group(*rows)


def print_summary(title: str, result: dict[str, Any]) -> None:
    """Prints the figures of a result.json, and where the time of the run went."""
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in result.items():
        if name != "seconds":
            table.add_row(name, _format(value))
    Console().print(table)
    if "seconds" in result:
        _print_seconds(result["seconds"])


def _print_seconds(seconds: dict[str, float]) -> None:
    total = sum(seconds.values())
    table = Table(title=f"where {total:,.1f} s went", title_justify="left")
    table.add_column("part")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    table.add_column("what it is")
    for part, value in seconds.items():
        if value:
            table.add_row(part, f"{value:,.1f}", f"{value / total:.1%}", PARTS.get(part, ""))
    Console().print(table)


def _format(value: Any) -> str:
    if isinstance(value, float):
        if 0 < abs(value) < 1e-3:
            return f"{value:.3g}"
        return f"{value:,.4f}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
