"""Sharding of parameters and optimizer state by a short list of (pattern, rule).

Each model family defines rules for its parameters. This module combines them into the presets of
`mesh.preset`.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.config.mesh import MeshConfig, Preset
from vit_jax.errors import ConfigError, nearest
from vit_jax.models.registry import all_sharding_rules
from vit_jax.named_tree import map_named, named_leaves

Rule = tuple[str | None, ...]
Rules = tuple[tuple[str, Rule], ...]


# Rules of all families. The first pattern that matches a parameter's whole name is used. A rule
# gives the mesh axes of a parameter's last dimensions, so it also holds inside a stack of layers,
# which adds a leading axis. Parameters without a rule are replicated.
def preset_rules(preset: Preset = "fsdp_tensor") -> Rules:
    """Returns the rules of a value of `mesh.preset`."""
    rest = ((r".*", ()),)
    if preset == "replicated":
        return rest
    rules = (*all_sharding_rules(), *rest)
    if preset == "fsdp_tensor":
        return rules
    return tuple(
        (pattern, tuple(axis if axis == "fsdp" else None for axis in rule))
        for pattern, rule in rules
    )


def sharding_rules(config: MeshConfig, params: Any, mesh: Mesh) -> Rules:
    """Returns the rules of a config, followed by the rules of its preset.

    A rule of the config that matches no parameter is an error. So is a `tensor` axis over which no
    parameter is sharded, because its devices would all do the same work.
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
    rules = config.rules + preset_rules(config.preset)
    if mesh.shape["tensor"] > 1 and not any("tensor" in rule for _, rule in rules):
        raise ConfigError(
            f"mesh.tensor is {mesh.shape['tensor']} with preset {config.preset}",
            "a preset that splits parameters over tensor",
            "set mesh.preset=fsdp_tensor, or mesh.tensor=1",
        )
    return rules


def match_first(name: str, patterns: tuple[tuple[str, Any], ...], key: str) -> Any:
    """Returns the value of the first pattern that matches a whole name."""
    for pattern, value in patterns:
        if re.fullmatch(pattern, name):
            return value
    raise ConfigError(
        f"no pattern of {key} matches parameter '{name}'",
        "every parameter to be covered",
        "add a last pattern '.*'",
    )


def parameter_shardings(params: Mapping[str, Any], mesh: Mesh, rules: Rules | None = None) -> Any:
    """Returns a sharding for each parameter (or its shape), by the rules; None: the default preset.

    If the number of devices of an axis does not divide a dimension, the dimension is not sharded
    over it. `fsdp` is then moved to the largest other dimension of the rule that it divides,
    because for fsdp it does not matter which dimension is sharded.
    """
    rules = preset_rules() if rules is None else rules

    def sharding(name: str, leaf: Any) -> NamedSharding:
        return NamedSharding(
            mesh, _fit_spec(match_first(name, rules, "mesh.rules"), leaf.shape, mesh)
        )

    return map_named(sharding, params)


def state_shardings(
    state: Any, params: Mapping[str, Any], mesh: Mesh, rules: Rules | None = None
) -> Any:
    """Returns a sharding for each leaf of a training state.

    Leaves that belong to a parameter (first and second moments, EMA) have its sharding: their name
    ends in the parameter's name and they have its shape. All other leaves are replicated.
    """
    shardings = named_leaves(parameter_shardings(params, mesh, rules))
    shapes = {name: leaf.shape for name, leaf in named_leaves(params).items()}
    replicated = NamedSharding(mesh, PartitionSpec())

    def sharding(name: str, leaf: Any) -> NamedSharding:
        parts = name.split("/")
        suffixes = ("/".join(parts[start:]) for start in range(len(parts)))
        same = (n for n in suffixes if n in shapes and shapes[n] == leaf.shape)
        return shardings.get(next(same, ""), replicated)

    return map_named(sharding, state)


def _fit_spec(rule: Rule, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    own = shape[len(shape) - len(rule) :]  # Without the leading axis of a stack.
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


def shard_arrays(arrays: Any, shardings: Any) -> Any:
    """Shards a tree of arrays over the devices of all hosts. Every host passes the whole arrays."""

    def put(array: Any, sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])

    return jax.tree.map(put, arrays, shardings)


def bytes_on_device(tree: Any) -> int:
    """Returns the size of the shards of a tree on one device; its leaves may be abstract."""
    return sum(
        jax.numpy.dtype(leaf.dtype).itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
        for leaf in jax.tree.leaves(tree)
    )
