"""Contrastive losses of a batch of pairs, on devices none of which holds the whole B x B matrix.

The logit of image i and text j is temperature * <image i, text j> + bias. Image i and text i are a
pair. On n devices, each has b = B / n pairs:

- softmax (CLIP): a device gathers the embeddings of the other tower, and holds b x B logits of its
  images and b x B logits of its texts.
- sigmoid (SigLIP): the texts travel in a ring, and a device holds b x b logits at a time.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float

from vit_jax.models.activation_sharding import BATCH_AXES

_ROWS, _SCALAR = PartitionSpec(BATCH_AXES), PartitionSpec()


class PairLoss(NamedTuple):
    """The loss of a batch of pairs, and how well it is solved.

    `accuracy` is the fraction of the images for which no text of the batch has a larger logit than
    their own.
    """

    loss: Float[Array, ""]
    accuracy: Float[Array, ""]


def softmax_loss(
    images: Float[Array, "B E"],
    texts: Float[Array, "B E"],
    temperature: Float[Array, ""],
    bias: Float[Array, ""],
) -> PairLoss:
    """Returns the mean cross-entropy of finding an image's text, and a text's image, in the batch.

    The embeddings have length 1. The bias cancels in a softmax, so its gradient is zero.
    Source: arXiv:2103.00020, Figure 3.
    """
    losses, found = _on_devices(_rows, (_ROWS, _ROWS))(images, texts, temperature, bias)
    return PairLoss(losses.mean(), found.mean(dtype=jnp.float32))


def _rows(
    axes: tuple[str, ...], images: Array, texts: Array, temperature: Array, bias: Array
) -> tuple[Float[Array, " b"], Bool[Array, " b"]]:
    """Returns the losses of a device's pairs, and whether its images find their texts."""
    first = jax.lax.axis_index(axes) * len(images) if axes else 0
    rows = jnp.arange(len(images))

    def loss(own: Array, others: Array) -> tuple[Float[Array, " b"], Bool[Array, " b"]]:
        if axes:
            others = jax.lax.all_gather(others, axes, tiled=True)
        logits = temperature * (own @ others.T) + bias  # [b, B]
        of_pairs = logits[rows, first + rows]
        found = of_pairs >= jax.lax.stop_gradient(logits).max(-1)
        return jax.nn.logsumexp(logits, -1) - of_pairs, found

    (of_images, found), (of_texts, _) = loss(images, texts), loss(texts, images)
    return (of_images + of_texts) / 2, found


@jax.custom_vjp
def sigmoid_loss(
    images: Float[Array, "B E"],
    texts: Float[Array, "B E"],
    temperature: Float[Array, ""],
    bias: Float[Array, ""],
) -> PairLoss:
    """Returns the sum over all i, j of -log sigmoid(s logit(i, j)), divided by B.

    s is 1 for pairs and -1 for other images and texts. The embeddings have length 1. The ring that
    computes the loss computes its gradient, too: each block of texts takes its gradient along. So
    nothing is kept for a backward pass but the gradients of the embeddings.

    Source: arXiv:2303.15343, Algorithm 1 and section 3.3.
    """
    return _sigmoid_forward(images, texts, temperature, bias)[0]


def _sigmoid_forward(*args: Array) -> tuple[PairLoss, tuple[Array, ...]]:
    size = len(args[0])
    loss, found, gradients = _on_devices(_ring, (_ROWS, _ROWS, (_ROWS,) * 4))(*args)
    of_images, of_texts, of_temperature, of_bias = (x / size for x in gradients)
    kept = of_images, of_texts, of_temperature.sum(), of_bias.sum()
    return PairLoss(loss.sum() / size, found.mean(dtype=jnp.float32)), kept


def _sigmoid_backward(kept: tuple[Array, ...], cotangent: PairLoss) -> tuple[Array, ...]:
    return tuple(gradient * cotangent.loss for gradient in kept)


sigmoid_loss.defvjp(_sigmoid_forward, _sigmoid_backward)

LOSSES: dict[str, Callable[..., PairLoss]] = {"softmax": softmax_loss, "sigmoid": sigmoid_loss}


def _ring(
    axes: tuple[str, ...], images: Array, texts: Array, temperature: Array, bias: Array
) -> tuple[Float[Array, "1"], Bool[Array, " b"], tuple[Array, ...]]:
    """Returns the sum of a device's losses, whether its images find their texts, and gradients.

    The gradients are those of the sum of all devices' losses. Those of temperature and bias,
    f32[1], are this device's part of a sum.
    """
    devices = math.prod(jax.lax.axis_size(axis) for axis in axes)
    to_next = [(i, (i + 1) % devices) for i in range(devices)]
    gradient = jax.value_and_grad(_block_loss, argnums=(0, 1, 2, 3), has_aux=True)

    def visit(carry: Any, step: Array) -> tuple[Any, None]:
        (texts, of_texts), (loss, of_images, of_temperature, of_bias), (best, own) = carry
        (more, logits), found = gradient(images, texts, temperature, bias, step == 0)
        sums = jax.tree.map(
            jnp.add, (loss, of_images, of_texts, of_temperature, of_bias), (more, *found)
        )
        loss, of_images, of_texts, of_temperature, of_bias = sums
        best = jnp.maximum(best, logits.max(-1))
        own = jnp.where(step == 0, jnp.diagonal(logits), own)
        moving = texts, of_texts
        if axes:
            moving = jax.lax.ppermute(moving, axes, to_next)
        return (moving, (loss, of_images, of_temperature, of_bias), (best, own)), None

    zero = jnp.zeros((), images.dtype)
    start = (
        (texts, jnp.zeros_like(texts)),
        (zero, jnp.zeros_like(images), zero, zero),
        (jnp.full(len(images), -jnp.inf), jnp.zeros(len(images))),
    )
    # After as many moves as there are devices, each block and its gradient are home again.
    end, _ = jax.lax.scan(visit, start, jnp.arange(devices))
    (_, of_texts), (loss, of_images, of_temperature, of_bias), (best, own) = end
    return loss[None], own >= best, (of_images, of_texts, of_temperature[None], of_bias[None])


def _block_loss(
    images: Float[Array, "b E"],
    texts: Float[Array, "b E"],
    temperature: Float[Array, ""],
    bias: Float[Array, ""],
    has_pairs: Bool[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, "b b"]]:
    """Returns the summed losses and the logits of a block, whose diagonal may be pairs."""
    logits = temperature * (images @ texts.T) + bias
    is_pair = jnp.eye(len(images), dtype=bool) & has_pairs
    return -jax.nn.log_sigmoid(jnp.where(is_pair, logits, -logits)).sum(), logits


def _on_devices(function: Callable[..., Any], results: Any) -> Callable[..., Any]:
    """Returns a function of (images, texts, temperature, bias) that runs on each device.

    `function` gets the axes of the mesh that share a batch, () if there is no mesh, and a device's
    part of the arguments. `results` is a tree of `PartitionSpec`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return partial(function, ())
    specs = (_ROWS, _ROWS, _SCALAR, _SCALAR)
    return jax.shard_map(
        partial(function, BATCH_AXES), mesh=mesh, in_specs=specs, out_specs=results, check_vma=False
    )
