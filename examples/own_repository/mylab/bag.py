"""A bag of patches: an MLP for each patch, and the mean of all patches."""

import dataclasses
import re
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

import vit_jax
from vit_jax.models.embedding import PatchEmbedding, PatchShape
from vit_jax.models.family import (
    Family,
    ImageModel,
    Layer,
    as_images,
    check_image_size,
    check_intermediates,
    override_sizes,
    with_intermediates,
)
from vit_jax.models.heads import HEAD_RULES, Head
from vit_jax.models.layers import LayerNorm
from vit_jax.models.options import ModelConfig
from vit_jax.schema import option


class BagConfig(ModelConfig):
    """Options of a bag of patches: the keys model.name, model.width, ... of a run."""

    kind: ClassVar[str] = "a bag of patches"

    width: int | None = option(None, at_least=1)
    """Overrides the width of the named model."""


@dataclasses.dataclass(frozen=True)
class BagShape(PatchShape):
    """The sizes that a name like "Bag-64/4" stands for."""

    width: int
    patch_size: int  # In pixels.


def parse(name: str) -> BagShape | None:
    """Returns the sizes of a name, "Bag-64/4"; None: it is not a model of this family."""
    match = re.fullmatch(r"Bag-([1-9]\d*)/([1-9]\d*)", name)
    return BagShape(int(match[1]), int(match[2])) if match else None


def shape_of(options: BagConfig) -> BagShape:
    """Returns the sizes of the name, with the options that override them."""
    return override_sizes(parse(options.name), options, ("width",))


class Bag(ImageModel):
    """A bag of patches."""

    parts = ("patch_embedding", "hidden", "norm", "head")

    def __init__(
        self,
        shape: BagShape,
        options: BagConfig,
        *,
        num_classes: int,
        image_size: tuple[int, int],
        rngs: nnx.Rngs,
    ) -> None:
        check_image_size(image_size, shape.patch_size, "patch size")
        dtype = jnp.dtype(options.dtype)  # Of activations; parameters are float32.
        self.image_size = image_size
        self.grid = (image_size[0] // shape.patch_size, image_size[1] // shape.patch_size)
        self.num_tokens = self.grid[0] * self.grid[1]
        self.patch_embedding = PatchEmbedding(
            shape.patch_size, 3, shape.width, dtype=dtype, rngs=rngs
        )
        self.hidden = nnx.Linear(shape.width, shape.width, dtype=dtype, rngs=rngs)
        self.norm = LayerNorm(shape.width, dtype=dtype)
        self.head = Head(shape.width, num_classes, bias_init=options.head_bias_init, rngs=rngs)

    @property
    def intermediates(self) -> tuple[str, ...]:  # What return_intermediates can ask for.
        return ("pre_logits",)

    @property
    def num_layers(self) -> int:  # Layer 0: the embedded patches; layer 1: the hidden layer.
        return 1

    def __call__(
        self,
        images: Any,
        *,
        key: jax.Array | None = None,
        return_intermediates: tuple[str, ...] = (),
    ) -> Any:
        check_intermediates(return_intermediates, self.intermediates)
        x = self.layer_outputs(images, frozenset({1}))[1]
        logits, pre_logits = self.head(self.norm(x).mean(1, dtype=jnp.float32))
        return with_intermediates(logits, {"pre_logits": pre_logits}, return_intermediates)

    # Tokens [B, N, D] after each layer: model.features and linear probes read them.
    def layer_outputs(self, images: jax.Array, layers: frozenset[Layer]) -> dict[Layer, jax.Array]:
        patches = self.patch_embedding(as_images(images, self.image_size))
        return {0: patches, 1: nnx.gelu(self.hidden(patches))}

    def final_norm(self, x: jax.Array) -> jax.Array:
        return self.norm(x)


def build(
    options: BagConfig,
    *,
    num_classes: int,
    image_size: tuple[int, int],
    key: jax.Array,
    platform: str | None = None,
) -> Bag:
    """Builds a model with initial values."""
    return Bag(
        shape_of(options),
        options,
        num_classes=num_classes,
        image_size=image_size,
        rngs=nnx.Rngs(params=key),
    )


BAG = Family(
    name="Bag",
    options=BagConfig,
    sizes={"Bag-64/4": BagShape(64, 4)},  # Listed by `models`.
    small=frozenset({"Bag-64/4"}),  # For images of 32 pixels.
    parse=parse,
    pattern="Bag-WIDTH/PATCH",  # For the error of an unknown name.
    shape=shape_of,
    build=build,
    describe=lambda options, model: [("width", str(shape_of(options).width), "")],
    # Which mesh axis each dimension of a parameter is split over; no rule: replicated.
    sharding_rules=((r"hidden/kernel", ("fsdp", "tensor")), *HEAD_RULES),
    # For layer-wise learning rates, from the input on; what matches nothing is the last layer.
    layer_order=(r"patch_embedding/.*", r"hidden/.*"),
)
vit_jax.register_family(BAG)
