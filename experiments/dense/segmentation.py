"""A linear probe of frozen feature maps: which class is at every pixel.

A linear layer on each cell of a feature map gives logits, which are upsampled bilinearly to the
size of the mask. It is trained with the cross-entropy of all pixels. Source: arXiv:2304.07193,
section 7.4 ("linear"); the optimizer is that of `vit_jax.evaluation.linear_probe`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.evaluation.intervals import DRAWS, interval
from vit_jax.rng import generator

# Pixels with this value in a mask do not count.
IGNORED = 255
# Regularisation strengths to choose from: weight of |W|^2 / 2 beside the mean cross-entropy.
_STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2)
_BATCH_SIZE, _LEARNING_RATE, _EPSILON = 64, 0.02, 1e-5


def mean_iou(confusion: np.ndarray) -> float:
    """Returns the mean IoU of the classes in the truth (rows) or the predictions (columns)."""
    both = np.diag(confusion)
    either = confusion.sum(0) + confusion.sum(1) - both
    seen = either > 0
    return float((both[seen] / either[seen]).mean())


def constant_iou(masks: np.ndarray) -> float:
    """Returns the mean IoU of predicting the most frequent class everywhere."""
    counts = np.bincount(masks[masks != IGNORED])
    return counts.max() / counts.sum() / np.count_nonzero(counts)


def iou_interval(confusions: np.ndarray) -> tuple[float, float]:
    """Returns the 95 % interval of the mean IoU: a bootstrap over images, i[M, C, C]."""
    rng, count = generator(0, "images: segmentation", 0), len(confusions)
    resampled = (confusions[rng.integers(count, size=count)].sum(0) for _ in range(DRAWS))
    return interval(np.array([mean_iou(confusion) for confusion in resampled]))


def probe(train, train_masks, test, test_masks, *, num_classes: int, epochs: int):
    """Trains a linear layer on feature maps f32[N, h, w, D] and masks u8[N, H, W].

    One training image in ten is held out. The regularisation is chosen by the mean IoU on these.

    Returns:
        The pixels of each test image by true and predicted class, i[M, C, C].
    """
    mean = train.mean((0, 1, 2), dtype=np.float64).astype(np.float32)
    deviation = train.std((0, 1, 2), dtype=np.float64).astype(np.float32) + _EPSILON
    train, test = (train - mean) / deviation, (test - mean) / deviation
    held_out = np.arange(len(train)) % 10 == 9
    kept, kept_masks = train[~held_out], train_masks[~held_out]
    with jax.default_matmul_precision("highest"):
        layers = [_train(kept, kept_masks, s, num_classes, epochs) for s in _STRENGTHS]
        scores = [
            mean_iou(_confusions(layer, train[held_out], train_masks[held_out]).sum(0))
            for layer in layers
        ]
        return _confusions(layers[int(np.argmax(scores))], test, test_masks)


def _train(maps: np.ndarray, masks: np.ndarray, strength: float, num_classes: int, epochs: int):
    """Returns the kernel [D, C] and the bias [C] of a layer."""
    rows = min(_BATCH_SIZE, len(maps))
    per_epoch = len(maps) // rows
    optimizer = optax.adam(optax.cosine_decay_schedule(_LEARNING_RATE, epochs * per_epoch))
    layer = (jnp.zeros((maps.shape[-1], num_classes)), jnp.zeros(num_classes))
    state = optimizer.init(layer)

    def loss_fn(layer, x, y):
        counted = y != IGNORED
        losses = optax.softmax_cross_entropy_with_integer_labels(
            _pixel_logits(layer, x, y.shape[1:]), jnp.where(counted, y, 0)
        )
        return losses.mean(where=counted) + strength * jnp.square(layer[0]).sum() / 2

    @jax.jit
    def step(layer, state, x, y):
        updates, state = optimizer.update(jax.grad(loss_fn)(layer, x, y), state, layer)
        return optax.apply_updates(layer, updates), state

    for epoch in range(epochs):
        order = generator(0, "dense probe", epoch).permutation(len(maps))
        for start in range(0, per_epoch * rows, rows):
            chosen = np.sort(order[start : start + rows])
            layer, state = step(layer, state, maps[chosen], masks[chosen].astype(np.int32))
    return layer


def _pixel_logits(layer, x, size: tuple[int, int]) -> jax.Array:
    """Returns the logits of all pixels, f32[B, H, W, C]."""
    kernel, bias = layer
    logits = x @ kernel + bias[None, None, None]
    return jax.image.resize(logits, (len(x), *size, len(bias)), "bilinear")


def _confusions(layer, maps: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Returns the pixels of each image by true and predicted class."""
    predict = jax.jit(lambda x: _pixel_logits(layer, x, masks.shape[1:]).argmax(-1))
    parts = [predict(maps[i : i + _BATCH_SIZE]) for i in range(0, len(maps), _BATCH_SIZE)]
    count = len(layer[1])
    both = masks.astype(np.int64) * count + np.concatenate(parts)
    found = [
        np.bincount(b[m != IGNORED], minlength=count**2) for b, m in zip(both, masks, strict=True)
    ]
    return np.stack(found).reshape(-1, count, count)
