"""The task of distillation: learn from labels and from the predictions of a frozen teacher."""

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from vit_jax.config.run import Config
from vit_jax.data.arrays import ArraySpec, Preprocessing
from vit_jax.data.class_names import head_columns
from vit_jax.data.device import Batch, to_unit_range
from vit_jax.data.sources.base import Example, Source
from vit_jax.data.transforms import make_train_transform
from vit_jax.errors import ModelError, WeightsError
from vit_jax.evaluation.classification import example_outputs, predictions_of_batch
from vit_jax.evaluation.metrics import Mean, mean_sums
from vit_jax.interop.load import Weights, read_weights
from vit_jax.models.flops import forward_macs
from vit_jax.models.registry import build_model
from vit_jax.models.stacking import LayerLoop
from vit_jax.models.vit_options import ViTConfig
from vit_jax.named_tree import map_named
from vit_jax.tasks.distillation.config import DistillationConfig, token_options
from vit_jax.tasks.image_task import LabelTask
from vit_jax.tasks.task import TASK_CLASSES, DataInfo, Frozen, Metrics

# (parameters of the teacher, images in [-1, 1]) -> logits f32[B, C].
TeacherFn = Callable[[Any, Float[Array, "B H W 3"]], Float[Array, "B C"]]
# Share of the examples for which student and teacher predict the same class.
_AGREEMENT = "teacher_agreement"


@TASK_CLASSES.register
class Distillation(LabelTask):
    """Learns from labels and from a frozen teacher.

    The teacher gets the same augmented and mixed images as the student, or its own size of them.
    With a distillation token, its head learns from the teacher and the other head from the labels.
    Without it, the model's logits learn from both.
    """

    section: DistillationConfig
    own_metrics = {_AGREEMENT: Mean()}

    def __init__(self, config: Config, data: DataInfo, *, platform: str):
        super().__init__(_with_token(config), data, platform=platform)
        self.frozen, self.make_teacher_fn, self.teacher_macs = _read_teacher(
            self.section.teacher, config, data.num_classes, data.source
        )
        self.teacher_fn = self.make_teacher_fn(None)
        if self.section.teacher_image_size is not None:
            self.train_preprocessing = _with_teacher_image(
                self.train_preprocessing, self.section.teacher_image_size, config
            )

    def with_loop(self, loop: LayerLoop) -> "Distillation":
        copied: Any = super().with_loop(loop)
        copied.teacher_fn = self.make_teacher_fn(loop)
        return copied

    @functools.cached_property
    def flops_per_image(self) -> int:
        return super().flops_per_image + 2 * self.teacher_macs

    def prepare(self, batch: Batch, step: jax.Array) -> Batch:
        """Flips and mixes the images of student and teacher alike."""
        ready = super().prepare(batch, step)
        if "teacher_image" not in batch:
            return ready
        teacher = super().prepare({**batch, "image": batch["teacher_image"]}, step)
        return ready | {"teacher_image": teacher["image"]}

    def loss(
        self, params: Any, batch: Batch, key: jax.Array, teacher_params: Any
    ) -> tuple[Float[Array, ""], Metrics]:
        section, model = self.section, self.model(params)
        if section.token:
            _, found = model(batch["image"], key=key, return_intermediates=("head_logits",))
            logits, student = found["head_logits"]
        else:
            logits = student = model(batch["image"], key=key)
        teacher = self.teacher_fn(teacher_params, batch.get("teacher_image", batch["image"]))
        label_loss = self.label_loss(logits, batch["label"]).mean()
        if section.targets == "soft":
            teacher_loss = soft_loss(student, teacher, section.temperature).mean()
            if section.mean_over_classes:
                teacher_loss /= student.shape[-1]
        else:
            teacher_loss = hard_loss(student, teacher).mean()
        total = (1 - section.alpha) * label_loss + section.alpha * teacher_loss
        return total, {"label_loss": label_loss, "teacher_loss": teacher_loss}

    def eval_step(self, params: Any, batch: Batch, teacher_params: Any) -> dict[str, Any]:
        """Also counts the examples for which student and teacher predict the same class."""
        images = to_unit_range(batch["image"])
        logits = self.model(params)(images)
        teacher = self.teacher_fn(teacher_params, images)
        agreed = jnp.argmax(logits, axis=-1) == jnp.argmax(teacher, axis=-1)
        predictions = predictions_of_batch(logits, batch, self.eval_loss)
        outputs = example_outputs(predictions, self.metrics)
        return outputs | {_AGREEMENT: mean_sums(agreed, predictions.mask)}


def _with_token(config: Config) -> Config:
    """Returns the config of a run, whose model has the distillation token that the task adds."""
    options, section = config.model, config.task
    assert isinstance(section, DistillationConfig)
    if not section.token:
        return config
    if not isinstance(options, ViTConfig):
        raise ModelError(f"'task.token' with {options.name}", "a ViT or hybrid", "leave it out")
    return config.replace(model=options.replace(**token_options(options.to_mapping())))


def _with_teacher_image(student: Preprocessing, size: int, config: Config) -> Preprocessing:
    """Adds `teacher_image` u8[size, size, 3], the student's crop at another size."""
    transform = make_train_transform(size, config.data)

    def make_row(example: Example, rng: np.random.Generator) -> Mapping[str, ArrayLike]:
        same = copy.deepcopy(rng)  # So that the same crop is drawn.
        row = student.make_row(example, rng)
        return {**row, "teacher_image": transform(example.image, same)}

    arrays = {**student.arrays, "teacher_image": ArraySpec((size, size, 3), np.uint8)}
    return Preprocessing(arrays, make_row)


def soft_loss(
    student: Float[Array, "B C"], teacher: Float[Array, "B C"], temperature: float
) -> Float[Array, " B"]:
    """Returns T^2 KL(softmax(teacher / T) || softmax(student / T)).

    The factor T^2 keeps the scale of the gradient about the same for every T.

    Source: arXiv:1503.02531, section 2.

    >>> soft_loss(jnp.zeros((1, 2)), jnp.array([[100.0, 0.0]]), 1.0).round(4)  # log 2
    Array([0.6931], dtype=float32)
    """
    targets = jax.nn.softmax(teacher.astype(jnp.float32) / temperature)
    log_targets = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature)
    log_predictions = jax.nn.log_softmax(student.astype(jnp.float32) / temperature)
    divergence = jnp.sum(targets * (log_targets - log_predictions), axis=-1)
    return temperature**2 * divergence


def hard_loss(student: Float[Array, "B C"], teacher: Float[Array, "B C"]) -> Float[Array, " B"]:
    """The cross-entropy with the teacher's most likely class.

    Source: arXiv:2012.12877, equation 3.
    """
    labels = jax.nn.one_hot(jnp.argmax(teacher, axis=-1), teacher.shape[-1])
    return optax.losses.softmax_cross_entropy(student.astype(jnp.float32), labels)


def _read_teacher(
    path: str | None, config: Config, num_classes: int, source: Source | None = None
) -> tuple[Frozen, Callable[[LayerLoop | None], TeacherFn], int]:
    """Returns the teacher's parameters, its function, and its multiply-accumulates per image.

    The function is made for a loop over the teacher's layers; None: that of its own options.

    Its logits are in the order of the classes of `source`, if both have names.
    """
    assert path is not None

    def read() -> Weights:
        try:
            return read_weights(path, dtype=config.model.dtype)
        except WeightsError as error:
            raise WeightsError(f"task.teacher: {error.got}", error.expected, error.fix) from None

    weights = read()
    if weights.num_classes != num_classes or weights.missing:
        raise WeightsError(
            f"task.teacher: a teacher with {weights.num_classes} classes in {path}",
            f"the {num_classes} classes of the data",
            "fine-tune the teacher on this dataset first",
        )
    columns = None
    if source is not None:
        model, names = f"task.teacher {path}", weights.class_names or ()
        columns = head_columns(source.class_names, names, data=source.name, model=model)
    image_size = weights.image_size
    options, state = weights.options, nnx.state(weights.model)
    if getattr(config.model, "attention_implementation", None) == "xla":
        options = options.with_xla_attention()
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), nnx.to_pure_dict(state)
    )

    def load() -> Any:
        # Read again, so that the host does not keep a copy of the arrays in memory.
        arrays = read().arrays
        return map_named(lambda name, _: arrays[name], shapes)

    def make_teacher_fn(loop: LayerLoop | None) -> TeacherFn:
        own = options if loop is None else options.with_loop(loop.scan, loop.remat)
        sizes = {"num_classes": num_classes, "image_size": image_size, "key": jax.random.key(0)}
        graphdef = nnx.graphdef(nnx.eval_shape(lambda: build_model(own, **sizes)))

        def teacher_fn(teacher_params: Any, images: jax.Array) -> jax.Array:
            size = (images.shape[0], *image_size, 3)
            if images.shape != size:
                images = jax.image.resize(images, size, "bilinear")
            logits: Any = nnx.merge(graphdef, teacher_params)(images)
            logits = logits if columns is None else logits[:, columns]
            return jax.lax.stop_gradient(logits)

        return teacher_fn

    macs = forward_macs(weights.options, num_classes=num_classes, image_size=image_size)
    return Frozen(shapes, load), make_teacher_fn, macs
