"""The columns of a report that are computed from a run.

To add a column, write a function of a run and add a line to COLUMNS.
"""

import json
import os
import platform
from collections.abc import Callable
from typing import Any

from vit_jax.errors import UserError
from vit_jax.report.labels import family
from vit_jax.report.runs import Run

STATES = ("finished", "running", "unfinished", "failed", "diverged", "not started")
# Exit codes after which the same command continues the run: success, stopped after saving a
# checkpoint, lost a host, SIGTERM, SIGINT.
_NOT_FAILED = (None, 0, 75, 76, -15, -2)


def state(run: Run) -> str:
    """Returns one of STATES."""
    attempt = run.attempt
    if run.finished:
        return "finished"
    if run.divergence_reports:
        return "diverged"
    if attempt.get("failure") or attempt.get("exit_code") not in _NOT_FAILED:
        return "failed"
    if attempt and attempt.get("ended") is None and _may_be_running(attempt):
        return "running"
    return "unfinished" if run.metrics or run.environment else "not started"


def _may_be_running(attempt: dict[str, Any]) -> bool:
    """Whether a job's process is alive. One on another machine is assumed to be alive."""
    if attempt.get("host") != platform.node():
        return True
    try:
        os.kill(int(attempt.get("pid") or 0), 0)
    except (OSError, ValueError):
        return False
    return True


def _name(label: str, key: str) -> Callable[[Run], Any]:
    """Returns a column with a label, or else a config key, or else what the result has."""

    def named(run: Run) -> Any:
        configured = run.config.get(label, run.config.get(key, run.result.get(label)))
        return run.labels.get(label, configured)

    return named


def seed(run: Run) -> Any:
    """Returns the seed, from the config or else from the labels."""
    return run.config.get("seed", run.labels.get("seed"))


def device(run: Run) -> str | None:
    """Returns the devices it ran on, e.g. "8 x TPU v4, 2 hosts"."""
    if "device_kind" not in run.environment:
        return None
    hosts = run.environment.get("host_count", 1)
    count, kind = run.environment.get("device_count", 1), run.environment["device_kind"]
    return f"{count} x {kind}" + (f", {hosts} hosts" if hosts > 1 else "")


def revision(run: Run) -> str | None:
    """Returns the git revision of the code."""
    return run.environment.get("git_revision")


def step(run: Run) -> int | None:
    """Returns the last step in the files."""
    return run.result.get("step", max((row["step"] for row in run.metrics), default=None))


def wall_time_s(run: Run) -> float | None:
    """Returns the seconds from the start to the end, or to the last line of metrics.jsonl."""
    times = [row["time"] for row in run.metrics if "time" in row]
    return run.result.get("wall_time_s", max(times) - min(times) if times else None)


def train_examples(run: Run) -> int | None:
    """Returns the number of distinct examples in the training split."""
    return run.result.get("train_examples", run.subset.get("examples"))


def examples_seen(run: Run) -> int | None:
    """Returns steps times batch size."""
    seen, batch_size = run.result.get("examples_seen"), run.config.get("data.global_batch_size")
    if seen is None and batch_size and step(run) and "optimizer.learning_rate" in run.config:
        return batch_size * step(run)
    return seen


def train_exaflops(run: Run) -> float | None:
    """Returns the training compute in 1e18 FLOPs; computed if result.json has none."""
    seen = examples_seen(run)
    if "train_exaflops" in run.result or seen is None:
        return run.result.get("train_exaflops")
    per_image = _flops_per_image(run)
    return None if per_image is None else per_image * seen / 1e18


def _flops_per_image(run: Run) -> int | None:
    """Returns the operations of training on one image, for classifiers of known sizes."""
    from vit_jax.config.upgrade import upgrade_model
    from vit_jax.models.flops import forward_macs, training_flops
    from vit_jax.models.registry import model_options

    size = run.config.get("data.image_size")
    num_classes = run.config.get("data.num_classes") or len(run.classes)
    if not size or not num_classes or run.config.get("task", "classification") != "classification":
        return None
    try:
        mapping = json.loads((run.path / "config.json").read_text())
        options = model_options(**upgrade_model(mapping["model"]))
        macs = forward_macs(options, num_classes=num_classes, image_size=(size, size))
        return training_flops(macs)
    except (UserError, KeyError, TypeError, OSError):
        return None


def _pretraining(figure: Callable[[Run], Any], merge: Callable[[Any], Any]) -> Callable[[Run], Any]:
    """Returns a column that merges a figure over a run's ancestors, or takes the run's own."""

    def over_ancestors(run: Run) -> Any:
        values = [figure(one) for one in run.ancestors or [run]]
        return None if run.unknown_init or None in values else merge(values)

    return over_ancestors


# Column -> function of a run. Columns of numbers are also metrics.
COLUMNS: dict[str, Callable[[Run], Any]] = {
    "name": lambda run: run.name,
    "state": state,
    "stage": lambda run: run.job.get("stage"),
    "model": _name("model", "model.name"),
    "family": lambda run: family(COLUMNS["model"](run)),
    "dataset": _name("dataset", "data.name"),
    "seed": seed,
    "device": device,
    "revision": revision,
    "step": step,
    "wall_time_s": wall_time_s,
    "train_examples": train_examples,
    "examples_seen": examples_seen,
    "train_exaflops": train_exaflops,
    "pretrain_examples": _pretraining(train_examples, max),
    "pretrain_exaflops": _pretraining(train_exaflops, sum),
}


def unknown_pretraining(run: Run) -> str:
    """Returns why the pre-training of a run is not known; "" if it is."""
    known = None not in (COLUMNS["pretrain_examples"](run), COLUMNS["pretrain_exaflops"](run))
    if known or run.unknown_init or not run.ancestors:
        return run.unknown_init
    return f"{run.ancestors[0].name} does not say what it was trained on"
