"""Initial values as in the code of a recipe's authors, where they differ from vision_transformer's.

A model is built with the initial values of vision_transformer: Xavier kernels, position tables with
deviation 0.02, a class token and a head of zeros. `redraw` replaces those that a convention names.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax

from vit_jax.errors import ConfigError
from vit_jax.named_tree import map_named, named_leaves

Shape = tuple[int, ...]
# (shape of the tensor in one layer, name -> shape of all) -> standard deviation.
Deviation = Callable[[Shape, str, Mapping[str, Shape]], float]


def _constant(deviation: float) -> Deviation:
    return lambda shape, name, shapes: deviation


def _inverse_root_width(shape: Shape, name: str, shapes: Mapping[str, Shape]) -> float:
    return shape[-1] ** -0.5


def _torch_default(shape: Shape, name: str, shapes: Mapping[str, Shape]) -> float:
    """PyTorch's linear and convolution layers, kernel and bias: U(-1, 1) / sqrt(inputs)."""
    inputs = math.prod(shapes[re.sub("bias$", "kernel", name)][:-1])
    return (3 * inputs) ** -0.5


def _xavier_of_matrix(shape: Shape, name: str, shapes: Mapping[str, Shape]) -> float:
    """Xavier's deviation for the kernel as one matrix: queries, keys and values are one layer."""
    inputs = shape[0] if "/qkv/" in name else math.prod(shape[:-1])
    return (2 / (inputs + math.prod(shape) // inputs)) ** 0.5


_PATCHES = r"patch_embedding/(kernel|bias)"
_TOKENS = r"(class_token|registers|position_embedding/table)"
_BIG_VISION = (
    (r"(.*/)?position_embedding/table|text/(positions|token_embedding)", _inverse_root_width),
)
# Convention -> (pattern of names, deviation); the first that matches is used. Normal distributions,
# but uniform ones for the defaults of PyTorch and Xavier's.
CONVENTIONS: dict[str, tuple[tuple[str, Deviation], ...]] = {
    "vision_transformer": (),
    # Flax's tables: 1 / sqrt(D).
    "big_vision": _BIG_VISION,
    "flexivit": ((r"patch_embedding/kernel", _inverse_root_width), *_BIG_VISION),
    # timm's and DINO's `_init_weights`; layers that it does not reach keep PyTorch's default.
    "timm": (
        (rf"{_PATCHES}|(.*/)?prototypes/kernel", _torch_default),
        (rf".*/kernel|{_TOKENS}", _constant(0.02)),
        (r"mask_token", _constant(0.0)),
    ),
    # MAE's `initialize_weights`, and the head of its fine-tuning.
    "mae": (
        (r"head/linear/kernel", _constant(2e-5)),
        (r"patch_embedding/bias", _torch_default),
        (r".*/qkv/kernel|patch_embedding/kernel", _xavier_of_matrix),
        (r"class_token", _constant(0.02)),
    ),
}
_UNIFORM = (_torch_default, _xavier_of_matrix)


def redraw(params: Any, convention: str, key: jax.Array) -> Any:
    """Returns the parameters of a new model with the initial values of a convention; may be traced.

    Only ViTs have conventions other than "vision_transformer".
    """
    rules = CONVENTIONS[convention]
    if not rules:
        return params
    # Stacks have a leading axis over the layers.
    shapes = {name: leaf.shape["blocks/" in name :] for name, leaf in named_leaves(params).items()}
    if not any("encoder/blocks/" in name for name in shapes):
        raise ConfigError(
            f"is {convention!r} for a model that is no ViT",
            "vision_transformer",
            "leave it out",
            key="model.initial_values",
        )
    numbers = {name: number for number, name in enumerate(sorted(shapes))}

    def draw(name: str, leaf: jax.Array) -> jax.Array:
        rule = next((rule for pattern, rule in rules if re.fullmatch(pattern, name)), None)
        if rule is None:
            return leaf
        deviation = rule(shapes[name], name, shapes)
        own = jax.random.fold_in(key, numbers[name])
        if rule in _UNIFORM:
            limit = 3**0.5 * deviation
            return jax.random.uniform(own, leaf.shape, leaf.dtype, -limit, limit)
        return deviation * jax.random.normal(own, leaf.shape, leaf.dtype)

    return map_named(draw, params)
