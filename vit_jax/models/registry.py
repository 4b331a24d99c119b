"""Model names, the sizes they stand for, and the function that makes a model from a name."""

import re
from typing import Any

import jax
from flax import nnx

from vit_jax.config import ModelConfig
from vit_jax.errors import ModelError, nearest
from vit_jax.models.vit import ViT, ViTShape

# name: width, depth, MLP dim, heads. Source: B, L, H: arXiv:2010.11929, Table 1; Ti, S: DeiT and
# arXiv:2106.10270, Table 2; M, g, G: arXiv:2106.04560, Table 2.
_VIT_SIZES = {
    "Ti": (192, 12, 768, 3),
    "S": (384, 12, 1536, 6),
    "M": (512, 12, 2048, 8),
    "B": (768, 12, 3072, 12),
    "L": (1024, 24, 4096, 16),
    "H": (1280, 32, 5120, 16),
    "g": (1408, 40, 6144, 16),
    "G": (1664, 48, 8192, 16),
}
_LISTED_PATCHES = (8, 14, 16, 32)


def list_models() -> list[str]:
    """Returns the registered names, small to large. Any other patch size works as well.

    >>> "ViT-B/16" in list_models()
    True
    """
    return [f"ViT-{size}/{patch}" for size in _VIT_SIZES for patch in reversed(_LISTED_PATCHES)]


def resolve(options: ModelConfig) -> ViTShape:
    """Returns the sizes that a model section stands for: those of its name, as overridden.

    Raises:
        ModelError: unknown name (the nearest valid one is named).
    """
    match = re.fullmatch(r"ViT-([A-Za-z]+)/([1-9]\d*)", options.name)
    if not match or match[1] not in _VIT_SIZES:
        raise ModelError(
            f"unknown model {options.name!r}",
            f"ViT-{{{','.join(_VIT_SIZES)}}}/PATCH",
            f"did you mean {nearest(options.name, list_models())!r}?",
        )
    width, depth, mlp_dim, num_heads = _VIT_SIZES[match[1]]
    return ViTShape(
        width=options.width or width,
        depth=options.depth or depth,
        mlp_dim=options.mlp_dim or mlp_dim,
        num_heads=options.num_heads or num_heads,
        patch_size=int(match[2]),
    )


def build_model(
    options: ModelConfig,
    *,
    num_classes: int,
    image_size: int | tuple[int, int],
    key: jax.Array,
    platform: str | None = None,
) -> ViT:
    """Makes the model of a config section; may be traced.

    Args:
        options: the model section of a config.
        num_classes: C; 0 for features instead of logits.
        image_size: side, or (height, width), in pixels.
        key: random key of the initial values.
        platform: that it will run on; None: the default backend.

    Raises:
        ModelError: unknown name, or sizes that do not go together.
    """
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    return ViT(
        resolve(options),
        options,
        num_classes=num_classes,
        image_size=size,
        platform=platform,
        rngs=nnx.Rngs(params=key),
    )


def create_model(
    name: str,
    *,
    num_classes: int = 1000,
    image_size: int | tuple[int, int] = 224,
    seed: int = 0,
    **options: Any,
) -> ViT:
    """Makes a model by name, with random parameters and a zero head.

    Args:
        name: e.g. "ViT-B/16"; see `list_models`.
        num_classes: C; 0 for features instead of logits.
        image_size: side, or (height, width), in pixels.
        seed: of the initial values.
        **options: any other key of `vit_jax.config.ModelConfig`, e.g. pooling="gap".

    Returns:
        A module with `model(images)`: f32[B, H, W, 3] in [-1, 1] -> f32[B, num_classes].

    Raises:
        ModelError: unknown name, or sizes that do not go together.
        ConfigError: unknown option or wrong value.

    >>> model = create_model("ViT-Ti/16", num_classes=10, image_size=32)
    >>> model(jax.numpy.zeros((2, 32, 32, 3))).shape
    (2, 10)
    """
    config = ModelConfig.from_mapping({"name": name, **options})
    resolve(config)

    @jax.jit
    def init(key):
        return nnx.to_pure_dict(nnx.state(build(key)))

    def build(key):
        return build_model(config, num_classes=num_classes, image_size=image_size, key=key)

    key = jax.random.key(seed)
    graphdef = nnx.graphdef(nnx.eval_shape(build, key))
    return nnx.merge(graphdef, init(key))
