"""The interface between a task and the trainer, and the function that builds a task."""

import dataclasses
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float

from vit_jax.config.run import Config
from vit_jax.data.arrays import Preprocessing
from vit_jax.data.device import Batch
from vit_jax.data.sources.base import Source
from vit_jax.evaluation.loop import EvalStep, Totals
from vit_jax.models.registry import model_shape

# Name -> value to log, a scalar; `Teacher.update` may also take arrays.
Metrics = dict[str, Float[Array, "..."]]
# (batch on the device, step) -> prepared (augmented) batch.
Prepare = Callable[[Batch, jax.Array], Batch]
# (params, prepared batch, key, *frozen) -> (mean loss over the batch, more metrics to log). With a
# teacher, a `TeacherState` comes before the frozen arrays.
BatchLoss = Callable[..., tuple[Float[Array, ""], Metrics]]
# (params, prepared batch, **options of the model's call) -> outputs of the model.


@dataclasses.dataclass(frozen=True)
class DataInfo:
    """Properties of the training data that a task needs."""

    num_classes: int
    class_counts: np.ndarray | None = None  # i64[C]; None: not known or not needed
    num_examples: int = 1  # per epoch
    total_steps: int = 1
    source: Source | None = None  # for checks and names of classes; None: the program sees no data


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Arrays that the step reads but does not train, such as a teacher's parameters.

    They are sharded like parameters and passed to the step as its last argument. They are neither
    donated nor saved in checkpoints.
    """

    shapes: Any  # tree of `jax.ShapeDtypeStruct`
    load: Callable[[], Any]  # returns the same tree of arrays, in the memory of the host


@dataclasses.dataclass(frozen=True)
class ComparingLoss:
    """A loss that compares all examples of a batch with each other: a `BatchLoss` in two functions.

    With microbatches, all embeddings are computed first, then the loss and their gradients, and
    then each microbatch again, for the gradients of the parameters. So the loss and the gradient
    are those of the whole batch.

    Attributes:
        embed: (params, prepared batch, key, *frozen) -> tree of floating-point arrays [B, ...].
        compare: (params, embeddings of the whole batch, *frozen) -> (mean loss, more metrics to
            log).

    With a teacher, a `TeacherState` comes before the frozen arrays.

    Source: GradCache, arXiv:2101.06983.
    """

    embed: Callable[..., Any]
    compare: Callable[..., tuple[Float[Array, ""], Metrics]]

    def __call__(
        self, params: Any, batch: Batch, key: jax.Array, *frozen: Any
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the loss of a batch without microbatches."""
        return self.compare(params, self.embed(params, batch, key, *frozen), *frozen)


class TeacherState(NamedTuple):
    """What a loss reads of a teacher."""

    params: Any
    extra: Any  # the arrays of `Teacher.init`
    step: Any  # i32 scalar, number of updates made


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher whose parameters are a moving average of those that are trained.

    The average is that of the training state, `TrainState.ema`. So it is saved in checkpoints, and
    it is what is evaluated and what other runs start from.

    Attributes:
        decay: step -> share of the teacher that this step keeps.
        init: returns the arrays that the teacher has beside its parameters, such as a centre. They
            are `TrainState.extra`.
        update: (these arrays, metrics of the loss) -> (their next values, metrics to log).
    """

    decay: Callable[[Any], Any]
    init: Callable[[], Any]
    update: Callable[[Any, Metrics], tuple[Any, Metrics]]


@runtime_checkable
class Evaluator(Protocol):
    """An evaluation that is not the sum over the examples of one split."""

    prefixes: list[str]  # how the names of its metrics start

    def __call__(self, params: Any, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns metric name -> value; None if `stop`, called before each batch, ended it."""
        ...


# (devices, images per batch over all hosts) -> evaluator
OpenEvaluator = Callable[[Mesh, int], Evaluator]


@dataclasses.dataclass(frozen=True)
class Task:
    """The learning task of a run.

    Attributes:
        build: random key -> model; may be traced.
        graphdef: that model without its parameters.
        num_outputs: number of outputs of the head.
        flops_per_image: model FLOPs of training on one image.
        train_preprocessing: example -> row of a training batch, on the host.
        eval_preprocessing: example -> row of an evaluation batch.
        prepare: augmentation on the device.
        batch_loss: the loss to minimise, with dropout.
        splits_exactly: whether the mean gradient of equal microbatches is that of the whole batch,
            to rounding, at no cost: the loss draws no random numbers, and is the mean over equal
            examples.
        eval_step: (params, batch on the device, *frozen) -> outputs that `Totals` adds up.
        make_totals: class names -> an empty `Totals`.
        teacher: follows the trained parameters.
        activations: activations that training on one image keeps, as a multiple of those of the
            model's layers for one image: 2 if the model sees every image twice.
        project: (params) -> params, after each update: keeps parameters within their range.
        open_evaluator: opens what is evaluated together with the splits.
    """

    build: Callable[[jax.Array], nnx.Module]
    graphdef: nnx.GraphDef
    num_outputs: int
    flops_per_image: int
    train_preprocessing: Preprocessing
    eval_preprocessing: Preprocessing
    prepare: Prepare
    batch_loss: BatchLoss
    splits_exactly: bool
    eval_step: EvalStep
    make_totals: Callable[[Sequence[str]], Totals]
    frozen: Frozen | None = None
    teacher: Teacher | None = None
    activations: float = 1.0
    project: Callable[[Any], Any] | None = None
    open_evaluator: OpenEvaluator | None = None


def build_task(config: Config, data: DataInfo, *, platform: str) -> Task:
    """Returns the task of a run; `platform` is "cpu", "gpu" or "tpu"."""
    module = importlib.import_module(f"vit_jax.tasks.{config.task}.task")
    return module.build_task(config, data, platform=platform)


def model_image_size(config: Config) -> tuple[int, int]:
    """Returns (height, width) in pixels of the images that a run's model is built for.

    For sequences of patches it is one row of them, which has the same tokens, shapes and costs.
    """
    data = config.data
    if data.sequence_length is None:
        return data.image_size, data.image_size
    side = model_shape(config.model).patch_size
    return side, side * data.sequence_length


def num_patches(config: Config) -> int:
    """Returns the number of patches of an image, of a run with a model that cuts patches."""
    return math.prod(model_image_size(config)) // model_shape(config.model).stride ** 2
