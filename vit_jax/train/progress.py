"""Console output of a run: a progress bar on a terminal, plain lines elsewhere."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from vit_jax.run.time_account import PARTS


class ProgressView:
    """Shows steps, loss, speed and time left. Use as a context manager.

    Args:
        total_steps: number of steps of the run.
        start_step: step that this session starts from.
        enabled: False prints nothing. Only the first host prints.

    Attributes:
        console: what is printed here appears above the bar.
    """

    def __init__(self, total_steps: int, start_step: int, *, enabled: bool = True):
        self.console = Console(quiet=not enabled)
        self._total, self._first = total_steps, start_step
        self._begin: float | None = None
        self._last_line = 0.0
        self._bar: Progress | None = None
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("[bold]train"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]}"),
                TextColumn("{task.fields[speed]} images/s"),
                TextColumn("eta {task.fields[eta]}"),
                console=self.console,
            )
            self._task = self._bar.add_task(
                "", total=total_steps, completed=start_step, loss="-", speed="-", eta="-"
            )

    def __enter__(self) -> "ProgressView":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def print_line(self, text: str) -> None:
        """Prints a line above the bar."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def advance(self, step: int) -> None:
        """Advances the bar to a step."""
        if self._begin is None:
            # The first step includes warm-up, so the time estimate starts after it. The bar starts
            # here too, below anything that was logged while compiling.
            self._begin, self._first = time.perf_counter(), step
            if self._bar is not None:
                self._bar.start()
        if self._bar is not None:
            self._bar.update(self._task, completed=step, eta=self._eta(step))

    def show_step(self, step: int, metrics: dict[str, float]) -> None:
        """Shows the metrics of a training step."""
        loss = f"{metrics['train/loss']:.4f}"
        speed = f"{metrics['train/images_per_second']:,.0f}"
        if self._bar is not None:
            self._bar.update(self._task, loss=loss, speed=speed)
        elif time.perf_counter() - self._last_line > 2 or step == self._total:
            self._last_line = time.perf_counter()
            self.print_line(
                f"step {step}/{self._total}  loss {loss}  {speed} images/s  eta {self._eta(step)}"
            )

    def show_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Shows the losses and accuracies of an evaluation."""
        shown = [
            f"{name.removeprefix('eval/')} {value:.4f}"
            for name, value in metrics.items()
            if name.endswith(("accuracy_top1", "loss"))
        ]
        if shown:
            self.print_line(f"step {step}  " + "  ".join(shown))

    def _eta(self, step: int) -> str:
        if self._begin is None or step <= self._first:
            return "-"
        left = (time.perf_counter() - self._begin) / (step - self._first) * (self._total - step)
        return f"{int(left // 3600)}:{int(left % 3600 // 60):02d}:{int(left % 60):02d}"


def print_summary(title: str, result: dict[str, Any]) -> None:
    """Prints the figures of a result.json, and where the time of the run went."""
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in result.items():
        if name != "seconds":
            table.add_row(name, _format(value))
    Console().print(table)
    if "seconds" in result:  # Older versions did not write them.
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
