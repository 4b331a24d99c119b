"""The masked autoencoder: a ViT whose encoder sees some patches, and a small decoder of all."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from vit_jax.errors import ConfigError, ModelError
from vit_jax.models.block_options import BlockOptions
from vit_jax.models.blocks import Encoder, EncoderShape
from vit_jax.models.embedding import Sincos2d, TableSpec, cut_patches, take_patches
from vit_jax.models.family import as_images
from vit_jax.models.layers import LayerNorm
from vit_jax.models.position import rope_2d
from vit_jax.models.vit import ViT
from vit_jax.models.vit_family import vit_shape
from vit_jax.models.vit_options import ViTConfig, has_class_token
from vit_jax.tasks.mae.config import MaeConfig


def num_visible(num_patches: int, mask_ratio: float) -> int:
    """Returns the number of visible patches of an image, rounded down as in the authors' code.

    >>> num_visible(196, 0.75), num_visible(16, 0.7)
    (49, 4)
    """
    # The product is rounded first, so that 10 * (1 - 0.9) is 1.
    count = int(round(num_patches * (1 - mask_ratio), 6))
    if not 0 < count < num_patches:
        effect = "leaves none visible" if count == 0 else "hides none"
        raise ConfigError(
            f"is {mask_ratio:g}, which {effect} of {num_patches} patches",
            "at least one visible and one hidden patch of an image",
            "change it, or use smaller patches",
            key="task.mask_ratio",
        )
    return count


class MaskedAutoencoder(ViT):
    """A ViT without a head, and a decoder that predicts the pixels of hidden patches.

    Called like any ViT, it encodes whole images. The encoder's initial values are those of a ViT
    without decoder. Source: arXiv:2111.06377.
    """

    def __init__(
        self,
        options: ViTConfig,
        section: MaeConfig,
        *,
        image_size: int,
        platform: str | None = None,
        rngs: nnx.Rngs,
    ):
        shape = vit_shape(options)
        if shape.stem is not None:
            raise ModelError(
                f"{options.name} with task mae",
                "a ViT without a ResNet stem, which would see the hidden patches",
                "use a model such as ViT-B/16",
            )
        super().__init__(
            shape,
            options,
            num_classes=0,
            image_size=(image_size, image_size),
            platform=platform,
            rngs=rngs,
        )
        self.num_visible = num_visible(self.grid[0] * self.grid[1], section.mask_ratio)
        width = section.decoder_width
        self.decoder = Decoder(
            section,
            shape.width,
            3 * shape.patch_size**2,
            TableSpec(
                "sincos_2d_mae", self.grid, width, has_class_token(options), options.num_registers
            ),
            options=options,
            platform=platform,
            rngs=rngs,
        )

    def reconstruct(
        self,
        images: Float[Array, "B H W 3"],
        order: Int[Array, "B N"],
        *,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, "B N F"], Float[Array, "B D"]]:
        """Returns the predicted pixels of all patches, f32, and the features of the visible ones.

        `images` are in [-1, 1]; `order` has each image's patches, the visible ones first. `key`
        turns dropout and stochastic depth of the encoder on.
        """
        encoded = self.encode_visible(images, order[:, : self.num_visible], key=key)
        features, _ = self.head(self.pool(encoded))
        return self.decoder(encoded, order), features

    def encode_visible(
        self,
        images: Float[Array, "B H W 3"],
        visible: Int[Array, "B V"],
        *,
        key: jax.Array | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the encoded tokens of some patches of each image; nothing else is computed."""
        images = as_images(images, self.image_size)
        keys = (None, None) if key is None else tuple(jax.random.split(key))

        def of_visible(table: Float[Array, "1 N K"]) -> Float[Array, "B T K"]:
            table = jnp.broadcast_to(table, (len(images), *table.shape[1:]))
            prefix, patches = table[:, : self.num_prefix], table[:, self.num_prefix :]
            return jnp.concatenate([prefix, take_patches(patches, visible)], axis=1)

        table, rope = self.position_embedding, None
        positions = None if table is None else of_visible(table(self.num_tokens))
        if self.has_rope:
            cos, sin = rope_2d(self.grid, self.head_dim, self.num_prefix)
            rope = of_visible(jnp.asarray(cos)[None]), of_visible(jnp.asarray(sin)[None])
        pixels = take_patches(cut_patches(images, self.patch_embedding.patch_size), visible)
        x = self.embed(self.patch_embedding.of_patches(pixels), positions, key=keys[0])
        return self.encode(x, rope=rope, key=keys[1])[0]


class Decoder(nnx.Module):
    """A small Transformer over all patches: encoded ones, and mask tokens for the hidden ones.

    `features` is D of an encoded token, and `pixels` F, the number of values of a patch. `table`
    has the fixed positions of all tokens. Of the encoder's `options`, its norm epsilon, activation,
    dtype and execution are used; its MLPs are never gated.

    Source: arXiv:2111.06377, section 3 and appendix A.1.
    """

    def __init__(
        self,
        section: MaeConfig,
        features: int,
        pixels: int,
        table: TableSpec,
        *,
        options: ViTConfig,
        platform: str | None,
        rngs: nnx.Rngs,
    ):
        width, dtype = section.decoder_width, jnp.dtype(options.dtype)
        self.num_prefix = table.class_token + table.num_registers
        requested = options.attention_implementation
        self.embed = _linear(features, width, dtype, rngs)
        init = nnx.initializers.normal(stddev=0.02)
        self.mask_token = nnx.Param(init(rngs.params(), (1, 1, width), jnp.float32))
        self.position_embedding = Sincos2d(table)
        self.stack = Encoder(
            EncoderShape(width, section.decoder_depth, 4 * width, section.decoder_heads),
            BlockOptions(
                mlp="gelu" if options.mlp == "swiglu" else options.mlp,
                gelu_approximate=options.gelu_approximate,
                norm_epsilon=options.norm_epsilon,
                # Kernels that were requested for the encoder may not support these sizes.
                attention_implementation=requested if requested in ("xla", "einsum") else "auto",
                dtype=options.dtype,
                remat=options.remat,
                scan=options.scan,
            ),
            num_tokens=self.num_prefix + table.grid[0] * table.grid[1],
            platform=platform,
            rngs=rngs,
        )
        self.norm = LayerNorm(width, epsilon=options.norm_epsilon, dtype=dtype)
        self.predict = _linear(width, pixels, dtype, rngs)

    def __call__(
        self, encoded: Float[Array, "B T D"], order: Int[Array, "B N"]
    ) -> Float[Array, "B N F"]:
        """Returns the predicted pixels of all patches in raster order, f32.

        `encoded` has class token and registers, then the visible patches in the order of `order`.
        """
        x = self.place(self.embed(encoded), order)
        x, _ = self.stack(x + self.position_embedding(x.shape[1]).astype(x.dtype))
        return self.predict(self.norm(x[:, self.num_prefix :])).astype(jnp.float32)

    def place(self, x: Float[Array, "B T W"], order: Int[Array, "B N"]) -> Float[Array, "B M W"]:
        """Returns the tokens with every patch at its place, and mask tokens for the hidden ones."""
        prefix, visible = x[:, : self.num_prefix], x[:, self.num_prefix :]
        shape = (x.shape[0], order.shape[1] - visible.shape[1], x.shape[2])
        hidden = jnp.broadcast_to(self.mask_token[...].astype(x.dtype), shape)
        patches = jnp.concatenate([visible, hidden], axis=1)
        return jnp.concatenate([prefix, take_patches(patches, jnp.argsort(order))], axis=1)


def _linear(features: int, outputs: int, dtype: DTypeLike, rngs: nnx.Rngs) -> nnx.Linear:
    init = nnx.initializers.xavier_uniform()
    return nnx.Linear(features, outputs, kernel_init=init, dtype=dtype, rngs=rngs)
