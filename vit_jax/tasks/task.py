"""What a task gives to the trainer, and the functions that make one from a config."""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.config.run import Config
from vit_jax.data.arrays import Preprocessing
from vit_jax.data.device import Batch
from vit_jax.evaluation.loop import EvalStep, Totals

Metrics = dict[str, Float[Array, ""]]
# (batch as it came to the device, step) -> the batch that the loss reads.
Prepare = Callable[[Batch, jax.Array], Batch]
# (params, prepared batch, key, *frozen) -> (mean loss over the batch, more metrics to log).
BatchLoss = Callable[..., tuple[Float[Array, ""], Metrics]]
# (params, prepared batch, **options of the model's call) -> the model's outputs, as in the loss.
Forward = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class DataFacts:
    """What a task must know about the training data.

    Attributes:
        num_classes: C.
        class_weights: f32[C], weight of an example's loss by its class; None: all 1.
    """

    num_classes: int
    class_weights: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Arrays that the step reads but does not train, such as a teacher's parameters.

    They are sharded like parameters, passed to the step as its last argument, not donated, and not
    saved in checkpoints.

    Attributes:
        shapes: tree of `jax.ShapeDtypeStruct`.
        load: returns the same tree of arrays in the host's memory.
    """

    shapes: Any
    load: Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Task:
    """What a run learns.

    Attributes:
        build: random key -> model; may be traced.
        graphdef: that model without its parameters.
        num_outputs: of its head.
        flops_per_image: model FLOPs of training on one image.
        train_preprocessing: example -> row of a training batch, on the host.
        eval_preprocessing: example -> row of an evaluation batch.
        prepare: augmentation on the device.
        forward: the model on a prepared batch, as the loss calls it.
        batch_loss: the loss to minimise, with dropout on.
        eval_step: (params, batch as it came to the device, *frozen) -> outputs for `make_totals`.
        make_totals: class names -> an empty `Totals`.
        frozen: arrays that are not trained; None: there are none.
    """

    build: Callable[[jax.Array], nnx.Module]
    graphdef: nnx.GraphDef
    num_outputs: int
    flops_per_image: int
    train_preprocessing: Preprocessing
    eval_preprocessing: Preprocessing
    prepare: Prepare
    forward: Forward
    batch_loss: BatchLoss
    eval_step: EvalStep
    make_totals: Callable[[Sequence[str]], Totals]
    frozen: Frozen | None = None


def build_task(config: Config, data: DataFacts, *, platform: str) -> Task:
    """Returns the task of a run.

    Args:
        config: the run.
        data: about the training data.
        platform: "cpu", "gpu" or "tpu" that the model will run on.

    Raises:
        ConfigError, ModelError: sizes that do not go together.
        WeightsError: frozen weights that cannot be read.
    """
    module = importlib.import_module(f"vit_jax.tasks.{config.task}.task")
    return module.build_task(config, data, platform=platform)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture of what a trained model of a task does, and its numbers.

    Attributes:
        figure: a matplotlib figure.
        arrays: name -> array, for an npz file.
        rows: rows of a table, for a CSV file.
        summary: one line.
    """

    figure: Any
    arrays: dict[str, np.ndarray]
    rows: list[dict[str, Any]]
    summary: str


# (run folder, checkpoint in it, u8[M, H, W, 3] images of the model's size, batch size) -> Picture.
MakePicture = Callable[[Path, Path, np.ndarray, int], Picture]


def load_pictures(name: str) -> MakePicture:
    """Returns the function that makes the picture of a task in `tasks_with_pictures()`.

    It raises ModelError for a run of another task or images of another size.
    """
    return importlib.import_module(f"vit_jax.tasks.{name}.pictures").make_picture
