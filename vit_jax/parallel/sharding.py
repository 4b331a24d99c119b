"""Where parameters and optimizer state live: a short list of (pattern, rule)."""

import re
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.config.mesh import MeshConfig, Preset
from vit_jax.errors import ConfigError, nearest
from vit_jax.named_tree import leaf_names, named_leaves

Rule = tuple[str | None, ...]
Rules = tuple[tuple[str, Rule], ...]

# Patterns over the whole parameter name; the first match counts. A rule names the mesh axis of each
# dimension, from the last backwards, so that it holds with and without the leading layer axis of a
# stack of layers. Attention and MLP are cut over `tensor` as in Megatron-LM (arXiv:1909.08053):
# heads and hidden features; the other large dimension over `fsdp`. Convolutions are cut by output
# channel, which leaves whole what their kernels are standardised over, and position tables inside
# blocks by feature.
_FSDP_TENSOR: Rules = (
    (r".*attention/qkv/kernel", ("fsdp", None, "tensor", None)),
    (r".*attention/qkv/bias", (None, "tensor", None)),
    (r".*attention/out/kernel", ("tensor", None, "fsdp")),
    (r".*attention/relative/table", (None, "tensor", None)),
    (r".*mlp/(expand|gate|value)/kernel", ("fsdp", "tensor")),
    (r".*mlp/(expand|gate|value)/bias", ("tensor",)),
    (r".*mlp/contract/kernel", ("tensor", "fsdp")),
    (r"attention_pooling/(query|key|value)/kernel", ("fsdp", "tensor", None)),
    (r"attention_pooling/(query|key|value)/bias", ("tensor", None)),
    (r"attention_pooling/out/kernel", ("tensor", None, "fsdp")),
    (r"head/.*/kernel", ("fsdp", "tensor")),
    (r"(patch_embedding|(trunk|stem)/.*)/kernel", (None, None, None, "fsdp")),
    (r"encoder/blocks/position_embedding/.*", ("fsdp",)),
    (r".*", ()),
)
PRESETS: dict[Preset, Rules] = {
    "replicated": ((r".*", ()),),
    "fsdp": tuple(
        (pattern, tuple(axis if axis == "fsdp" else None for axis in rule))
        for pattern, rule in _FSDP_TENSOR
    ),
    "fsdp_tensor": _FSDP_TENSOR,
}


def sharding_rules(config: MeshConfig, params: Any, mesh: Mesh) -> Rules:
    """Returns the rules of a config: its own, then those of its preset.

    Args:
        config: the mesh section.
        params: the parameters or their shapes.
        mesh: the mesh.

    Raises:
        ConfigError: a rule of the config that fits no parameter, or devices along `tensor` that
            would all do the same work.
    """
    leaves = named_leaves(params)
    for pattern, rule in config.rules:
        matched = [name for name in leaves if re.fullmatch(pattern, name)]
        if not matched:
            raise ConfigError(
                f"'mesh.rules' has {pattern!r}, which matches no parameter",
                "regular expressions over whole names",
                f"did you mean {nearest(pattern, leaves)!r}?",
            )
        for name in matched:
            if len(rule) > len(leaves[name].shape):
                raise ConfigError(
                    f"'mesh.rules' has {len(rule)} axes for {pattern!r}",
                    f"at most the {len(leaves[name].shape)} dimensions of {name}",
                    "shorten the rule or narrow the pattern",
                )
    rules = config.rules + PRESETS[config.preset]
    if mesh.shape["tensor"] > 1 and not any("tensor" in rule for _, rule in rules):
        raise ConfigError(
            f"mesh.tensor is {mesh.shape['tensor']} with preset {config.preset}",
            "a preset that cuts over tensor",
            "set mesh.preset=fsdp_tensor, or mesh.tensor=1",
        )
    return rules


def match_first(name: str, patterns: tuple[tuple[str, Any], ...], key: str) -> Any:
    """Returns the value beside the first pattern that matches a whole name.

    Raises:
        ConfigError: none does.
    """
    for pattern, value in patterns:
        if re.fullmatch(pattern, name):
            return value
    raise ConfigError(
        f"no pattern of {key} matches parameter '{name}'", "every parameter to be covered",
        "add a last pattern '.*'",
    )  # fmt: skip


def parameter_shardings(params: Mapping[str, Any], mesh: Mesh, rules: Rules = _FSDP_TENSOR) -> Any:
    """Returns a sharding for each parameter (or its shape), by the rules.

    An axis that does not divide its dimension is left out: that dimension is then not cut. Only
    `fsdp`, for which it does not matter what is cut, goes to the largest dimension of the rule that
    it divides.
    """
    names = leaf_names(params)
    leaves, treedef = jax.tree.flatten(params)
    specs = [
        _fit_spec(match_first(name, rules, "mesh.rules"), leaf.shape, mesh)
        for name, leaf in zip(names, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, [NamedSharding(mesh, spec) for spec in specs])


def state_shardings(
    state: Any, params: Mapping[str, Any], mesh: Mesh, rules: Rules = _FSDP_TENSOR
) -> Any:
    """Returns a sharding for each leaf of a training state.

    Leaves that mirror a parameter (first and second moments, EMA) live where it lives: those whose
    name ends in a parameter's name and whose shape is the same. All else is on every device.

    Args:
        state: tree of arrays or shapes that holds the parameters and whatever goes with them.
        params: the parameters or their shapes.
        mesh: the mesh.
        rules: of the parameters.
    """
    names = leaf_names(params)
    placed = jax.tree.leaves(parameter_shardings(params, mesh, rules))
    shardings = dict(zip(names, placed, strict=True))
    shapes = dict(zip(names, (p.shape for p in jax.tree.leaves(params)), strict=True))
    everywhere = NamedSharding(mesh, PartitionSpec())

    def place(path: tuple, leaf: Any) -> NamedSharding:
        keys = [_key_name(k) for k in path]
        for start in range(len(keys)):
            name = "/".join(keys[start:])
            if name in shapes and shapes[name] == leaf.shape:
                return shardings[name]
        return everywhere

    return jax.tree_util.tree_map_with_path(place, state)


def _fit_spec(rule: Rule, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    own = shape[len(shape) - len(rule) :]  # Without the layers of a stack.
    axes = [
        axis if axis is not None and size % mesh.shape[axis] == 0 else None
        for axis, size in zip(rule, own, strict=True)
    ]
    if "fsdp" in rule and "fsdp" not in axes:
        free = [i for i, axis in enumerate(axes) if axis is None or mesh.shape[axis] == 1]
        fitting = [i for i in free if own[i] % mesh.shape["fsdp"] == 0]
        if fitting:
            axes[max(fitting, key=lambda i: own[i])] = "fsdp"
    return PartitionSpec(*(None,) * (len(shape) - len(rule)), *axes)


def _key_name(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
