"""Parameters, operations and memory of a model, computed without running or compiling it."""

import dataclasses
import math
from typing import Any

import jax
from flax import nnx

from vit_jax.models.family import ImageModel
from vit_jax.models.flops import forward_macs
from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import build_model, family_of, model_shape

# A prime number that divides no other dimension of a model, so a residual whose size it divides
# grows with the batch. Nothing of this size is ever allocated.
_PRIME_BATCH = 1_000_003


@dataclasses.dataclass(frozen=True)
class Activations:
    """Memory per image that the forward pass of a training step keeps for the backward pass."""

    total_bytes: int  # Everything that grows with the batch, except the images.
    attention_bytes: int  # The attention weights among them.


@dataclasses.dataclass(frozen=True)
class Summary:
    """Size and cost of a model at one image size."""

    sizes: list[tuple[str, str, str]]  # (label, value, note).
    image_size: int  # Side in pixels.
    tokens: int | None  # Class token and registers included; None: a model without tokens.
    parts: dict[str, int]  # Parameters of each top-level module, in the order of the forward pass.
    macs: int  # Multiply-accumulates of one image's forward pass.
    activations: Activations

    @property
    def parameters(self) -> int:
        return sum(self.parts.values())

    @property
    def flops(self) -> int:
        """Floating-point operations of one image's forward pass, 2 per multiply-accumulate."""
        return 2 * self.macs


def fitting_image_size(options: ModelConfig, image_size: int) -> int:
    """Returns the smallest side in pixels, at least `image_size`, that a model supports.

    >>> from vit_jax.models.registry import model_options
    >>> fitting_image_size(model_options("ViT-Ti/14"), 200)
    210
    """
    multiple = model_shape(options).image_multiple
    return math.ceil(image_size / multiple) * multiple


def summarize(options: ModelConfig, *, num_classes: int, image_size: int) -> Summary:
    """Computes the size and cost of a model.

    Attention is computed as on a CPU, unless the options name a kernel.
    """
    sizes = {"num_classes": num_classes, "image_size": (image_size, image_size)}
    family = family_of(options.name)

    def build() -> ImageModel:
        return build_model(options, **sizes, key=jax.random.key(0), platform="cpu")

    model = nnx.eval_shape(build)
    return Summary(
        sizes=family.describe(options, model),
        image_size=image_size,
        tokens=model.num_tokens,
        parts=parameters_by_part(model),
        macs=forward_macs(options, **sizes),
        activations=measure_activations(model, image_size),
    )


def parameters_by_part(model: ImageModel) -> dict[str, int]:
    """Returns the parameters of each top-level module, in the order of the forward pass."""
    state = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    counts = {
        name: sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(part))
        for name, part in state.items()
    }
    return {name: counts[name] for name in model.parts if name in counts}


def measure_activations(model: ImageModel, image_size: int) -> Activations:
    """Traces `jax.vjp` of the model and adds up its residuals, without compiling.

    These are the values that the forward pass of a training step keeps for the backward pass, so
    the effects of remat, dropout, dtype and attention kernel all show. XLA may need less, because
    it recomputes cheap values, or more at its peak. The model may be abstract.
    """
    graphdef, state = nnx.split(model)
    inputs = model.example_inputs(_PRIME_BATCH)

    def residuals(params: Any, *inputs: jax.Array) -> list[jax.Array]:
        def forward(params: Any) -> Any:
            return nnx.merge(graphdef, params)(*inputs, key=jax.random.key(0))

        return jax.tree.leaves(jax.vjp(forward, params)[1])

    jaxpr = jax.make_jaxpr(residuals)(nnx.to_pure_dict(state), *inputs).jaxpr
    given = {id(v) for v in jaxpr.invars}
    kept: dict[int, Any] = {id(v): v.aval for v in jaxpr.outvars if id(v) not in given}
    grown = [a for a in kept.values() if a.size and a.size % _PRIME_BATCH == 0]
    # A square of tokens x features follows the batch, attention weights follow the heads.
    squares = [(length, length) for length in model.attention_lengths]
    weights = [a for a in grown if a.shape[-2:] in squares and a.shape[-3] % _PRIME_BATCH]
    return Activations(_bytes_per_image(grown), _bytes_per_image(weights))


def _bytes_per_image(avals: list[Any]) -> int:
    return sum(a.size * a.dtype.itemsize for a in avals) // _PRIME_BATCH
