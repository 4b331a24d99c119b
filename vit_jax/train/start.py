"""The state that a run starts from: its latest checkpoint, other weights, or a new model."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from vit_jax.config.run import Config
from vit_jax.data.order import order_version
from vit_jax.data.sources import Source
from vit_jax.errors import CheckpointError, DamagedError, DataError
from vit_jax.interop.report import LoadReport
from vit_jax.parallel.processes import gather
from vit_jax.run.checkpoints import ARRAYS, CheckpointFolder
from vit_jax.run.restore import Restored
from vit_jax.train.init_from import start_from_weights
from vit_jax.train.program import Program
from vit_jax.train.state import TrainState

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Start:
    """The state that a session of a run starts from."""

    state: TrainState
    step: int  # number of updates made
    elapsed_s: float  # time that earlier sessions of this run took
    report: LoadReport | None = None  # None: the run does not start from other weights
    early_stopping: dict[str, Any] | None = None  # its saved state; None: a new run, or off
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    sums: Mapping[str, float] = dataclasses.field(default_factory=dict)  # see `StepLog`
    skipped: Sequence[int] = ()  # indices of the bad examples so far
    evaluated: Mapping[str, str] = dataclasses.field(default_factory=dict)  # split -> fingerprint


def saved_items(program: Program) -> dict[str, Any]:
    """Returns item of a checkpoint -> tree of `jax.ShapeDtypeStruct` with shardings."""
    trees = {item: getattr(program.abstract, attribute) for item, attribute in ARRAYS.items()}
    return {item: tree for item, tree in trees.items() if tree is not None}


def restore_or_init(program: Program, checkpoints: CheckpointFolder, source: Source) -> Start:
    """Returns the newest state that was saved, or a new one (from `init_from` if it is set).

    Damaged checkpoints that are newer are renamed, so that they stay and no reader finds them.
    """
    config, abstract = program.config, program.abstract
    found = _restore(program, checkpoints)
    if found is None:
        if config.init_from is None:
            return Start(program.init(), 0, 0.0)
        state, report = start_from_weights(program, source)
        return Start(state, 0, 0.0, report=report)
    expected = data_position(config, source, found.step)
    saved = {name: found.data.get(name) for name in expected}
    _check_position(saved, expected, found.step)
    if saved != expected:
        raise DataError(
            f"checkpoint at data position {saved}",
            f"{expected}",
            "restore the dataset that the run started with, or choose another --workdir",
        )
    log.info("resuming from step %d", found.step)
    state = TrainState(
        jax.device_put(np.int32(found.step), abstract.step.sharding),
        found.arrays["params"],
        found.arrays["optimizer"],
        found.arrays.get("ema"),
        found.arrays.get("extra"),
    )
    return Start(
        state,
        found.step,
        found.data["elapsed_s"],
        early_stopping=found.data.get("early_stopping"),
        seconds=found.data.get("seconds", {}),
        sums=found.data.get("sums", {}),
        skipped=found.data.get("skipped", ()),
        evaluated=found.data.get("evaluated", {}),
    )


def _check_position(saved: dict[str, Any], expected: dict[str, Any], step: int) -> None:
    """Raises CheckpointError for a data position that no run has written."""
    known = {name: value for name, value in expected.items() if name != "order"}  # May be absent.
    if saved["step"] != step or any(type(saved[k]) is not type(v) for k, v in known.items()):
        raise CheckpointError(
            f"the data position of the checkpoint of step {step} is damaged: {saved}",
            f"values such as {expected}",
            f"remove the folder checkpoints/{step} to go back to the one before",
        )


def _restore(program: Program, checkpoints: CheckpointFolder) -> Restored | None:
    """Returns the newest state that is not damaged; None: none was saved yet."""
    while True:
        steps = checkpoints.steps()
        _check_same_steps(steps)
        if not steps:
            return None
        try:
            return checkpoints.restore(saved_items(program), steps[-1])
        except DamagedError as error:
            if len(steps) == 1:
                raise CheckpointError(
                    error.got,
                    "a checkpoint that was saved whole, and the run has no other",
                    "restore that folder from a copy, or choose another --workdir",
                ) from None
            aside = checkpoints.set_aside(steps[-1])
            log.warning(
                "%s; going back to step %d, and keeping it as %s", error.got, steps[-2], aside
            )


def _check_same_steps(steps: list[int]) -> None:
    """Raises CheckpointError on all processes if they do not see the same checkpoints."""
    first, *others = gather("compare checkpoints", steps)
    for process, other in enumerate(others, start=1):
        if other != first:
            raise CheckpointError(
                f"process {process} sees checkpoints of steps {other}, process 0 of {first}",
                "one folder that all hosts share",
                "put --workdir on a shared disk, or wait until all hosts see the same files",
            )


def data_position(config: Config, source: Source, step: int) -> dict[str, Any]:
    """Returns everything that determines the next batches: seed, step, dataset and its order."""
    return {
        "step": step,
        "seed": config.seed,
        "examples_seen": step * config.data.global_batch_size,
        "dataset": source.name,
        "fingerprint": source.fingerprint,
        **order_version(len(source)),
    }
