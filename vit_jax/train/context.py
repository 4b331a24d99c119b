"""What the parts of a run share, and the interface of hooks."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from vit_jax.config.run import Config
from vit_jax.data.cache import cached
from vit_jax.data.loader import Feed, batch_spec, train_batches
from vit_jax.data.order import BalancedOrder
from vit_jax.data.sources import Source
from vit_jax.parallel.mesh import host_rows
from vit_jax.run.checkpoints import CheckpointFolder
from vit_jax.run.metrics import ExampleLog, MetricsWriter
from vit_jax.train.early_stopping import EarlyStopping
from vit_jax.train.program import Program
from vit_jax.train.progress import ProgressView
from vit_jax.train.start import Start
from vit_jax.train.state import TrainState


@dataclasses.dataclass(frozen=True)
class RunContext:
    """One session of a run: its program, data, folder and outputs.

    Attributes:
        config: the run.
        program: its functions and shapes.
        frozen: last arguments of the training and evaluation steps.
        source: training examples.
        order: of the examples; None: `ExampleOrder`.
        start: state and step that this session starts from.
        folder: run folder.
        checkpoints: its checkpoints.
        metrics: writes metrics.jsonl.
        examples: writes which examples each step used.
        progress: shows the run on the console.
        early_stopping: the best evaluation so far.
        stop_requested: whether all processes should stop now. All must call it at the same points.
        begin_s: time at which the run began, without breaks between its sessions.
    """

    config: Config
    program: Program
    frozen: tuple[Any, ...]
    source: Source
    order: BalancedOrder | None
    start: Start
    folder: Path
    checkpoints: CheckpointFolder
    metrics: MetricsWriter
    examples: ExampleLog
    progress: ProgressView
    early_stopping: EarlyStopping
    stop_requested: Callable[[], bool]
    begin_s: float

    def is_last(self, step: int) -> bool:
        """Whether training ends after this step."""
        return step == self.program.total_steps or self.early_stopping.is_over

    def open_feed(self, step: int) -> Feed:
        """Returns this host's rows of the batches after `step`, in the background."""
        data, left_out = self.config.data, self.start.left_out
        return train_batches(
            cached(self.source, data.cache_mb),
            self.program.task.train_preprocessing,
            batch_spec(
                data,
                data.global_batch_size,
                host_rows(self.program.mesh, data.global_batch_size),
            ),
            seed=self.config.seed,
            start_step=step + left_out,
            end_step=self.program.total_steps + left_out,
            order=self.order,
        )


@dataclasses.dataclass(frozen=True)
class StepOutput:
    """What hooks see of a step. Its arrays may still be being computed.

    Attributes:
        step: number of updates made.
        state: after the step. The next step deletes its arrays.
        metrics: f32 scalars.
        batch: as it came to the devices.
        host_batch: this host's rows, with the arrays that stay on the host.
    """

    step: int
    state: TrainState
    metrics: dict[str, jax.Array]
    batch: dict[str, jax.Array]
    host_batch: dict[str, np.ndarray]


@runtime_checkable
class Hook(Protocol):
    """Something that happens after training steps."""

    def after_step(self, context: RunContext, output: StepOutput) -> None:
        """Called after each step has been dispatched to the devices."""
        ...
