"""A ViT with a second head, which learns from a teacher."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.family import with_intermediates
from vit_jax.models.heads import Head
from vit_jax.models.vit import INTERMEDIATES, ViT
from vit_jax.models.vit_options import ViTConfig, ViTShape


class DistilledViT(ViT):
    """A ViT with a second head, on its last register. The logits are the mean of both heads'.

    "head_logits" [2, B, C] are those of the head, then those of the register head.

    Source: arXiv:2012.12877, section 4.
    """

    parts = (*ViT.parts, "register_head")

    def __init__(
        self,
        shape: ViTShape,
        options: ViTConfig,
        *,
        num_classes: int,
        image_size: tuple[int, int],
        platform: str | None = None,
        rngs: nnx.Rngs,
    ):
        super().__init__(
            shape,
            options,
            num_classes=num_classes,
            image_size=image_size,
            platform=platform,
            rngs=rngs,
        )
        bias_init = options.head_bias_init
        self.register_head = Head(shape.width, num_classes, bias_init=bias_init, rngs=rngs)

    def __call__(
        self,
        images: Any,
        *,
        key: jax.Array | None = None,
        return_intermediates: tuple[str, ...] = (),
    ) -> Any:
        """Returns the mean of both heads' logits; see `ViT`."""
        of_vit = {name for name in return_intermediates if name != "head_logits"} | {"encoded"}
        outputs: Any = super().__call__(images, key=key, return_intermediates=tuple(of_vit))
        logits, found = outputs
        register_logits, _ = self.register_head(found["encoded"][:, self.num_prefix - 1])
        found["head_logits"] = jnp.stack([logits, register_logits])
        return with_intermediates((logits + register_logits) / 2, found, return_intermediates)

    @property
    def intermediates(self) -> tuple[str, ...]:
        return (*INTERMEDIATES, "head_logits")
