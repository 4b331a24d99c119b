"""Exact classification metrics: every example counts once, on any number of devices and hosts."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from vit_jax.data.device import Batch, to_unit_range
from vit_jax.evaluation.by_class import ByClass, class_outputs
from vit_jax.parallel.mesh import batch_sharding, to_devices

# logits, labels -> one loss an example.
LossFn = Callable[[jax.Array, jax.Array], jax.Array]
Sums = dict[str, jax.Array]
EvalStep = Callable[[Any, Batch], Sums]


def make_eval_step(graphdef: nnx.GraphDef, loss: LossFn, *, by_class: bool = False) -> EvalStep:
    """Returns eval_step_fn(params, batch) -> sums over the examples whose mask is True.

    The sums: loss (f32), top1, top5, predictions (one an example) and examples (i32). An example is
    right in top k when fewer than k classes have a logit above its label's, or an equal one and a
    lower index: ties never count twice. With `by_class` also what `class_outputs` gives.
    """

    def eval_step_fn(params: Any, batch: Batch) -> Sums:
        labels, mask = batch["label"], batch["mask"]
        logits = nnx.merge(graphdef, params)(to_unit_range(batch["image"]))
        sums = prediction_sums(logits, labels, mask, loss) | {"examples": jnp.sum(mask)}
        return sums | (class_outputs(logits, labels, mask) if by_class else {})

    return eval_step_fn


def prediction_sums(
    logits: Float[Array, "M C"], labels: Int[Array, " M"], mask: Bool[Array, " M"], loss: LossFn
) -> Sums:
    """Returns loss, top1, top5 and the number of the predictions whose mask is True."""
    own = jnp.take_along_axis(logits, labels[:, None], axis=1)
    before = jnp.arange(logits.shape[1])[None] < labels[:, None]
    # A NaN logit beats all: a broken model must not score.
    rank = jnp.sum(~(logits < own) & ((logits != own) | before), axis=1)
    valid = mask & ~jnp.isnan(own[:, 0])
    return {
        "loss": jnp.sum(jnp.where(mask, loss(logits, labels), 0)),
        "top1": jnp.sum((rank < 1) & valid),
        "top5": jnp.sum((rank < 5) & valid),
        "predictions": jnp.sum(mask),
    }


def jit_eval_step(eval_step: EvalStep, param_shardings: Any, mesh: Mesh) -> EvalStep:
    """Returns the step jitted, with its sums on every device."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.jit(
        eval_step, in_shardings=(param_shardings, batch_sharding(mesh)), out_shardings=everywhere
    )


def evaluate(
    eval_step: EvalStep,
    params: Any,
    batches: Iterable[dict[str, np.ndarray]],
    mesh: Mesh,
    by_class: ByClass | None = None,
) -> dict[str, float]:
    """Runs over all batches of this host.

    Args:
        eval_step: sums over one batch.
        params: the model's parameters.
        batches: of this host.
        mesh: devices.
        by_class: adds up what a step made `by_class` gives; None: nothing of classes is asked for.

    Returns:
        loss, accuracy_top1 and accuracy_top5 as means over the predictions, of which a classified
        example is one, and `examples`; with `by_class` its figures too.
    """
    totals = {"loss": 0.0, "top1": 0, "top5": 0, "predictions": 0, "examples": 0}
    pending: list[Sums] = []

    def drain(keep: int) -> None:
        while len(pending) > keep:
            found = jax.device_get(pending.pop(0))
            for name in totals:
                totals[name] += found[name].item()
            if by_class is not None:
                by_class.add(found)

    for batch in batches:
        pending.append(eval_step(params, to_devices(batch, mesh)))
        drain(keep=2)
    drain(keep=0)
    count = totals["predictions"]
    return {
        "loss": totals["loss"] / count,
        "accuracy_top1": totals["top1"] / count,
        "accuracy_top5": totals["top5"] / count,
        "examples": totals["examples"],
        **({} if by_class is None else by_class.figures()),
    }
