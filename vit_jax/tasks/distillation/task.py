"""The task of distillation: learn from labels and from the predictions of a frozen teacher."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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
from vit_jax.evaluation.classification import PredictionTotals, outputs_of_batch
from vit_jax.evaluation.loop import EvalStep
from vit_jax.interop.load import Weights, read_weights
from vit_jax.models.flops import forward_macs, training_flops
from vit_jax.models.registry import build_model
from vit_jax.models.vit_options import ViTConfig
from vit_jax.named_tree import map_named
from vit_jax.tasks.classification.losses import make_loss, softmax_cross_entropy
from vit_jax.tasks.classification.task import eval_loss, labelled_images, make_prepare
from vit_jax.tasks.distillation.config import DistillationConfig, token_options
from vit_jax.tasks.task import BatchLoss, DataInfo, Frozen, Metrics, Prepare, Task

# (parameters of the teacher, images in [-1, 1]) -> logits f32[B, C].
TeacherFn = Callable[[Any, Float[Array, "B H W 3"]], Float[Array, "B C"]]


def build_task(config: Config, data: DataInfo, *, platform: str) -> Task:
    """Returns the task."""
    section: DistillationConfig = config.distillation
    side, num_classes = config.data.image_size, data.num_classes
    options = config.model
    if section.token:
        if not isinstance(options, ViTConfig):
            raise ModelError(
                f"'distillation.token' with {options.name}", "a ViT or hybrid", "leave it out"
            )
        options = options.replace(**token_options(options.to_mapping()))

    def build(key: jax.Array) -> nnx.Module:
        return build_model(
            options, num_classes=num_classes, image_size=side, key=key, platform=platform
        )

    graphdef = nnx.graphdef(nnx.eval_shape(build, jax.random.key(0)))
    classes = {} if data.source is None else {"source": data.source}
    frozen, teacher_fn, teacher_macs = _read_teacher(config, num_classes, **classes)
    macs = forward_macs(options, num_classes=num_classes, image_size=(side, side))
    train_preprocessing, eval_preprocessing = labelled_images(config, num_classes)
    prepare = make_prepare(config, num_classes)
    if section.teacher_image_size is not None:
        train_preprocessing = _with_teacher_image(
            train_preprocessing, section.teacher_image_size, config
        )
        prepare = _prepare_both(prepare)
    return Task(
        build=build,
        graphdef=graphdef,
        num_outputs=num_classes,
        flops_per_image=training_flops(macs) + 2 * teacher_macs,
        train_preprocessing=train_preprocessing,
        eval_preprocessing=eval_preprocessing,
        prepare=prepare,
        batch_loss=make_batch_loss(graphdef, config, teacher_fn),
        splits_exactly=not options.draws_random_numbers,
        eval_step=make_eval_step(graphdef, config, teacher_fn),
        make_totals=lambda class_names: PredictionTotals(
            means={"teacher_agreement": "agreed"}, num_classes=num_classes
        ),
        frozen=frozen,
    )


def _with_teacher_image(student: Preprocessing, size: int, config: Config) -> Preprocessing:
    """Adds `teacher_image` u8[size, size, 3], the student's crop at another size."""
    transform = make_train_transform(size, config.data.augment)

    def make_row(example: Example, rng: np.random.Generator) -> Mapping[str, ArrayLike]:
        same = copy.deepcopy(rng)  # So that the same crop is drawn.
        row = student.make_row(example, rng)
        return {**row, "teacher_image": transform(example.image, same)}

    arrays = {**student.arrays, "teacher_image": ArraySpec((size, size, 3), np.uint8)}
    return Preprocessing(arrays, make_row)


def _prepare_both(prepare: Prepare) -> Prepare:
    """Returns a function that flips and mixes the images of student and teacher alike."""

    def prepare_fn(batch: Batch, step: jax.Array) -> Batch:
        teacher = prepare({**batch, "image": batch["teacher_image"]}, step)
        return prepare(batch, step) | {"teacher_image": teacher["image"]}

    return prepare_fn


def make_batch_loss(graphdef: nnx.GraphDef, config: Config, teacher_fn: TeacherFn) -> BatchLoss:
    """Returns batch_loss_fn(params, batch, key, teacher_params).

    The teacher gets the same augmented and mixed images as the student, or its own size of them.
    With a distillation token, its head learns from the teacher and the other head from the labels.
    Without it, the model's logits learn from both.
    """
    section: DistillationConfig = config.distillation
    loss = make_loss(config.loss)

    def batch_loss_fn(
        params: Any, batch: Batch, key: jax.Array, teacher_params: Any
    ) -> tuple[Float[Array, ""], Metrics]:
        model: Any = nnx.merge(graphdef, params)
        if section.token:
            _, found = model(batch["image"], key=key, return_intermediates=("head_logits",))
            logits, student = found["head_logits"]
        else:
            logits = student = model(batch["image"], key=key)
        teacher = teacher_fn(teacher_params, batch.get("teacher_image", batch["image"]))
        label_loss = loss(logits, batch["label"]).mean()
        if section.targets == "soft":
            teacher_loss = soft_loss(student, teacher, section.temperature).mean()
            if section.mean_over_classes:
                teacher_loss /= student.shape[-1]
        else:
            teacher_loss = hard_loss(student, teacher).mean()
        total = (1 - section.alpha) * label_loss + section.alpha * teacher_loss
        return total, {"label_loss": label_loss, "teacher_loss": teacher_loss}

    return batch_loss_fn


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
    return softmax_cross_entropy(student.astype(jnp.float32), labels)


def make_eval_step(graphdef: nnx.GraphDef, config: Config, teacher_fn: TeacherFn) -> EvalStep:
    """Returns eval_step_fn(params, batch, teacher_params) -> sums for `PredictionTotals`.

    "agreed" counts the examples for which student and teacher predict the same class.
    """
    loss = eval_loss(config)

    def eval_step_fn(params: Any, batch: Batch, teacher_params: Any) -> dict[str, jax.Array]:
        images, mask = to_unit_range(batch["image"]), batch["mask"]
        model: Any = nnx.merge(graphdef, params)
        logits = model(images)
        teacher = teacher_fn(teacher_params, images)
        agreed = jnp.argmax(logits, axis=-1) == jnp.argmax(teacher, axis=-1)
        outputs = outputs_of_batch(logits, batch, loss)
        return outputs | {"agreed": jnp.sum(agreed & mask)}

    return eval_step_fn


def _read_teacher(
    config: Config, num_classes: int, source: Source | None = None
) -> tuple[Frozen, TeacherFn, int]:
    """Returns the teacher's parameters, its function, and its multiply-accumulates per image.

    Its logits are in the order of the classes of `source`, if both have names.
    """
    path = config.distillation.teacher
    assert path is not None

    def read() -> Weights:
        try:
            return read_weights(path, dtype=config.model.dtype)
        except WeightsError as error:
            raise WeightsError(
                f"distillation.teacher: {error.got}", error.expected, error.fix
            ) from None

    weights = read()
    if weights.num_classes != num_classes or weights.missing:
        raise WeightsError(
            f"distillation.teacher: a teacher with {weights.num_classes} classes in {path}",
            f"the {num_classes} classes of the data",
            "fine-tune the teacher on this dataset first",
        )
    columns = None
    if source is not None:
        model, names = f"distillation.teacher {path}", weights.class_names or ()
        columns = head_columns(source.class_names, names, data=source.name, model=model)
    image_size = weights.image_size
    network = weights.model
    if getattr(config.model, "attention_implementation", None) == "xla":
        options, key = weights.options.with_xla_attention(), jax.random.key(0)
        network = nnx.eval_shape(
            lambda: build_model(options, num_classes=num_classes, image_size=image_size, key=key)
        )
    graphdef, state = nnx.split(network)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), nnx.to_pure_dict(state)
    )

    def load() -> Any:
        # Read again, so that the host does not keep a copy of the arrays in memory.
        arrays = read().arrays
        return map_named(lambda name, _: arrays[name], shapes)

    def teacher_fn(teacher_params: Any, images: jax.Array) -> jax.Array:
        size = (images.shape[0], *image_size, 3)
        if images.shape != size:
            images = jax.image.resize(images, size, "bilinear")
        logits: Any = nnx.merge(graphdef, teacher_params)(images)
        logits = logits if columns is None else logits[:, columns]
        return jax.lax.stop_gradient(logits)

    macs = forward_macs(weights.options, num_classes=num_classes, image_size=image_size)
    return Frozen(shapes, load), teacher_fn, macs
