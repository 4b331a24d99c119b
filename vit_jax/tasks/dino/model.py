"""The model of self-distillation: a ViT with a projection head, at the sizes of both crops."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from vit_jax.models.activation_sharding import constrain
from vit_jax.models.family import as_images
from vit_jax.models.two_towers import normalized
from vit_jax.models.vit import ViT, learned_tokens
from vit_jax.models.vit_family import vit_shape
from vit_jax.models.vit_options import ViTConfig
from vit_jax.named_tree import map_named
from vit_jax.tasks.dino.config import DinoConfig

# The authors' deviation of 0.02 at their width of 2048, and the right one at other widths.
_init = nnx.initializers.lecun_normal()


class SelfDistilled(ViT):
    """A ViT without a classification head, with one or two projection heads.

    Called like any ViT, it returns the pooled features. `mask_token` replaces embedded patches, and
    `patch_projector` is the head on the patches, for the iBOT term. As in arXiv:2304.07193, the two
    heads share no parameters.
    """

    def __init__(
        self,
        options: ViTConfig,
        section: DinoConfig,
        *,
        image_size: int,
        platform: str | None = None,
        rngs: nnx.Rngs,
    ):
        shape, masks_patches = vit_shape(options), section.ibot_weight > 0
        super().__init__(
            shape,
            options,
            num_classes=0,
            image_size=(image_size, image_size),
            platform=platform,
            rngs=rngs,
        )
        self.mask_token = learned_tokens(1, shape.width, rngs) if masks_patches else None
        dtype = jnp.dtype(options.dtype)
        self.projector = Projector(shape.width, section, dtype=dtype, rngs=rngs)
        self.patch_projector = (
            Projector(shape.width, section, dtype=dtype, rngs=rngs) if masks_patches else None
        )

    def encode_masked(
        self,
        images: Float[Array, "M H W 3"],
        masked: Bool[Array, "B 2 N"] | None,
        *,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, "M D"], Float[Array, "M T D"]]:
        """Returns the pooled features and all encoded tokens of crops with masked patches.

        None: no patch is masked. A key turns dropout and stochastic depth on.
        """
        images = as_images(images, self.image_size)
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        patches = self.embed_patches(images)
        if masked is not None and self.mask_token is not None:
            token = self.mask_token[...].astype(patches.dtype)
            is_masked = masked.reshape(*patches.shape[:2], 1)
            patches = constrain(jnp.where(is_masked, token, patches), "batch")
        encoded, _ = self.encode(self.embed(patches, key=keys[0]), key=keys[1])
        return self.head(self.pool(encoded))[0], encoded


class Projector(nnx.Module):
    """Three layers with GELU, scaling to length 1, and a linear layer of unit-length prototypes.

    `features` is D; the matmuls run in `dtype`. Source: arXiv:2104.14294, appendix C.
    """

    def __init__(self, features: int, section: DinoConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        sizes = (features, section.head_width, section.head_width, section.bottleneck)

        def linear(place: int) -> nnx.Linear:
            return nnx.Linear(*sizes[place : place + 2], kernel_init=_init, dtype=dtype, rngs=rngs)

        self.first, self.second, self.bottleneck = (linear(place) for place in range(3))
        self.prototypes = Prototypes(section, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "B *N D"]) -> Float[Array, "B *N K"]:
        """Returns the logits, f32."""
        x = jax.nn.gelu(constrain(self.first(x), "batch"), approximate=False)
        x = jax.nn.gelu(constrain(self.second(x), "batch"), approximate=False)
        return self.prototypes(normalized(self.bottleneck(x).astype(jnp.float32)))


class Prototypes(nnx.Module):
    """A linear layer with weight normalisation: kernel columns of length 1, or a learned length."""

    def __init__(self, section: DinoConfig, *, dtype: DTypeLike, rngs: nnx.Rngs):
        shape = (section.bottleneck, section.prototypes)
        self.kernel = nnx.Param(_init(rngs.params(), shape, jnp.float32))
        self.scale = nnx.Param(jnp.ones(section.prototypes)) if section.prototype_scale else None
        self.dtype = dtype

    def __call__(self, x: Float[Array, "B *N F"]) -> Float[Array, "B *N K"]:
        kernel = normalized(self.kernel[...], axis=0)
        if self.scale is not None:
            kernel = kernel * self.scale[...][None]
        logits = jnp.matmul(
            x.astype(self.dtype), kernel.astype(self.dtype), preferred_element_type=jnp.float32
        )
        return constrain(logits, "batch")


def resample_positions(params: Any, old: tuple[int, int], new: tuple[int, int]) -> Any:
    """Returns the parameters for another grid of patches, with their position tables resampled.

    The crop covers the whole table, as if it were the whole image. Differentiable, unlike
    `interop.resize`. Source: the authors' code, `interpolate_pos_encoding`.
    """
    if old == new:
        return params
    rows, columns = (cubic_matrix(*sizes) for sizes in zip(old, new, strict=True))
    multiply = functools.partial(jnp.einsum, precision="highest")

    def resample(name: str, leaf: jax.Array) -> jax.Array:
        if name == "position_embedding/table":
            patches = old[0] * old[1]
            prefix, table = leaf[:, :-patches], leaf[0, -patches:].reshape(*old, -1)
            resized = multiply("rh,cw,hwd->rcd", rows, columns, table)
            return jnp.concatenate([prefix, resized.reshape(1, new[0] * new[1], -1)], axis=1)
        if name == "position_embedding/by_row":
            return multiply("rh,hd->rd", rows, leaf)
        by_column = name == "position_embedding/by_column"
        return multiply("cw,wd->cd", columns, leaf) if by_column else leaf

    return map_named(resample, params)


def cubic_matrix(old: int, new: int) -> Float[np.ndarray, "m n"]:
    """Returns the matrix that resamples `old` values to `new` ones as PyTorch does for the authors.

    Cubic convolution with a = -0.75, not antialiased; values at the ends are repeated. The authors
    add 0.1 to the new size against rounding, so its scale is (new + 0.1) / old.
    """
    centres = (np.arange(new) + 0.5) * old / (new + 0.1) - 0.5
    matrix = np.zeros((new, old), np.float32)
    for row, centre in enumerate(centres):
        for place in int(np.floor(centre)) + np.arange(-1, 3):
            matrix[row, np.clip(place, 0, old - 1)] += _cubic(abs(place - centre))
    return matrix


def _cubic(distance: float) -> float:
    """Returns the weight of a value at this distance. Source: Keys, 1981, equation 4."""
    a = -0.75  # As in torch.
    if distance <= 1:
        return (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    return a * (distance**3 - 5 * distance**2 + 8 * distance - 4)
