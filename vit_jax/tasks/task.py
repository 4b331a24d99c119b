"""The interface between a task and the trainer."""

import copy
import dataclasses
import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float

from vit_jax.config.run import Config
from vit_jax.config.task import TASKS, TaskConfig
from vit_jax.data.arrays import Preprocessing
from vit_jax.data.augment import Operation
from vit_jax.data.device import Batch, to_unit_range
from vit_jax.data.sources.base import Source
from vit_jax.errors import PluginError
from vit_jax.evaluation.loop import Totals
from vit_jax.losses import as_distribution
from vit_jax.models.registry import model_shape
from vit_jax.models.stacking import LayerLoop
from vit_jax.own_functions import owner_of
from vit_jax.registry import Registry
from vit_jax.rng import stream

TASK_CLASSES: Registry["type[Task]"] = Registry("vit_jax.tasks", "task", file="task")
K = TypeVar("K", bound=type)

# Name -> value to log, a scalar; `Teacher.update` may also take arrays.
Metrics = dict[str, Float[Array, "..."]]
# (batch on the device, step) -> prepared (augmented) batch, see `Task.prepare`.
Prepare = Callable[[Batch, jax.Array], Batch]
# (params, prepared batch, key, *frozen) -> (mean loss over the batch, more metrics to log). With a
# teacher, a `TeacherState` comes before the frozen arrays.
BatchLoss = Callable[..., tuple[Float[Array, ""], Metrics]]


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


class Evaluator(Protocol):
    """An evaluation that is not the sum over the examples of one split."""

    prefixes: list[str]  # how the names of its metrics start

    def __call__(self, params: Any, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns metric name -> value; None if `stop`, called before each batch, ended it."""
        ...


# (devices, images per batch over all hosts) -> evaluator
OpenEvaluator = Callable[[Mesh, int], Evaluator]


class Task(ABC):
    """The learning task of a run. Its methods are pure; the training step traces them.

    Attributes:
        section: the section `task` of the config, with the task's own options.
        num_outputs: number of outputs of the head.
        train_preprocessing: example -> row of a training batch, on the host.
        eval_preprocessing: example -> row of an evaluation batch.
        splits_exactly: whether the mean gradient of equal microbatches is that of the whole batch,
            to rounding, at no cost: the loss draws no random numbers, and is the mean over equal
            examples.
        frozen: arrays that the loss reads but does not train.
        teacher: follows the trained parameters.
        activations: activations that training on one image keeps, as a multiple of those of the
            model's layers for one image: 2 if the model sees every image twice.
        clamp: (params) -> params, after each update: keeps parameters within their range.
        open_evaluator: opens what is evaluated together with the splits.
    """

    section: Any
    num_outputs: int = 0
    train_preprocessing: Preprocessing
    eval_preprocessing: Preprocessing
    splits_exactly: bool
    frozen: Frozen | None = None
    teacher: Teacher | None = None
    activations: float = 1.0
    clamp: Callable[[Any], Any] | None = None
    open_evaluator: OpenEvaluator | None = None

    def __init__(self, config: Config, data: DataInfo, *, platform: str):
        self.config, self.data, self.platform = config, data, platform
        self.section = config.task

    @classmethod
    def for_config(cls, config: Config) -> "type[Task]":
        """Returns the class that a run needs: this one, or a subclass for other inputs."""
        del config
        return cls

    @abstractmethod
    def build(self, key: jax.Array) -> nnx.Module:
        """Returns a new model; may be traced."""

    @functools.cached_property
    @abstractmethod
    def flops_per_image(self) -> int:
        """Model FLOPs of training on one image."""

    @abstractmethod
    def prepare(self, batch: Batch, step: jax.Array) -> Batch:
        """Returns a batch that is augmented on the device; the draws depend on (seed, step)."""

    def augment(self, batch: Batch, step: jax.Array, crop: str = "") -> Batch:
        """Returns a batch whose u8 images are in [-1, 1], after the operations that are on.

        With a name, a crop has its own draws. Labels are f32[B, C] after they are mixed.
        """
        operations = self.config.data.augment.operations
        images = batch["image"]

        def key(name: str, operation: Operation) -> jax.Array:
            return self.random_key(f"{operation.stream or name} {crop}".rstrip(), step)

        for name, operation in operations("uint8").items():
            images = operation(images, key(name, operation))
        images = to_unit_range(images)
        for name, operation in operations("device").items():
            images = operation(images, key(name, operation))
        batch = {**batch, "image": images}
        for name, operation in operations("mix").items():
            labels = as_distribution(batch["label"], self.num_outputs)
            images, labels = operation(batch["image"], labels, key(name, operation))
            batch |= {"image": images, "label": labels}
        return batch

    @abstractmethod
    def loss(self, *args: Any, **kwargs: Any) -> tuple[Float[Array, ""], Metrics]:
        """(params, prepared batch, key, *frozen) -> mean loss with dropout, more metrics to log.

        With a teacher, a `TeacherState` comes before the frozen arrays.
        """

    @property
    def batch_loss(self) -> BatchLoss:
        """What a training step minimises: `loss`, or a `ComparingLoss` for exact microbatches."""
        return self.loss

    @abstractmethod
    def eval_step(self, *args: Any, **kwargs: Any) -> Any:
        """(params, batch on the device, *frozen) -> outputs that `totals` adds up."""

    @abstractmethod
    def totals(self, class_names: Sequence[str]) -> Totals:
        """Returns empty totals of a split with these classes."""

    @functools.cached_property
    def abstract(self) -> Any:
        """The model, with shapes instead of parameters."""
        return nnx.eval_shape(self.build, jax.random.key(0))

    @functools.cached_property
    def graphdef(self) -> nnx.GraphDef:
        """The model without its parameters."""
        return nnx.graphdef(self.abstract)

    def with_loop(self, loop: LayerLoop) -> "Task":
        """Returns this task, with this loop over the layers of its model."""
        copied = copy.copy(self)
        options = self.config.model.with_loop(loop.scan, loop.remat)
        copied.config = self.config.replace(model=options)
        for name in vars(self):  # What depends on the model is built again.
            if isinstance(getattr(type(self), name, None), functools.cached_property):
                del vars(copied)[name]
        return copied

    def model(self, params: Any) -> Any:
        """Returns the model with these parameters."""
        return nnx.merge(self.graphdef, params)

    def random_key(self, name: str, step: jax.Array) -> jax.Array:
        """Returns the random key of a step for one kind of draws."""
        return stream(self.config.seed, name, step)


def _is_subclass(cls: Any, base: type) -> bool:
    return inspect.isclass(cls) and issubclass(cls, base)


def register_task(options: type[TaskConfig]) -> Callable[[K], K]:
    """Registers a task, a subclass of `ImageTask` or `Task`; use it as a decorator.

    Args:
        options: the section of the task, a subclass of `TaskConfig`. The default of its field
            `name` is the value of `task.name`, and its other fields are the keys `task.KEY`.

    Raises:
        PluginError: a method is missing, or another module has registered this name.

    >>> @register_task(RotationConfig)  # doctest: +SKIP
    ... class Rotation(ImageTask): ...
    """

    def register(cls: K) -> K:
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        if missing or not _is_subclass(cls, Task):
            raise PluginError(
                f"task {cls.__name__} of {owner_of(cls)} has no {missing or 'base class Task'}",
                "a subclass of vit_jax.tasks.task.Task with all its methods",
                "add what is missing",
            )
        if not _is_subclass(options, TaskConfig):
            raise PluginError(
                f"task {cls.__name__} of {owner_of(cls)} with the section {options!r}",
                "a subclass of vit_jax.config.task.TaskConfig",
                "pass its class to register_task",
            )
        name, owner = options.model_fields["name"].default, owner_of(cls)
        TASKS.add(name, options, owner)
        TASK_CLASSES.add(name, cls, owner)
        return cls

    return register


def build_task(config: Config, data: DataInfo, *, platform: str) -> Task:
    """Returns the task of a run; `platform` is "cpu", "gpu" or "tpu"."""
    return TASK_CLASSES[config.task.name].for_config(config)(config, data, platform=platform)


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
