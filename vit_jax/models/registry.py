"""Model names, the sizes they stand for, and the function that makes a model from a name."""

import dataclasses
import re
from typing import Any

import jax
from flax import nnx

from vit_jax.errors import ModelError, nearest
from vit_jax.models.options import ModelConfig
from vit_jax.models.resnet import ResNet, ResNetShape
from vit_jax.models.vit import ViT, ViTShape

# name: width, depth, MLP dim, heads. Source: B, L, H: arXiv:2010.11929, Table 1; Ti, S: DeiT and
# arXiv:2106.10270, Table 2; M, g, G: arXiv:2106.04560, Table 2; So400m: arXiv:2305.13035.
_VIT_SIZES = {
    "Ti": (192, 12, 768, 3),
    "S": (384, 12, 1536, 6),
    "M": (512, 12, 2048, 8),
    "B": (768, 12, 3072, 12),
    "L": (1024, 24, 4096, 16),
    "So400m": (1152, 27, 4304, 16),
    "H": (1280, 32, 5120, 16),
    "g": (1408, 40, 6144, 16),
    "G": (1664, 48, 8192, 16),
}
_LISTED_PATCHES = (8, 14, 16, 32)

# Units of the four stages. Source: arXiv:1512.03385, Table 1; 26 and 200: arXiv:2106.10270, Table 2
# and arXiv:1603.05027.
_RESNET_UNITS = {
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
_RESNET_WIDTHS = (1, 2, 3, 4)

# hybrid: ViT size, units of the ResNet's stages, patch size on its feature map. The published
# "R+ViT-Ti/16" cuts 8x8 patches out of the root's map, which makes 49 of a 224-pixel image.
# Source: arXiv:2010.11929, section 4.1 and Table 6: at /32 four stages, at /16 the fourth's units
# moved to the third; arXiv:2106.10270, Table 2.
_HYBRIDS = {
    "R+ViT-Ti/16": ("Ti", (), 8),
    "R26+ViT-S/32": ("S", (2, 2, 2, 2), 1),
    "R50+ViT-B/32": ("B", (3, 4, 6, 3), 1),
    "R50+ViT-B/16": ("B", (3, 4, 9), 1),
    "R50+ViT-L/32": ("L", (3, 4, 6, 3), 1),
    "R50+ViT-L/16": ("L", (3, 4, 9), 1),
}

# Of each family one for 32-pixel images: Mini takes 97 to 100 million multiply-accumulates; for
# experiments on a CPU, Micro 19 to 20 million and Nano 4.2 to 4.4 million. Source: ours.
SMALL_IMAGE_SIZE = 32
_SMALL = {
    "ViT-Mini/4": ViTShape(128, 7, 512, 4, 4),
    "R+ViT-Mini/4": ViTShape(128, 3, 512, 4, 2, ResNetShape((1, 1), 32, small=True, groups=8)),
    "BiT-R-Mini": ResNetShape((1, 1, 2), 32, small=True, groups=8),
    "ViT-Micro/4": ViTShape(64, 5, 256, 2, 4),
    "R+ViT-Micro/4": ViTShape(64, 3, 256, 2, 2, ResNetShape((1, 1), 12, small=True, groups=4)),
    "BiT-R-Micro": ResNetShape((1, 2, 3), 12, small=True, groups=4),
    "ViT-Nano/4": ViTShape(32, 4, 128, 2, 4),
    "R+ViT-Nano/4": ViTShape(32, 2, 128, 2, 2, ResNetShape((1, 1), 6, small=True, groups=2)),
    "BiT-R-Nano": ResNetShape((1, 2, 2), 6, small=True, groups=2),
}


def _shapes() -> dict[str, ViTShape | ResNetShape]:
    vits = {
        f"ViT-{size}/{patch}": ViTShape(*sizes, patch)
        for size, sizes in _VIT_SIZES.items()
        for patch in reversed(_LISTED_PATCHES)
    }
    hybrids = {
        name: ViTShape(*_VIT_SIZES[size], patch, ResNetShape(units, 64))
        for name, (size, units, patch) in _HYBRIDS.items()
    }
    resnets = {
        f"BiT-R{depth}x{width}": ResNetShape(units, 64 * width)
        for depth, units in _RESNET_UNITS.items()
        for width in _RESNET_WIDTHS
    }
    return {**vits, **hybrids, **resnets, **_SMALL}


_SHAPES = _shapes()
_SIZE_OVERRIDES = ("width", "depth", "mlp_dim", "num_heads")
# What a ResNet reads of the model section; everything else is a ViT's.
_RESNET_OPTIONS = {"name", "representation_size", "head_bias_init", "dtype", "remat", "scan"}


def list_models() -> list[str]:
    """Returns the registered names. Any other patch size of a ViT works as well.

    >>> {"ViT-B/16", "R50+ViT-B/16", "BiT-R50x1"} <= set(list_models())
    True
    """
    return list(_SHAPES)


def is_small(name: str) -> bool:
    """Returns whether a registered model is one for 32-pixel images."""
    return name in _SMALL


def model_options(name: str, **options: Any) -> ModelConfig:
    """Returns the checked model section of a config.

    Args:
        name: e.g. "ViT-B/16"; see `list_models`. "auto" stands for a model that is not known yet.
        **options: the other keys of the section.

    Raises:
        ConfigError: unknown option or wrong value.

    >>> model_options("ViT-B/16", pooling="gap").pooling
    'gap'
    """
    return ModelConfig.from_mapping({"name": name, **options})


def resolve(options: ModelConfig) -> ViTShape | ResNetShape:
    """Returns the sizes that a model section stands for: those of its name, as overridden.

    Raises:
        ModelError: unknown name (the nearest valid one is named), or an option that is not of this
            family of models.
    """
    shape = _SHAPES.get(options.name)
    match = re.fullmatch(r"ViT-([A-Za-z0-9]+)/([1-9]\d*)", options.name)
    if shape is None and match and match[1] in _VIT_SIZES:
        shape = ViTShape(*_VIT_SIZES[match[1]], int(match[2]))
    if shape is None:
        raise ModelError(
            f"unknown model {options.name!r}",
            f"ViT-{{{','.join(_VIT_SIZES)}}}/PATCH, {', '.join(_HYBRIDS)},"
            f" BiT-R{{{','.join(map(str, _RESNET_UNITS))}}}x{{1,2,3,4}} or {', '.join(_SMALL)}",
            f"did you mean {nearest(options.name, list_models())!r}?",
        )
    if isinstance(shape, ResNetShape):
        _check_resnet_options(options)
        return shape
    given = {name: getattr(options, name) for name in _SIZE_OVERRIDES}
    return dataclasses.replace(shape, **{k: v for k, v in given.items() if v is not None})


def _check_resnet_options(options: ModelConfig) -> None:
    usual = ModelConfig(name=options.name)
    for name in type(options).model_fields:
        value = getattr(options, name)
        if name not in _RESNET_OPTIONS and value != getattr(usual, name):
            raise ModelError(
                f"'model.{name}' is {value!r} for {options.name}, a ResNet without it",
                f"of the model section only {', '.join(sorted(_RESNET_OPTIONS))}",
                "leave it out",
            )


def build_model(
    options: ModelConfig,
    *,
    num_classes: int,
    image_size: int | tuple[int, int],
    key: jax.Array,
    platform: str | None = None,
    mask_token: bool = False,
) -> ViT | ResNet:
    """Makes the model of a config section; may be traced.

    Args:
        options: the model section of a config.
        num_classes: C; 0 for features instead of logits.
        image_size: side, or (height, width), in pixels.
        key: random key of the initial values.
        platform: that it will run on; None: the default backend.
        mask_token: whether it has an embedding that hides patches.

    Raises:
        ModelError: unknown name, sizes that do not go together, or a mask token for a ResNet.
    """
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    shape = resolve(options)
    if isinstance(shape, ResNetShape):
        if mask_token:
            raise ModelError(
                f"a mask token for {options.name}, a ResNet", "a model with patches",
                "use a ViT or a hybrid",
            )  # fmt: skip
        return ResNet(
            shape, options, num_classes=num_classes, image_size=size, rngs=nnx.Rngs(params=key)
        )
    return ViT(
        shape,
        options,
        num_classes=num_classes,
        image_size=size,
        platform=platform,
        mask_token=mask_token,
        rngs=nnx.Rngs(params=key),
    )


def create_model(
    name: str,
    *,
    num_classes: int = 1000,
    image_size: int | tuple[int, int] = 224,
    seed: int = 0,
    **options: Any,
) -> ViT | ResNet:
    """Makes a model by name, with random parameters and a zero head.

    Args:
        name: e.g. "ViT-B/16"; see `list_models`.
        num_classes: C; 0 for features instead of logits.
        image_size: side, or (height, width), in pixels.
        seed: of the initial values.
        **options: any other key of `vit_jax.models.options.ModelConfig`, e.g. pooling="gap".

    Returns:
        A module with `model(images)`: f32[B, H, W, 3] in [-1, 1] -> f32[B, num_classes].

    Raises:
        ModelError: unknown name, or sizes that do not go together.
        ConfigError: unknown option or wrong value.

    >>> model = create_model("ViT-Ti/16", num_classes=10, image_size=32)
    >>> model(jax.numpy.zeros((2, 32, 32, 3))).shape
    (2, 10)
    """
    config = model_options(name, **options)
    resolve(config)

    @jax.jit
    def init(key):
        return nnx.to_pure_dict(nnx.state(build(key)))

    def build(key):
        return build_model(config, num_classes=num_classes, image_size=image_size, key=key)

    key = jax.random.key(seed)
    graphdef = nnx.graphdef(nnx.eval_shape(build, key))
    return nnx.merge(graphdef, init(key))
