"""Labels computed from other features of an example, as VTAB defines them.

Source: arXiv:1910.04867, appendix A. Thresholds, bins and object types follow
github.com/google-research/task_adaptation, `task_adaptation/data`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.decode import decode

# KITTI's first three object types are Car, Van and Truck.
_NUM_VEHICLE_TYPES = 3
_NO_VEHICLE_M = 1000.0


@dataclasses.dataclass(frozen=True)
class LabelRule:
    """A rule that computes a label from other features."""

    class_names: tuple[str, ...]  # In label order.
    features: tuple[str, ...]  # Those that it reads.
    label: Callable[[Mapping[str, Any]], int]  # Features of an example -> label.
    image_scale: int = 1  # Factor for the stored pixels: dSprites stores 0 and 1.


def _interval(value: float, starts: tuple[float, ...]) -> int:
    """Returns the index of the last interval that starts below the value."""
    return int(np.flatnonzero(np.asarray(starts) < value)[-1])


def _clevr_count(example: Mapping[str, Any]) -> int:
    return len(example["objects"]["size"]) - 3


_CLEVR_STARTS = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0)


def _clevr_distance(example: Mapping[str, Any]) -> int:
    coordinates = np.asarray(example["objects"]["pixel_coords"])
    return _interval(float(coordinates[:, 2].min()), _CLEVR_STARTS)


_KITTI_STARTS_M = (-100.0, 8.0, 20.0, 999.0)


def _kitti_distance(example: Mapping[str, Any]) -> int:
    objects = example["objects"]
    types = np.asarray(objects["type"]).reshape(-1)
    ahead = np.asarray(objects["location"], np.float64).reshape(-1, 3)[:, 2]
    nearest = ahead[types < _NUM_VEHICLE_TYPES].min(initial=_NO_VEHICLE_M)
    return _interval(float(nearest), _KITTI_STARTS_M)


def _bins(feature: str, values: int, bins: int) -> Callable[[Mapping[str, Any]], int]:
    """Returns a rule that groups neighbouring values of a feature into bins of equal size."""
    return lambda example: int(int(example[feature]) * bins // values)


RULES: dict[str, LabelRule] = {
    "clevr_count": LabelRule(
        tuple(f"{n} objects" for n in range(3, 11)), ("objects",), _clevr_count
    ),
    "clevr_distance": LabelRule(
        ("below 8", "8 to 8.5", "8.5 to 9", "9 to 9.5", "9.5 to 10", "above 10"),
        ("objects",),
        _clevr_distance,
    ),
    "dsprites_location": LabelRule(
        tuple(f"x {i}" for i in range(16)),
        ("label_x_position",),
        _bins("label_x_position", 32, 16),
        image_scale=255,
    ),
    "dsprites_orientation": LabelRule(
        tuple(f"angle {i}" for i in range(16)),
        ("label_orientation",),
        _bins("label_orientation", 40, 16),
        image_scale=255,
    ),
    "kitti_distance": LabelRule(
        ("below 8 m", "8 to 20 m", "above 20 m", "no vehicle"), ("objects",), _kitti_distance
    ),
}


def scale_pixels(encoded: bytes, factor: int) -> UInt8[np.ndarray, "h w 3"]:
    """Returns the pixels of an encoded image, multiplied."""
    return np.asarray(decode(encoded)) * np.uint8(factor)
