"""Draws shots and held-out examples, the same on every machine."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from vit_jax.errors import DataError
from vit_jax.rng import seeded_hash

Labels = Int[np.ndarray, " N"]
Indices = Int[np.ndarray, " n"]


def class_orders(labels: Labels, num_classes: int, seed: int) -> list[np.ndarray]:
    """Returns the indices of each class's examples, in the order in which they are drawn.

    Examples are sorted by a hash of (seed, index), so no random state is needed. The seed is below
    2**32.
    """
    orders = []
    for label in range(num_classes):
        mine = np.flatnonzero(labels == label)
        orders.append(mine[np.argsort(seeded_hash(seed, mine.astype(np.uint64)))])
    return orders


def draw_shots(orders: Sequence[np.ndarray], shots: int) -> Indices:
    """Returns the indices of the first `shots` examples of each class, class by class."""
    return np.concatenate([order[:shots] for order in orders])


def draw_held_out(orders: Sequence[np.ndarray], most_shots: int, per_class: int) -> Indices:
    """Returns up to `per_class` examples of each class that are not among the largest draw."""
    return np.concatenate([order[most_shots : most_shots + per_class] for order in orders])


def hold_out(
    labels: Labels, num_classes: int, fraction: float, seed: int
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " m"]]:
    """Splits every class; returns the indices of the kept and of the held-out examples.

    At least one example of each class is held out. A class with a single example keeps it.
    """
    kept, held_out = [], []
    for order in class_orders(labels, num_classes, seed):
        count = max(round(fraction * len(order)), 1) if len(order) > 1 else 0
        held_out.append(order[:count])
        kept.append(order[count:])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(held_out))


def check_shots(
    counts: Int[np.ndarray, " C"],
    tested: Int[np.ndarray, " C"],
    class_names: Sequence[str],
    needed: int,
    *,
    held_out: int,
    dataset: str,
) -> None:
    """Raises DataError if a class has too few training examples.

    `counts` are training and `tested` test examples by class; a class without either is ignored.
    `held_out` is the number of further examples needed of each class, to choose l2 on.
    """
    short = np.where((counts > 0) | (tested > 0), counts, np.iinfo(np.int64).max)
    label = int(np.argmin(short))
    if short[label] >= needed + held_out:
        return
    taken = f"{needed} for {needed} shots" + (f" and {held_out} to choose l2 on" * bool(held_out))
    fix = "lower the shots or widen the training split"
    if short[label] >= needed:
        fix += ", or give a held_out_split or a fixed l2"
    raise DataError(
        f"class {class_names[label]!r} of {dataset} has {short[label]} examples",
        f"at least {needed + held_out}: {taken}",
        fix,
    )
