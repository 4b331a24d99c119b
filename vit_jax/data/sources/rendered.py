"""Source of images that are rendered from a seed when they are read."""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.decode import encode_plain
from vit_jax.data.renderer import (
    MILLION,
    MIXTURE,
    SPLIT_SIZES,
    TASKS,
    VERSION,
    labels_of,
    render,
)
from vit_jax.data.sources.base import (
    LABEL_ONLY,
    Example,
    check_features,
    hash_of,
    without_label,
)
from vit_jax.data.sources.splits import expand_presets, read_split
from vit_jax.errors import DataError, nearest

SCHEME = "rendered"
_NAME = re.compile(rf"{SCHEME}:(?P<task>[^@:]*)(@(?P<share>[^:]*))?(:(?P<seed>.*))?")
# Each split's first number; the images of all splits are numbered one after another.
_FIRST_NUMBERS = dict(
    zip(SPLIT_SIZES, np.cumsum([0, *SPLIT_SIZES.values()]).tolist(), strict=False)
)


class RenderedSource:
    """A split of the rendered images of a task, see `data.renderer`.

    Args:
        name: "rendered:TASK", "rendered:mixture@SHARE", each with an optional ":SEED" (default 0).
            SHARE is that of textures, 0 to 1, rounded to millionths.
        split: TFDS split string over train (10,000,000 examples) and test (10,000), or a preset of
            `data.sources.splits`.
        features: features to read with the image; only the label is available.

    Attributes:
        name: name and split.
        class_names: names of the classes, in label order.
        fingerprint: hash of the task, share, seed, and version of the renderer, and of the split.
        spans: the parts of the splits.
        quick_labels: True, because labels are computed without rendering.

    Raises:
        DataError: no such task, split or feature, or a wrong share or seed.
    """

    def __init__(self, name: str, split: str, features: Sequence[str] = LABEL_ONLY):
        self._images = _parse(name)
        check_features(without_label(features), (), name)
        shards = {key: [size] for key, size in SPLIT_SIZES.items()}
        self.spans = read_split(expand_presets(split, SPLIT_SIZES, SCHEME), shards, name)
        self._ends = np.cumsum([span.stop - span.start for span in self.spans])
        self.name, self.quick_labels = f"{name} {split}", True
        self.class_names = TASKS[self._images.task].class_names
        described = dataclasses.astuple(self._images)
        self.fingerprint = hash_of(SCHEME, VERSION, described, self.spans)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Example:
        return self.read([index])[0]

    def read(self, indices: Sequence[int]) -> list[Example]:
        """Renders several examples at once, which is faster than one by one.

        Raises:
            IndexError: an index is negative, or not below the number of examples.
        """
        wanted = np.asarray(indices, np.int64)
        outside = wanted[(wanted < 0) | (wanted >= len(self))]
        if len(outside):
            raise IndexError(f"index {outside[0]} of {self.name} with {len(self):,} examples")
        parts = np.searchsorted(self._ends, wanted, side="right")
        places = wanted - self._ends[parts] + np.array([s.stop for s in self.spans])[parts]
        splits = [self.spans[part].split for part in parts]
        numbers = places + np.array([_FIRST_NUMBERS[split] for split in splits], np.int64)
        images = self._images
        pixels = render(images.task, images.seed, numbers, places, images.share)
        labels = labels_of(images.task, places)
        return [
            Example(encode_plain(image), int(label), f"{split} {place}")
            for image, label, split, place in zip(pixels, labels, splits, places, strict=True)
        ]

    def labels(self) -> UInt8[np.ndarray, " N"]:
        """Returns the label of every example without rendering."""
        return np.concatenate(
            [labels_of(self._images.task, np.arange(s.start, s.stop)) for s in self.spans]
        )


def open_splits(name: str, most: int | None = None) -> dict[str, RenderedSource]:
    """Returns all splits of a task, or at most the first examples of each.

    Args:
        name: as for `RenderedSource`.
        most: number of examples of each split; None: all.
    """
    part = "" if most is None else f"[:{most}]"
    return {split: RenderedSource(name, f"{split}{part}") for split in SPLIT_SIZES}


def is_rendered(name: str) -> bool:
    """Whether a `data.name` is that of rendered images."""
    return name.startswith(f"{SCHEME}:")


@dataclasses.dataclass(frozen=True)
class _Images:
    """The parts of a name. The share of textures is in millionths."""

    task: str
    share: int
    seed: int


def _parse(name: str) -> _Images:
    match = _NAME.fullmatch(name)
    task, share, seed = match.group("task", "share", "seed") if match else (name, None, None)
    if task not in TASKS:
        raise DataError(
            f"rendered images {name!r}, but there is no task {task!r}",
            f"{SCHEME}:TASK with one of {', '.join(TASKS)}",
            f"did you mean '{SCHEME}:{nearest(task, TASKS)}'?",
        )
    if (task == MIXTURE) != (share is not None):
        given = "no share of textures" if share is None else f"a share, {share!r}"
        raise DataError(
            f"rendered images {name!r} with {given}",
            f"{SCHEME}:{MIXTURE}@SHARE, and other tasks without a share",
            f"write {SCHEME}:{task}" + ("@0.5" if share is None else ""),
        )
    try:
        millionths = round(float(share or 0) * MILLION)
    except (ValueError, OverflowError):  # Not a number, NaN or infinite.
        millionths = -1
    if share == "" or not 0 <= millionths <= MILLION:
        raise DataError(
            f"rendered images {name!r} with the share {share!r}",
            "a share of textures from 0 to 1",
            f"write {SCHEME}:{MIXTURE}@0.5",
        )
    if seed is not None and not (seed.isascii() and seed.isdecimal()):
        raise DataError(
            f"rendered images {name!r} with the seed {seed!r}",
            "a whole number, 0 or larger",
            "leave it out, or write a number such as :1",
        )
    return _Images(task, millionths, int(seed or 0))
