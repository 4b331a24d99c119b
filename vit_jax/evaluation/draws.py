"""Which examples are shots, and which are held out to choose on: the same on every machine."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from vit_jax.errors import DataError
from vit_jax.rng import seeded_hash

Labels = Int[np.ndarray, " N"]
Places = Int[np.ndarray, " n"]


def class_orders(labels: Labels, num_classes: int, seed: int) -> list[np.ndarray]:
    """Returns for each class the places of its examples, in the order in which a seed takes them.

    The order is that of a hash of (seed, place), so that it needs no random state.

    Args:
        labels: class of every example.
        num_classes: C.
        seed: below 2**32.
    """
    orders = []
    for label in range(num_classes):
        mine = np.flatnonzero(labels == label)
        orders.append(mine[np.argsort(seeded_hash(seed, mine.astype(np.uint64)))])
    return orders


def draw_shots(orders: Sequence[np.ndarray], shots: int) -> Places:
    """Returns the first examples of each class: `shots` of each that has any, class by class."""
    return np.concatenate([order[:shots] for order in orders])


def draw_held_out(orders: Sequence[np.ndarray], most_shots: int, per_class: int) -> Places:
    """Returns the examples behind those of the most shots, as far as a class has them."""
    return np.concatenate([order[most_shots : most_shots + per_class] for order in orders])


def split_off(
    labels: Labels, num_classes: int, fraction: float, seed: int
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " m"]]:
    """Returns the places of a training part and of a held-out part of every class.

    Args:
        labels: class of every example.
        num_classes: C.
        fraction: of each class that is held out, rounded, at least one; none of a class of one.
        seed: which examples.
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
    """Raises DataError where a class has fewer training examples than the shots take.

    Args:
        counts: training examples of each class.
        tested: test examples of each class; one that has neither is left out.
        class_names: of the dataset.
        needed: the most shots.
        held_out: least number of examples of each class that are to be left to choose l2 on.
        dataset: for the message.
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
