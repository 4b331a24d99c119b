"""Logs each layer's largest attention logit; it grows before a run diverges."""

from typing import Any

import jax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.config.durations import is_due
from vit_jax.data.device import to_unit_range
from vit_jax.models.activation_sharding import with_mesh
from vit_jax.parallel.mesh import num_batch_shards
from vit_jax.train.context import RunContext, StepOutput
from vit_jax.train.hooks.log import LogHook
from vit_jax.train.program import Program

# Images per device. Their attention logits are held in memory, which fused kernels avoid.
_IMAGES = 4
_NAME = "max_attention_logit"


class WatchAttentionHook:
    """Writes "train/max_attention_logit" and, for each layer, ".../layer_00", ".../layer_01", ...

    The logits are computed for a few images per device, without dropout or mixing.
    Source: arXiv:2302.05442, section 3.1.
    """

    def __init__(self, context: RunContext, log: LogHook):
        self._log = log
        self._every = context.config.logging.attention_interval_steps
        self._largest_fn = None if self._every is None else make_largest_logits(context.program)

    def after_step(self, context: RunContext, output: StepOutput) -> None:
        if self._largest_fn is None or not is_due(output.step, self._every):
            return
        with self._log.paused():
            layers = jax.device_get(self._largest_fn(output.state.params, output.batch["image"]))
        metrics = {f"train/{_NAME}": float(layers.max())}
        metrics |= {f"train/{_NAME}/layer_{i:02}": float(v) for i, v in enumerate(layers)}
        context.metrics.write(output.step, metrics)


def make_largest_logits(program: Program) -> Any:
    """Returns a jitted function (params, u8 images) -> largest logit of each layer, f32[L]."""
    batch_size = program.config.data.global_batch_size
    stride = max(batch_size // (num_batch_shards(program.mesh) * _IMAGES), 1)

    def largest(params: Any, images: jax.Array) -> jax.Array:
        model = nnx.merge(program.graphdef, params)
        _, found = model(to_unit_range(images[::stride]), return_intermediates=(_NAME,))
        return found[_NAME].max((1, 2))

    replicated = NamedSharding(program.mesh, PartitionSpec())
    return jax.jit(with_mesh(largest, program.mesh), out_shardings=replicated)
