"""The task of classification."""

from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.config.run import Config
from vit_jax.data.arrays import Preprocessing, labelled_image, labelled_patches
from vit_jax.data.device import Batch, erase, flip, mix, to_unit_range
from vit_jax.data.transforms import make_eval_transform, make_train_transform
from vit_jax.evaluation.by_class import ByClass, class_outputs
from vit_jax.evaluation.classification import PredictionTotals, outputs_of_batch
from vit_jax.evaluation.loop import EvalStep
from vit_jax.models import naflex
from vit_jax.models.flops import forward_macs, training_flops
from vit_jax.models.naflex import Patches, fit_grid
from vit_jax.models.registry import build_model, model_shape
from vit_jax.rng import stream
from vit_jax.tasks.classification.losses import LossFn, as_distribution, class_weights, make_loss
from vit_jax.tasks.task import BatchLoss, DataInfo, Metrics, Prepare, Task, model_image_size


def build_task(config: Config, data: DataInfo, *, platform: str) -> Task:
    """Returns the task."""
    image_size, num_classes = model_image_size(config), data.num_classes

    def build(key: jax.Array) -> nnx.Module:
        return build_model(
            config.model, num_classes=num_classes, image_size=image_size, key=key, platform=platform
        )

    graphdef = nnx.graphdef(nnx.eval_shape(build, jax.random.key(0)))

    measures_classes = config.measures_classes(num_classes)

    def make_totals(class_names: Any) -> PredictionTotals:
        by_class = ByClass(class_names, num_classes) if measures_classes else None
        return PredictionTotals(by_class, num_classes=num_classes)

    counts, kind = data.class_counts, config.loss.class_weights
    weights = None if counts is None else class_weights(kind, counts)
    macs = forward_macs(config.model, num_classes=num_classes, image_size=image_size)
    train_preprocessing, eval_preprocessing = labelled_images(config, num_classes)
    return Task(
        build=build,
        graphdef=graphdef,
        num_outputs=num_classes,
        flops_per_image=training_flops(macs),
        train_preprocessing=train_preprocessing,
        eval_preprocessing=eval_preprocessing,
        prepare=make_prepare(config, num_classes),
        batch_loss=make_batch_loss(graphdef, config, weights),
        splits_exactly=not config.model.draws_random_numbers,
        eval_step=make_eval_step(graphdef, eval_loss(config), by_class=measures_classes),
        make_totals=make_totals,
    )


def labelled_images(config: Config, num_classes: int) -> tuple[Preprocessing, Preprocessing]:
    """Returns the preprocessing of labelled images for training and for evaluation."""
    data = config.data
    if data.sequence_length is not None:
        return _labelled_patches(config, data.sequence_length, num_classes)
    return (
        labelled_image(
            make_train_transform(data.image_size, data.augment), data.image_size, num_classes
        ),
        labelled_image(
            make_eval_transform(data.image_size, data.eval_crop, data.augment),
            data.image_size,
            num_classes,
        ),
    )


def _labelled_patches(
    config: Config, length: int, num_classes: int
) -> tuple[Preprocessing, Preprocessing]:
    """Returns the preprocessing of sequences of patches for training and for evaluation."""
    data, patch_size = config.data, model_shape(config.model).patch_size

    def size(height: int, width: int) -> tuple[int, int]:
        rows, columns = fit_grid(height, width, patch_size, length)
        return rows * patch_size, columns * patch_size

    training = make_train_transform(size, data.augment)
    evaluation = make_eval_transform(size, data.eval_crop, data.augment)
    return (
        labelled_patches(training, patch_size, length, num_classes, flip=data.augment.flip),
        labelled_patches(evaluation, patch_size, length, num_classes, flip=False),
    )


def model_input(batch: Batch) -> Any:
    """Returns the input of the model from a batch of u8 images or of sequences of patches."""
    if "patches" in batch:
        return Patches(to_unit_range(batch["patches"]), batch["grid"])
    return to_unit_range(batch["image"])


def predict(model: Any, images: Any, *, key: jax.Array | None = None) -> Float[Array, "B C"]:
    """Returns the logits of images or of sequences of patches; a key turns dropout on."""
    if isinstance(images, Patches):
        return naflex.apply(model, images, key=key)
    return model(images, key=key)


def make_prepare(config: Config, num_classes: int) -> Prepare:
    """Returns prepare_fn(batch, step): scale u8 images to [-1, 1], flip, erase and mix them.

    The random draws depend on (seed, step).
    """
    augment, mixing = config.data.augment, config.mixing

    def prepare_fn(batch: Batch, step: jax.Array) -> Batch:
        if "patches" in batch:  # Flipped on the host, and neither erased nor mixed.
            return {"image": model_input(batch), "label": batch["label"]}
        images = batch["image"]
        if augment.flip:  # Before scaling, because uint8 has a quarter of the bytes.
            images = flip(images, stream(config.seed, "flip", step))
        images = to_unit_range(images)
        if augment.erasing_probability:
            key = stream(config.seed, "erasing", step)
            images = erase(images, key, probability=augment.erasing_probability)
        images, labels = mix(
            images,
            batch["label"],
            num_classes=num_classes,
            mixup_alpha=mixing.mixup_alpha,
            cutmix_alpha=mixing.cutmix_alpha,
            key=stream(config.seed, "mixing", step),
        )
        return {"image": images, "label": labels}

    return prepare_fn


def make_batch_loss(
    graphdef: nnx.GraphDef, config: Config, weights: np.ndarray | None = None
) -> BatchLoss:
    """Returns batch_loss_fn(params, batch, key), the mean loss with dropout.

    `weights` f32[C] weight an example's loss by its class; a mixed example is weighted in
    proportion to its labels.
    """
    loss = make_loss(config.loss)

    def batch_loss_fn(
        params: Any, batch: Batch, key: jax.Array
    ) -> tuple[Float[Array, ""], Metrics]:
        logits = predict(nnx.merge(graphdef, params), batch["image"], key=key)
        losses = loss(logits, batch["label"])
        if weights is not None:
            losses *= as_distribution(batch["label"], logits.shape[-1]) @ weights
        return losses.mean(), {}

    return batch_loss_fn


def eval_loss(config: Config) -> LossFn:
    """Returns the loss of evaluation: the training loss without label smoothing."""
    return make_loss(config.loss.replace(label_smoothing=0.0))


def make_eval_step(graphdef: nnx.GraphDef, loss: LossFn, *, by_class: bool = False) -> EvalStep:
    """Returns eval_step_fn(params, batch) -> outputs that `PredictionTotals` adds up.

    With `by_class` it also returns the outputs that `ByClass` adds up.
    """

    def eval_step_fn(params: Any, batch: Batch) -> dict[str, jax.Array]:
        logits = predict(nnx.merge(graphdef, params), model_input(batch))
        outputs = outputs_of_batch(logits, batch, loss)
        labels, mask = outputs["label"], outputs["mask"]
        return outputs | (class_outputs(logits, labels, mask) if by_class else {})

    return eval_step_fn
