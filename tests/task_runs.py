"""Short runs on the digits: their config, and the check that a stopped run resumes bit for bit."""

import pytest
from processes import UNMIXED
from shared_programs import shared_program, stop_after

from vit_jax.config.file import load_config
from vit_jax.parallel.mesh import make_mesh
from vit_jax.run.metrics import read_metrics
from vit_jax.train.loop import train
from vit_jax.train.signals import Stopped, StopSignals


def run_mapping(train_steps, *, size=16, **changes):
    """The content of a config: batches of 16, one checkpoint at the end, every step logged."""
    usual = {
        "data": {
            "name": "digits", "image_size": size, "global_batch_size": 16, "eval_crop": "resize",
            "augment": {"crop": {"name": "resize"}, "flip": True},
        },
        "optimizer": {"learning_rate": 1e-2},
        "train_steps": train_steps,
        "evaluation": {"splits": {"test": "test"}},
        "checkpoint": {"interval_steps": train_steps},
        "logging": {"interval_steps": 1, "tensorboard": False, "curves": False},
    }  # fmt: skip
    return usual | changes


def digits_config(digits_dir, *overrides):
    """A run of 20 steps on the digits that is evaluated every ten steps and saved every five."""
    usual = [
        f"data.data_dir={digits_dir}", "train_steps=20", "evaluation.interval_steps=10",
        "checkpoint.interval_steps=5", "logging.interval_steps=5",
        "optimizer.schedule.warmup_steps=2",
    ]  # fmt: skip
    return load_config(UNMIXED, [*usual, *overrides])


def program_of(config):
    """The program that a run on the digits has."""
    return shared_program(config, make_mesh(config.mesh), num_classes=10, num_examples=1437)


def steps_of(folder):
    """The rows of the training steps in metrics.jsonl."""
    return [row for row in read_metrics(folder / "metrics.jsonl") if "train/loss" in row]


def losses_of(folder):
    """Step -> loss of a training step, in metrics.jsonl."""
    return {row["step"]: row["train/loss"] for row in steps_of(folder)}


def stop_in_evaluation(evaluator, call, step, config, workdir, monkeypatch):
    """Trains until the evaluator's n-th call, at a step, in which the run is told to stop."""
    stop, calls, original = StopSignals(), [], evaluator.__call__

    def evaluate(*arguments, **options):
        calls.append(1)
        stop.requested = len(calls) == call
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(evaluator, "__call__", evaluate)
        with pytest.raises(Stopped, match=f"step {step}"):
            train(config, workdir, stop)


def assert_resumes(config, finished, want, tmp_path, monkeypatch, step=2):
    """A run stopped after a step has the losses and the result of the finished one."""
    with monkeypatch.context() as patch, pytest.raises(Stopped, match=f"step {step}"):
        train(config, tmp_path / "stopped", stop_after(step, patch))
    got = train(config, tmp_path / "stopped", StopSignals())
    assert got | {"wall_time_s": 0, "seconds": 0} == want | {"wall_time_s": 0, "seconds": 0}
    losses = [
        [(row["step"], row["train/loss"]) for row in steps_of(folder)]
        for folder in (finished, tmp_path / "stopped")
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == config.train_steps
