"""The largest attention logits of a model in training, a warning before it diverges."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.data.device import Batch, to_unit_range
from vit_jax.errors import ConfigError
from vit_jax.models.placement import Placement, placed
from vit_jax.parallel.mesh import batch_parts
from vit_jax.train.program import Program

# Images a device looks at: the logits of all heads are held in memory, which kernels avoid.
_IMAGES = 4


def make_attention_watch(program: Program) -> Callable[[Any, Batch], dict[str, float]]:
    """Returns watch_fn(params, batch) -> metrics.

    These are "train/max_attention_logit" and, of each layer alone,
    "train/max_attention_logit/layer_00" and so on: logits before the softmax, over a few images of
    each device, without dropout or mixing.

    Raises:
        ConfigError: a model without attention.

    Source: arXiv:2302.05442, section 3.1.
    """
    name = "max_attention_logit"
    if name not in nnx.merge(program.graphdef, program.abstract.params).intermediates:
        raise ConfigError(
            f"'logging.attention_interval_steps' with {program.config.model.name}",
            "a model with attention", "leave it out",
        )  # fmt: skip
    batch_size = program.config.data.global_batch_size
    stride = max(batch_size // (batch_parts(program.mesh) * _IMAGES), 1)

    def layers(params: Any, images: jax.Array) -> jax.Array:
        model = nnx.merge(program.graphdef, params)
        _, found = model(to_unit_range(images[::stride]), return_intermediates=(name,))
        return found[name].max((1, 2))

    everywhere = NamedSharding(program.mesh, PartitionSpec())
    layers_fn = jax.jit(placed(layers, Placement(program.mesh)), out_shardings=everywhere)

    def watch_fn(params: Any, batch: Batch) -> dict[str, float]:
        values = jax.device_get(layers_fn(params, batch["image"]))
        each = {f"train/{name}/layer_{i:02}": float(v) for i, v in enumerate(values)}
        return {f"train/{name}": float(values.max()), **each}

    return watch_fn
