"""What a task is to the trainer: a model, what it reads of a batch, what is minimised."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.data.device import Batch
from vit_jax.evaluation.classification import EvalStep

# Batch as it came over the wire, step -> the batch that the loss reads.
Prepare = Callable[[Batch, jax.Array], Batch]
# params, prepared batch, key -> mean loss over the batch.
BatchLoss = Callable[[Any, Batch, jax.Array], Float[Array, ""]]
# (params, prepared batch, **options of the model's call) -> what the model returns, as the loss
# applies it.
Forward = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Task:
    """What a run learns.

    Attributes:
        build: makes the model of a random key; may be traced.
        graphdef: that model without its parameters.
        num_outputs: of its head.
        forward_macs: multiply-accumulates of one image's forward pass in training.
        prepare: from the batch that came over the wire to the one that the loss reads.
        forward: the model on that batch.
        batch_loss: what is minimised, with dropout on.
        eval_step: sums over one batch of an evaluation, not jitted.
    """

    build: Callable[[jax.Array], nnx.Module]
    graphdef: nnx.GraphDef
    num_outputs: int
    forward_macs: int
    prepare: Prepare
    forward: Forward
    batch_loss: BatchLoss
    eval_step: EvalStep
