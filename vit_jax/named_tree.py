"""Pytree leaves by name: the keys on the path to a leaf, joined by "/"."""

from collections.abc import Callable
from typing import Any

import jax


def leaf_names(tree: Any) -> list[str]:
    """Returns the name of each leaf, in the order of `jax.tree.leaves`.

    >>> leaf_names({"head": {"bias": 0, "kernel": 1}})
    ['head/bias', 'head/kernel']
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return ["/".join(map(_key_name, path)) for path, _ in leaves]


def named_leaves(tree: Any) -> dict[str, Any]:
    """Returns name -> leaf, in the order of `jax.tree.leaves`."""
    return dict(zip(leaf_names(tree), jax.tree.leaves(tree), strict=True))


def map_named(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Returns the tree of function(name, leaf, *leaves of `rest` at the same place)."""
    return jax.tree_util.tree_map_with_path(
        lambda path, *leaves: function("/".join(map(_key_name, path)), *leaves), tree, *rest
    )


def _key_name(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
