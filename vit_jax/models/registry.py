"""The list of model families, and functions that build a model by its name."""

import contextlib
import fnmatch
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from vit_jax.errors import KEY, ConfigError, PluginError
from vit_jax.models.aliases import find_alias, our_name
from vit_jax.models.family import IMAGE_SIZE, SMALL_IMAGE_SIZE, Family, ImageModel, ShardingRule
from vit_jax.models.image_families import (
    IMAGE_FAMILIES,
    any_image_config,
    find_family,
    is_registered_outside,
)
from vit_jax.models.initial_values import redraw
from vit_jax.models.options import AUTO, ModelConfig
from vit_jax.models.two_towers import TWO_TOWERS, TwoTowersConfig
from vit_jax.named_tree import named_leaves
from vit_jax.plugins import bugs_in_one_line
from vit_jax.rng import fixed_jax_settings
from vit_jax.synonyms import advice, meant_name


def families() -> tuple[Family, ...]:
    """Returns all model families."""
    return (*IMAGE_FAMILIES.values(), TWO_TOWERS)


def all_sharding_rules() -> tuple[ShardingRule, ...]:
    """Returns the sharding rules of all families, alone and as the image tower of a pair."""
    rules = [rule for family in families() for rule in family.sharding_rules]
    for family in IMAGE_FAMILIES.values():
        rules += [(f"image/(?:{pattern})", axes) for pattern, axes in family.sharding_rules]
    return tuple(dict.fromkeys(rules))


def list_models(pattern: str = "*") -> list[str]:
    """Returns the listed model names. Names with other patch sizes are valid, too.

    Args:
        pattern: names to return; `*` stands for any text, case does not count. Also a name of timm,
            transformers or torchvision.

    >>> list_models("*vit-mini*"), list_models("vit_base_patch16_224")
    (['ViT-Mini/4', 'R+ViT-Mini/4'], ['ViT-B/16'])
    >>> {"ViT-B/16", "R50+ViT-B/16", "BiT-R50x1", "Mixer-B/16"} <= set(list_models())
    True
    """
    wanted = our_name(pattern).lower()
    names = [name for family in families() for name in family.sizes]
    return [name for name in names if fnmatch.fnmatchcase(name.lower(), wanted)]


def family_of(name: str) -> Family:
    """Returns the family of a model name.

    >>> family_of("R50+ViT-B/16").name
    'ViT'
    """
    return find_family(name, (TWO_TOWERS,))


def default_image_size(name: str) -> int:
    """Returns the default height and width of a model's images, in pixels.

    >>> default_image_size("ViT-B/16"), default_image_size("BiT-R-Mini")
    (224, 32)
    >>> default_image_size("vit_base_patch16_384")
    384
    """
    alias = find_alias(name)
    if alias is not None and alias.image_size is not None:
        return alias.image_size
    return SMALL_IMAGE_SIZE if is_small(name) else IMAGE_SIZE


def is_small(name: str) -> bool:
    """Whether a listed model is for 32-pixel images."""
    return any(name in family.small for family in families())


def options_class(mapping: Mapping[str, Any]) -> type[ModelConfig]:
    """Returns the section class that checks a model section, chosen by its `name`."""
    name = mapping.get("name")
    if not isinstance(name, str):
        return ModelConfig  # Raises the error for a missing or wrong name.
    return any_image_config() if name == AUTO else family_of(name).options


def model_options(name: str, **options: Any) -> ModelConfig:
    """Returns the checked model section of a config; the name may be "auto".

    >>> model_options("ViT-B/16", pooling="gap").pooling
    'gap'
    """
    mapping = {"name": name, **options}
    return options_class(mapping).from_mapping(mapping)


def model_shape(options: ModelConfig) -> Any:
    """Returns the sizes of the named model, e.g. a `ViTShape`, with the options' overrides."""
    return family_of(options.name).shape(options)


@fixed_jax_settings()
def build_model(
    options: ModelConfig,
    *,
    num_classes: int,
    image_size: int | tuple[int, int],
    key: jax.Array,
    platform: str | None = None,
) -> Any:
    """Builds the model of a config section; may be traced.

    With 0 classes it returns features instead of logits. `platform` is the "cpu", "gpu" or "tpu"
    that it will run on; None: the default backend.
    """
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    family = family_of(options.name)
    outside = is_registered_outside(family)
    what = f"family {family.name} of {IMAGE_FAMILIES.owner(family.name)}"
    with bugs_in_one_line(what) if outside else contextlib.nullcontext():
        model = family.build(
            options, num_classes=num_classes, image_size=size, key=key, platform=platform
        )
        if outside:
            _check_model(what, model, num_classes)
    model.config = options
    return model


_REQUIRED = ("__call__", "layer_outputs", "final_norm", "num_layers", "intermediates")


def _check_model(what: str, model: Any, num_classes: int) -> None:
    """Raises PluginError unless a model of a family from outside is complete."""
    if not isinstance(model, ImageModel):
        raise PluginError(
            f"{what} built a {type(model).__name__}",
            "a vit_jax.ImageModel",
            "derive the class of the model from it",
        )
    missing = [n for n in _REQUIRED if getattr(type(model), n) is getattr(ImageModel, n)]
    missing += [n for n in ("image_size", "grid") if not hasattr(model, n)]
    if missing:
        raise PluginError(
            f"{what} built a {type(model).__name__} without {', '.join(missing)}",
            "what vit_jax.ImageModel asks for",
            "add it to the class",
        )
    tops = {name.partition("/")[0] for name in named_leaves(nnx.to_pure_dict(nnx.state(model)))}
    if unnamed := sorted(tops - {*model.parts}):
        raise PluginError(
            f"{what} built a {type(model).__name__} whose `parts` lack {', '.join(unnamed)}",
            "every attribute with parameters, in the order of the forward pass",
            "add it to the class's `parts`",
        )
    logits = jax.eval_shape(model, *model.example_inputs(2))
    shape = getattr(logits, "shape", ())
    shown = f"{getattr(logits, 'dtype', type(logits).__name__)}{list(shape)}"
    if len(shape) != 2 or shape[0] != 2 or (num_classes and shape[1] != num_classes):
        raise PluginError(
            f"{what} returned {shown} for two images and {num_classes} classes",
            f"logits [2, {num_classes}]" if num_classes else "features [2, width]",
            "correct __call__ of the model",
        )


def create_model(
    name: str,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    seed: int = 0,
    **options: Any,
) -> ImageModel:
    """Builds a model by name, with random parameters and, by default, a zero-initialised head.

    Args:
        name: e.g. "ViT-B/16"; see `list_models`. Names of timm, transformers and torchvision stand
            for models of the same sizes: "vit_base_patch16_384", "google/vit-base-patch16-224".
        num_classes: C; 0 for features instead of logits; None: 1000, or 0 for a pair of towers.
        image_size: side, or (height, width), in pixels; None: as in the name, else 224.
        seed: seed of the initial values.
        **options: options of the model's family, e.g. pooling="gap"; `model.config` has them all.

    Returns:
        A module with `model(images)`: f32[B, H, W, 3] in [-1, 1] -> f32[B, num_classes]. A pair of
        towers takes images and tokens, see `two_towers.TwoTowers`.

    Raises:
        ModelError: unknown name, or sizes that do not fit together.
        ConfigError: an option that the family does not have, or a wrong value.

    >>> model = create_model("ViT-Mini/4", num_classes=10, image_size=8)
    >>> jax.jit(model)(jax.numpy.zeros((2, 8, 8, 3))).shape
    (2, 10)
    """
    alias = find_alias(name)
    if alias is not None:
        name, image_size = alias.name, image_size or alias.image_size
    image_size = image_size or IMAGE_SIZE
    _check_arguments(name, options)
    config = model_options(name, **options)
    if num_classes is None:
        num_classes = family_of(name).default_classes

    def build(key: jax.Array) -> nnx.Module:
        return build_model(config, num_classes=num_classes, image_size=image_size, key=key)

    @jax.jit
    def init(key: jax.Array) -> Any:
        params = nnx.to_pure_dict(nnx.state(build(key)))
        return redraw(params, config.initial_values, jax.random.fold_in(key, 1))

    key = jax.random.key(seed)
    graphdef = nnx.graphdef(nnx.eval_shape(build, key))
    return nnx.merge(graphdef, init(key))


def _check_arguments(name: str, options: Mapping[str, Any]) -> None:
    """Raises ConfigError for an argument of `create_model` that its model does not have."""
    family = family_of(name)
    of_function = ("num_classes", "image_size", "seed")
    known = [*of_function, *(key for key in family.options.model_fields if key != "name")]
    for key in options:
        if key not in known:
            raise ConfigError(
                f"unknown config key '{KEY}' for {family.options.kind or family.name}",
                f"{', '.join(of_function)}, or one of {', '.join(sorted(known[3:]))}",
                advice(key, meant_name(key, known)),
                key=key,
            )


def layer_indices(params: Any, options: ModelConfig) -> dict[str, np.ndarray]:
    """Returns the layer index of each parameter of a model, for layer-wise learning rates.

    Layer 0 is the embedding. Each block or residual unit is one layer, in the order of the forward
    pass, and the last layer is everything after them: final norm, pooling and head. The towers of a
    pair are numbered on their own; what is in neither has the last number of both.

    For a parameter of a scanned stack, the index is an array [depth, 1, ...] that broadcasts
    against the parameter. `params` may have shapes instead of values.
    """
    leaves = named_leaves(params)
    if not isinstance(options, TwoTowersConfig):
        return _layers_of(leaves, family_of(options.name))
    found: dict[str, np.ndarray] = {}
    for tower, family in (("image/", family_of(options.image.name)), ("text/", TWO_TOWERS)):
        inner = {n.removeprefix(tower): leaf for n, leaf in leaves.items() if n.startswith(tower)}
        found |= {tower + name: layer for name, layer in _layers_of(inner, family).items()}
    last = max(int(layer.max()) for layer in found.values())
    return dict.fromkeys(leaves, np.asarray(last)) | found


def _layers_of(leaves: Mapping[str, Any], family: Family) -> dict[str, np.ndarray]:
    """Returns the layer index of each parameter of an image model or a tower."""
    order, rest = family.layer_order, len(family.layer_order)
    steps = {
        name: next((i for i, p in enumerate(order) if re.fullmatch(p, name)), rest)
        for name in leaves
    }
    if {*steps.values()} == {rest}:
        raise ConfigError(
            f"is below 1, but the layers of family {family.name} have no order",
            "a family whose `layer_order` matches its parameters",
            "leave it out",
            key="optimizer.layer_decay",
        )
    stacked = {name for name, step in steps.items() if "blocks/" in name and 0 < step < rest}
    depths = [0] * (rest + 1)
    for name, step in steps.items():
        depths[step] = max(depths[step], leaves[name].shape[0] if name in stacked else 1)
    starts = np.cumsum([0, *depths])

    def number(name: str) -> np.ndarray:
        start, shape = starts[steps[name]], leaves[name].shape
        if name not in stacked:
            return np.asarray(start)
        return (start + np.arange(shape[0])).reshape(-1, *(1,) * (len(shape) - 1))

    return {name: number(name) for name in leaves}
