"""A linear probe of dense features: which class is at every pixel.

A linear layer on each cell of a feature map gives logits, which are upsampled bilinearly to the
size of the image. It is trained with the cross-entropy of all pixels. Source: arXiv:2304.07193,
section 7.4 ("linear"); the optimizer is that of our linear probe, and masks have the size of the
model's images.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Int, UInt8

from vit_jax.data.device import to_unit_range
from vit_jax.data.masked_images import MaskedImages
from vit_jax.evaluation.fewshot import precision
from vit_jax.evaluation.intervals import DRAWS
from vit_jax.memory import check_fits
from vit_jax.models.family import ImageModel, Layer
from vit_jax.rng import generator

# Regularisation strengths to choose from: weight of |W|^2 / 2 beside the mean cross-entropy.
_STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2)
_BATCH_SIZE, _LEARNING_RATE, _EPSILON = 64, 0.02, 1e-5
# One training image in so many is held out to choose the strength.
_HELD_OUT_EVERY = 10


@dataclasses.dataclass(frozen=True)
class Segmentation:
    """The result of a probe.

    Attributes:
        confusion: i64[M, C, C], pixels of each test image by true and predicted class.
        strength: the regularisation that was chosen.
    """

    confusion: Int[np.ndarray, "M C C"]
    strength: float

    @property
    def mean_iou(self) -> float:
        """Mean IoU over the classes, from the pixels of all images."""
        return mean_iou(self.confusion.sum(0))

    @property
    def accuracy(self) -> float:
        """Share of the pixels that are right."""
        total = self.confusion.sum(0)
        return float(np.trace(total) / total.sum())

    def interval(self) -> tuple[float, float]:
        """Returns the 95 % interval of the mean IoU, a bootstrap over the images."""
        rng, count = generator(0, "images: segmentation", 0), len(self.confusion)
        draws = [
            mean_iou(self.confusion[rng.integers(count, size=count)].sum(0)) for _ in range(DRAWS)
        ]
        low, high = np.quantile(draws, [0.025, 0.975], method="hazen")
        return float(low), float(high)


def mean_iou(confusion: Int[np.ndarray, "C C"]) -> float:
    """Returns the mean IoU of the classes that occur in the truth or in the predictions.

    Args:
        confusion: pixels by true class (rows) and predicted class (columns).

    >>> mean_iou(np.array([[6, 2, 0], [1, 1, 0], [0, 0, 0]]))  # 6 / 9 and 1 / 4
    0.4583333333333333
    """
    both = np.diag(confusion)
    either = confusion.sum(0) + confusion.sum(1) - both
    seen = either > 0
    return float((both[seen] / either[seen]).mean())


def layer_maps(
    model: ImageModel,
    pixels: UInt8[np.ndarray, "M H W 3"],
    layers: Sequence[Layer],
    *,
    normalise: bool,
    batch_size: int,
) -> list[Float[np.ndarray, "M h w D"]]:
    """Returns the feature maps of all images, float32.

    Args:
        model: any model.
        pixels: of the model's size.
        layers: see `ImageModel.features`.
        normalise: see there.
        batch_size: images at a time.

    Raises:
        ModelError: a layer that does not exist.
        MemoryLimitError: the features do not fit the memory.
    """
    graphdef, state = nnx.split(model)

    def run(state: Any, batch: Array) -> list[Array]:
        maps = nnx.merge(graphdef, state).features(
            to_unit_range(batch), layers, normalise=normalise
        )
        return [m.astype(jnp.float32) for m in maps]

    size = min(batch_size, len(pixels))
    shapes = jax.eval_shape(run, state, jax.ShapeDtypeStruct((1, *pixels.shape[1:]), np.uint8))
    found = [np.empty((len(pixels), *s.shape[1:]), np.float32) for s in shapes if _fits(s, pixels)]
    jitted = jax.jit(run)
    for start in range(0, len(pixels), size):
        rows = np.minimum(np.arange(start, start + size), len(pixels) - 1)
        for whole, part in zip(found, jax.device_get(jitted(state, pixels[rows])), strict=True):
            stop = min(start + size, len(pixels))
            whole[start:stop] = part[: stop - start]
    return found


def _fits(shape: jax.ShapeDtypeStruct, pixels: np.ndarray) -> bool:
    check_fits(
        4 * shape.size * len(pixels), f"the features of {len(pixels):,} images", "use fewer images"
    )
    return True


def segmentation_probe(
    train: Float[np.ndarray, "N h w D"],
    train_masks: UInt8[np.ndarray, "N H W"],
    test: Float[np.ndarray, "M h w D"],
    test_masks: UInt8[np.ndarray, "M H W"],
    *,
    num_classes: int,
    ignore: int = 255,
    epochs: int = 20,
    seed: int = 0,
) -> Segmentation:
    """Trains a linear layer on feature maps and returns its confusion on the test images.

    One training image in ten is held out. The regularisation is chosen by the mean IoU on these.

    Args:
        train: feature maps of the training images.
        train_masks: their masks.
        test: feature maps of the test images.
        test_masks: their masks.
        num_classes: C.
        ignore: value of pixels that do not count.
        epochs: epochs of training.
        seed: seed of the order of the images.
    """
    mean = train.mean((0, 1, 2), dtype=np.float64).astype(np.float32)
    deviation = train.std((0, 1, 2), dtype=np.float64).astype(np.float32) + _EPSILON
    held_out = np.arange(len(train)) % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
    kept = np.flatnonzero(~held_out)

    def scaled(maps: np.ndarray) -> jax.Array:
        return jnp.asarray((maps - mean) / deviation)

    with precision("float32"):
        kernels, biases = _train(
            scaled, train, train_masks, kept, num_classes, ignore, epochs, seed
        )
        probes = [(kernels[g], biases[g]) for g in range(len(_STRENGTHS))]
        best = 0
        if held_out.any():
            scores = [
                mean_iou(
                    _confusions(
                        p, scaled, train[held_out], train_masks[held_out], num_classes, ignore
                    ).sum(0)
                )
                for p in probes
            ]
            best = int(np.argmax(scores))
        confusion = _confusions(probes[best], scaled, test, test_masks, num_classes, ignore)
    return Segmentation(confusion, _STRENGTHS[best])


def _train(
    scaled: Callable[[np.ndarray], jax.Array],
    maps: Float[np.ndarray, "N h w D"],
    masks: UInt8[np.ndarray, "N H W"],
    kept: Int[np.ndarray, " K"],
    num_classes: int,
    ignore: int,
    epochs: int,
    seed: int,
) -> tuple[Float[Array, "G D C"], Float[Array, "G C"]]:
    """Trains a layer for each strength on the same minibatches."""
    rows = min(_BATCH_SIZE, len(kept))
    per_epoch = max(len(kept) // rows, 1)
    optimizer = optax.adam(optax.cosine_decay_schedule(_LEARNING_RATE, epochs * per_epoch))
    groups = len(_STRENGTHS)
    params = (
        jnp.zeros((groups, maps.shape[-1], num_classes), jnp.float32),
        jnp.zeros((groups, num_classes), jnp.float32),
    )
    state, decay = optimizer.init(params), jnp.asarray(_STRENGTHS, jnp.float32)

    @jax.jit
    def step(params: tuple[Array, Array], state: optax.OptState, x: Array, y: Array):
        def loss(params: tuple[Array, Array]) -> Array:
            counts = (y != ignore).astype(jnp.float32)
            labels = jnp.where(y == ignore, 0, y).astype(jnp.int32)

            def of_probe(kernel: Array, bias: Array) -> Array:
                logits = _pixel_logits(kernel, bias, x, (y.shape[1], y.shape[2]))
                losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
                return (losses * counts).sum() / jnp.maximum(counts.sum(), 1)

            kernels, biases = params
            # The probes share no parameters, so the gradient of the sum trains each separately.
            losses = jax.vmap(of_probe)(kernels, biases)
            return losses.sum() + (decay * jnp.square(kernels).sum((1, 2))).sum() / 2

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for epoch in range(epochs):
        order = generator(seed, "dense probe", epoch).permutation(kept)
        for start in range(0, per_epoch * rows, rows):
            chosen = np.sort(order[start : start + rows])
            params, state = step(params, state, scaled(maps[chosen]), jnp.asarray(masks[chosen]))
    return params


def _pixel_logits(
    kernel: Float[Array, "D C"],
    bias: Float[Array, " C"],
    x: Float[Array, "B h w D"],
    size: tuple[int, int],
) -> Float[Array, "B H W C"]:
    logits = x @ kernel + bias[None, None, None]
    rows, columns = (bilinear(n, side) for n, side in zip(x.shape[1:3], size, strict=True))
    return jnp.einsum("Hh,bhwc,Ww->bHWc", rows, logits, columns)


def bilinear(count: int, side: int) -> Float[np.ndarray, "S N"]:
    """Returns the matrix of linear interpolation from cells to pixels; borders are repeated.

    Args:
        count: number of cells, N.
        side: number of pixels, S.

    >>> bilinear(2, 4).tolist()
    [[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]
    """
    places = np.clip((np.arange(side) + 0.5) * count / side - 0.5, 0, count - 1)
    weights = 1 - np.abs(places[:, None] - np.arange(count)[None])
    return np.maximum(weights, 0).astype(np.float32)


def _confusions(
    probe: tuple[Float[Array, "D C"], Float[Array, " C"]],
    scaled: Callable[[np.ndarray], jax.Array],
    maps: Float[np.ndarray, "M h w D"],
    masks: UInt8[np.ndarray, "M H W"],
    num_classes: int,
    ignore: int,
) -> Int[np.ndarray, "M C C"]:
    """Returns the pixels of each image by true and predicted class."""
    size = (masks.shape[1], masks.shape[2])
    predict = jax.jit(lambda x: jnp.argmax(_pixel_logits(*probe, x, size), -1))
    found = np.zeros((len(maps), num_classes, num_classes), np.int64)
    for start in range(0, len(maps), _BATCH_SIZE):
        predicted = np.asarray(predict(scaled(maps[start : start + _BATCH_SIZE])))
        for row, (guess, truth) in enumerate(
            zip(predicted, masks[start : start + _BATCH_SIZE], strict=True), start
        ):
            counts = truth != ignore
            np.add.at(found[row], (truth[counts], guess[counts]), 1)
    return found


def constant_iou(masks: UInt8[np.ndarray, "M H W"], num_classes: int, ignore: int) -> float:
    """Returns the mean IoU of predicting the most frequent class everywhere."""
    counts = np.bincount(masks[masks != ignore].ravel(), minlength=num_classes)
    confusion = np.zeros((num_classes, num_classes), np.int64)
    confusion[:, counts.argmax()] = counts
    return mean_iou(confusion)


def count_classes(train: MaskedImages, given: int | None, ignore: int) -> int:
    """Returns the number of classes: `given`, the dataset's, or the largest one in training + 1."""
    if given is not None:
        return given
    if train.class_names:
        return len(train.class_names)
    seen = train.masks[train.masks != ignore]
    return int(seen.max(initial=0)) + 1
