"""What a run prints while it runs, on a terminal and in a file."""

import io

import pytest
from rich.console import Console

from vit_jax.config.durations import next_due
from vit_jax.train import progress as progress_module
from vit_jax.train.progress import ProgressView

SPEED = {"train/images_per_second": 1234.4, "train/data_wait_fraction": 0.021, "train/mfu": 0.4123}


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets: clock[0] is the time."""
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "perf_counter", lambda: now[0])
    return now


def view(monkeypatch, *, terminal, width=80):
    """A view of a run of 1,000 steps, and the stream that it prints to."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=width, height=20)
    monkeypatch.setattr(progress_module, "Console", lambda quiet: console)
    made = ProgressView(1000, 0)
    made.upcoming = {
        "evaluation": lambda step: next_due(step, 100),
        "save": lambda step: None if step < 10 else 250,
    }
    return made, stream


def test_a_file_gets_the_first_step_at_once_and_lines_with_all_figures(monkeypatch, clock):
    shown, stream = view(monkeypatch, terminal=False)
    with shown, shown.stage("compiling the training step", line=True):
        shown.begin_steps()
    clock[0] += 4.0
    shown.advance(1, 2.3026, dict)
    clock[0] += 40.0  # 9 steps.
    shown.advance(10, 2.0, lambda: SPEED)
    clock[0] += 1.0
    shown.show_step(20, {"train/loss": 1.9, **SPEED})  # Too soon after the last line.
    clock[0] += 9.0
    shown.show_step(20, {"train/loss": 1.9, **SPEED})
    figures = "1,234 images/s  MFU 41.2%  data wait 2%"
    assert stream.getvalue().splitlines() == [
        "compiling the training step",
        "step 1/1000  loss 2.3026  first step: 4 s",
        "this run will take about 73.3 min more: 990 steps of 4.44 s",
        f"step 10/1000  loss 2.0000  {figures}  eta 1:13:20  next evaluation 100  next save 250",
        f"step 20/1000  loss 1.9000  {figures}  eta 0:42:58  next evaluation 100  next save 250",
    ]


def test_a_short_run_does_not_say_how_long_it_takes(monkeypatch, clock):
    shown, stream = view(monkeypatch, terminal=False)
    for step in range(1, 20):
        clock[0] += 0.4
        shown.advance(step, 2.0, lambda: SPEED)
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize("width", [60, 120])
def test_a_terminal_shows_two_lines_no_wider_than_itself(monkeypatch, clock, width):
    shown, _ = view(monkeypatch, terminal=True, width=width)
    shown.advance(1, 2.3, dict)
    clock[0] += 30.0
    shown.advance(250, 2.0, lambda: SPEED)
    console = Console(width=width)
    with console.capture() as capture:
        console.print(shown._render())
    bar, figures = capture.get().splitlines()
    assert bar.startswith("step 250/1000 ")
    assert bar.rstrip().endswith("eta 0:01:30")
    assert len(bar) <= width >= len(figures)
    whole = "loss 2.0000  1,234 images/s  MFU 41.2%  data wait 2%  next evaluation 300"
    assert whole.startswith(figures.rstrip("…")) or figures == whole


def test_lines_above_the_live_lines_leave_them_as_they_are(monkeypatch, clock):
    shown, stream = view(monkeypatch, terminal=True)
    with shown:
        for step in range(1, 4):
            shown.advance(step, 2.0, lambda: SPEED)
            shown._live.refresh()  # A line is printed with the live lines as they were last shown.
            shown.show_evaluation(step, {"eval/test/loss": 1.0})
    assert "step 3/1000" in stream.getvalue()
    assert "[bold]" not in stream.getvalue()


def test_a_terminal_shows_what_training_waits_for(monkeypatch, clock):
    shown, _ = view(monkeypatch, terminal=True)
    console = Console(width=80)
    with shown.stage("evaluating"):
        clock[0] += 7.0
        with console.capture() as capture:
            console.print(shown._render())
    assert capture.get().rstrip().endswith("evaluating: 7 s")
    with console.capture() as capture:
        console.print(shown._render())
    assert not capture.get().strip()
