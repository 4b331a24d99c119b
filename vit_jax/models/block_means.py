"""Linear classifiers on the mean colours of blocks of pixels: the trivial baseline of other models.

A score that is no better than this one needs no model of images.
"""

import dataclasses
import re
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.models.family import (
    Family,
    ImageModel,
    Layer,
    check_image_size,
    check_images,
    check_intermediates,
    with_intermediates,
)
from vit_jax.models.heads import HEAD_RULES, Head
from vit_jax.models.options import ModelConfig

INTERMEDIATES = ("encoded", "pre_logits")


class BlockMeansConfig(ModelConfig):
    """Options of a linear classifier on block means."""

    kind: ClassVar[str] = "a classifier of block means"


@dataclasses.dataclass(frozen=True)
class BlockMeansShape:
    """The size that a name like "BlockMeans-8" stands for.

    Attributes:
        side: blocks along each side of the image.
    """

    side: int

    @property
    def image_multiple(self) -> int:
        """Image sides must be divisible by this."""
        return self.side


def _parse(name: str) -> BlockMeansShape | None:
    """Returns the shape of "BlockMeans-{side}"."""
    match = re.fullmatch(r"BlockMeans-([1-9]\d*)", name)
    return BlockMeansShape(int(match[1])) if match else None


def _shape(options: BlockMeansConfig) -> BlockMeansShape:
    found = _parse(options.name)
    assert found is not None
    return found


class BlockMeans(ImageModel):
    """Mean colour of each block of an image -> linear layer.

    Args:
        shape: number of blocks.
        options: the model section of a config.
        num_classes: C; 0 for features instead of logits.
        image_size: (height, width) in pixels.
        rngs: source of the initial values.

    Raises:
        ModelError: an image size that is not a multiple of the number of blocks.
    """

    parts = ("head",)

    def __init__(
        self,
        shape: BlockMeansShape,
        options: BlockMeansConfig,
        *,
        num_classes: int,
        image_size: tuple[int, int],
        rngs: nnx.Rngs,
    ):
        check_image_size(image_size, shape.side, "number of blocks")
        self.image_size, self.grid = image_size, (shape.side, shape.side)
        features = 3 * shape.side**2
        self.head = Head(features, num_classes, bias_init=options.head_bias_init, rngs=rngs)

    @property
    def intermediates(self) -> tuple[str, ...]:
        """Valid names for `return_intermediates`."""
        return INTERMEDIATES

    def __call__(
        self,
        images: Array | np.ndarray,
        *,
        key: jax.Array | None = None,
        return_intermediates: tuple[str, ...] = (),
    ) -> Float[Array, "B C"] | tuple[Float[Array, "B C"], dict[str, jax.Array]]:
        """Returns the logits, float32.

        Args:
            images: floating point [B, H, W, 3] in [-1, 1], of the model's image size.
            key: not used, because the model is deterministic.
            return_intermediates: names from INTERMEDIATES. If given, the result is a pair of the
                logits and a dict: "encoded" are the means [B, side, side, 3], "pre_logits" the same
                [B, F].

        Raises:
            ModelError: images of another size, or an unknown intermediate.
        """
        del key
        images = jnp.asarray(images)
        check_intermediates(return_intermediates, INTERMEDIATES)
        encoded = self.layer_outputs(images, frozenset({0}))[0]
        logits, pre_logits = self.head(encoded.reshape(len(images), -1))
        found = {"encoded": encoded, "pre_logits": pre_logits}
        return with_intermediates(logits, found, return_intermediates)

    @property
    def num_layers(self) -> int:
        return 0

    def layer_outputs(
        self, images: jax.Array, layers: frozenset[Layer]
    ) -> dict[Layer, Float[Array, "B *N D"]]:
        check_images(images, self.image_size)
        side, (height, width) = self.grid[0], self.image_size
        blocks = images.reshape(-1, side, height // side, side, width // side, 3)
        return dict.fromkeys(layers, blocks.mean((2, 4), dtype=jnp.float32))

    def final_norm(self, x: Float[Array, "B *N D"]) -> Float[Array, "B *N D"]:
        return x


def _build(
    options: BlockMeansConfig,
    *,
    num_classes: int,
    image_size: tuple[int, int],
    key: jax.Array,
    platform: str | None = None,
) -> BlockMeans:
    del platform  # Other families choose attention kernels by it.
    return BlockMeans(
        _shape(options),
        options,
        num_classes=num_classes,
        image_size=image_size,
        rngs=nnx.Rngs(params=key),
    )


def _describe(options: BlockMeansConfig, model: BlockMeans) -> list[tuple[str, str, str]]:
    side = _shape(options).side
    return [("blocks", f"{side} x {side}", f"{3 * side**2:,} means")]


BLOCK_MEANS = Family(
    name="BlockMeans",
    options=BlockMeansConfig,
    sizes={"BlockMeans-8": BlockMeansShape(8)},
    small=frozenset({"BlockMeans-8"}),
    parse=_parse,
    pattern="BlockMeans-BLOCKS",
    shape=_shape,
    build=_build,
    describe=_describe,
    sharding_rules=HEAD_RULES,
    layer_order=(),
)
