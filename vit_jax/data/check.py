"""Checks a dataset before training: reads and decodes every image."""

import dataclasses
import io
import os
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from vit_jax.data.decode import decode
from vit_jax.data.prepare.shards import sha256_of
from vit_jax.data.progress import ProgressBar, track
from vit_jax.data.sources import Example, Source
from vit_jax.data.sources.tfds import CHECKSUMS
from vit_jax.errors import DataError, UnreachableError

_CHUNK = 64


@dataclasses.dataclass(frozen=True)
class SplitReport:
    """The result of checking a split.

    Attributes:
        name: name of the split.
        per_class: i[C], number of readable examples of each class.
        sizes: i[N, 2], width and height of each readable image.
        num_bytes: i[N], encoded size of each readable image.
        formats: format -> number of images.
        bad: (example, reason) for each image that cannot be read or whose label is out of range.
    """

    name: str
    per_class: np.ndarray
    sizes: np.ndarray
    num_bytes: np.ndarray
    formats: Counter[str]
    bad: list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class _ExampleReport:
    """The result of checking one example."""

    id: str
    label: int
    size: tuple[int, int]
    num_bytes: int
    format: str
    reason: str | None


def check_split(source: Source, split: str, threads: int | None = None) -> SplitReport:
    """Decodes every image of a source.

    Args:
        source: the whole split.
        split: its name.
        threads: number of threads that read and decode; None: one per core.
    """
    num_classes = len(source.class_names)
    chunks = [range(i, min(i + _CHUNK, len(source))) for i in range(0, len(source), _CHUNK)]
    per_class = np.zeros(num_classes, np.int64)
    formats: Counter[str] = Counter()
    sizes, num_bytes = array("i"), array("q")
    bad: list[tuple[str, str]] = []
    with (
        ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool,
        ProgressBar(f"checking {split}", len(source)) as progress,
    ):
        for found in pool.map(lambda chunk: _check_chunk(source, chunk, num_classes), chunks):
            progress.advance(len(found))
            for one in found:
                if one.reason is not None:
                    bad.append((one.id, one.reason))
                    continue
                per_class[one.label] += 1
                formats[one.format] += 1
                sizes.extend(one.size)
                num_bytes.append(one.num_bytes)
    return SplitReport(
        name=split,
        per_class=per_class,
        sizes=np.array(sizes).reshape(-1, 2),
        num_bytes=np.array(num_bytes),
        formats=formats,
        bad=bad,
    )


def wrong_checksums(folder: Path) -> list[tuple[str, str]]:
    """Returns (file, reason) for each file that does not match the dataset's checksum file.

    Datasets that TFDS prepared have no checksum file, so nothing is checked there.
    """
    path = folder / CHECKSUMS
    if not path.is_file():
        return []
    wrong = []
    lines = path.read_text().splitlines()
    for line in track(lines, "checksums", len(lines)):
        expected, _, name = line.partition("  ")
        if not (folder / name).is_file():
            wrong.append((name, "missing"))
        elif sha256_of(folder / name) != expected:
            wrong.append((name, "wrong checksum: changed or damaged"))
    return wrong


def _check_chunk(source: Source, chunk: range, num_classes: int) -> list[_ExampleReport]:
    try:
        return [_check_one(example, num_classes) for example in source.read(chunk)]
    except UnreachableError:
        raise
    except DataError:  # Read one at a time to find the bad examples.
        return [_check_index(source, index, num_classes) for index in chunk]


def _check_index(source: Source, index: int, num_classes: int) -> _ExampleReport:
    read: Callable[[Sequence[int]], list[Example]] = source.read
    try:
        return _check_one(read([index])[0], num_classes)
    except UnreachableError:
        raise
    except DataError as error:
        return _ExampleReport(str(index), -1, (0, 0), 0, "", error.got)


def _check_one(example: Example, num_classes: int) -> _ExampleReport:
    size, kind, reason = (0, 0), "", None
    try:
        size = decode(example.image).size
        kind = str(Image.open(io.BytesIO(example.image)).format)
    except DataError as error:
        reason = error.got
    if reason is None and not 0 <= example.label < num_classes:
        reason = f"label {example.label} is not 0 to {num_classes - 1}"
    return _ExampleReport(example.id, example.label, size, len(example.image), kind, reason)
