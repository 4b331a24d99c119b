"""What a model is made of and what it costs, told from its code without running or compiling it."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.flops import forward_macs
from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import SMALL_IMAGE_SIZE, build_model, is_small, resolve
from vit_jax.models.resnet import ResNet, ResNetShape
from vit_jax.models.vit import ViT, ViTShape

# A batch that no other size of a model is a multiple of, so that a residual's size tells whether it
# grows with the batch. Nothing of this size is ever allocated.
_PRIME_BATCH = 1_000_003
# Top-level modules as a forward pass meets them.
_ORDER = (
    "trunk", "stem", "patch_embedding", "mask_token", "class_token", "registers",
    "position_embedding", "encoder", "norm", "attention_pooling", "head",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Activations:
    """What the forward pass of a training step keeps for the backward pass, per image.

    Attributes:
        total_bytes: everything that grows with the batch, the images themselves left out.
        attention_bytes: the part of it that is attention weights, heads x tokens x tokens a block.
    """

    total_bytes: int
    attention_bytes: int


@dataclasses.dataclass(frozen=True)
class Summary:
    """The figures of a model at a resolution.

    Attributes:
        shape: the sizes that its name stands for, as overridden.
        image_size: side in pixels.
        grid: rows and columns of patches, or of a ResNet's last feature map.
        tokens: class token and registers included; None: a ResNet.
        num_prefix: how many of the tokens are no patches.
        parts: parameters of each top-level module.
        macs: multiply-accumulates of one image's forward pass, see `flops.forward_macs`.
        activations: of a training step, per image.
    """

    shape: ViTShape | ResNetShape
    image_size: int
    grid: tuple[int, int]
    tokens: int | None
    num_prefix: int
    parts: dict[str, int]
    macs: int
    activations: Activations

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return sum(self.parts.values())

    @property
    def flops(self) -> int:
        """Floating-point operations of one image's forward pass: 2 a multiply-accumulate."""
        return 2 * self.macs


def usual_image_size(name: str) -> int:
    """Returns the side in pixels that a name is shown at unless one is asked for.

    >>> usual_image_size("ViT-B/16"), usual_image_size("BiT-R-Mini")
    (224, 32)
    """
    return SMALL_IMAGE_SIZE if is_small(name) else 224


def fitting_image_size(shape: ViTShape | ResNetShape, image_size: int) -> int:
    """Returns the smallest side in pixels, at least `image_size`, that the model can take.

    >>> fitting_image_size(ViTShape(192, 12, 768, 3, patch_size=14), 200)
    210
    """
    if isinstance(shape, ResNetShape):
        return image_size
    return math.ceil(image_size / shape.stride) * shape.stride


def summarize(options: ModelConfig, *, num_classes: int, image_size: int) -> Summary:
    """Measures a model.

    Attention is that of a CPU wherever this runs, unless the options name a kernel.

    Args:
        options: the model section of a config.
        num_classes: C; 0 for a model without a head.
        image_size: side in pixels that the model is made for.

    Raises:
        ModelError: unknown name, or sizes that do not go together.
    """
    side = (image_size, image_size)
    shape = resolve(options)

    def build() -> ViT | ResNet:
        return build_model(
            options, num_classes=num_classes, image_size=side, key=jax.random.key(0), platform="cpu"
        )

    model = nnx.eval_shape(build)
    is_vit = isinstance(model, ViT)
    map_side = math.ceil(image_size / shape.stride)
    return Summary(
        shape=shape,
        image_size=image_size,
        grid=model.grid if is_vit else (map_side, map_side),
        tokens=model.tokens if is_vit else None,
        num_prefix=model.num_prefix if is_vit else 0,
        parts=parameters_by_part(model),
        macs=forward_macs(options, num_classes=num_classes, image_size=side),
        activations=measure_activations(model, image_size),
    )


def parameters_by_part(model: nnx.Module) -> dict[str, int]:
    """Returns the number of parameters of each top-level module, in the order of the forward pass.

    Args:
        model: real, or abstract as `nnx.eval_shape` makes it.
    """
    state = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    counts = {
        name: sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(part))
        for name, part in state.items()
    }
    return {name: counts[name] for name in (*_ORDER, *counts) if name in counts}


def measure_activations(model: ViT | ResNet, image_size: int) -> Activations:
    """Traces `jax.vjp` of the model and adds up what it keeps, without compiling.

    These are the values that the code hands from the forward to the backward pass of a training
    step, in the types that it hands them over, so that remat, dropout, dtype and attention kernel
    all show. What XLA makes of them can be less (it recomputes cheap ones) or, at its peak, more.

    Args:
        model: real or abstract.
        image_size: side in pixels.
    """
    graphdef, state = nnx.split(model)
    batch = jax.ShapeDtypeStruct((_PRIME_BATCH, image_size, image_size, 3), jnp.float32)

    def residuals(params: Any, images: jax.Array) -> list[jax.Array]:
        def forward(params: Any) -> Any:
            return nnx.merge(graphdef, params)(images, key=jax.random.key(0))

        return jax.tree.leaves(jax.vjp(forward, params)[1])

    jaxpr = jax.make_jaxpr(residuals)(nnx.to_pure_dict(state), batch).jaxpr
    given = {id(v) for v in jaxpr.invars}
    kept = {id(v): v.aval for v in jaxpr.outvars if id(v) not in given}
    grown = [a for a in kept.values() if a.size and a.size % _PRIME_BATCH == 0]
    tokens = None if isinstance(model, ResNet) else model.attention.padded_tokens
    weights = [a for a in grown if a.shape[-2:] == (tokens, tokens) and a.shape[-3] != _PRIME_BATCH]
    return Activations(_bytes_per_image(grown), _bytes_per_image(weights))


def _bytes_per_image(avals: list[Any]) -> int:
    return sum(a.size * a.dtype.itemsize for a in avals) // _PRIME_BATCH
