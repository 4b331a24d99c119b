"""Checks a dataset before training: reads and decodes every image."""

import dataclasses
import hashlib
import io
import os
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from vit_jax.data.decode import decode
from vit_jax.data.prepare.shards import sha256_of
from vit_jax.data.progress import ProgressBar, track
from vit_jax.data.sources import Example, Source
from vit_jax.data.sources.captioned import read_texts
from vit_jax.data.sources.tfds import CHECKSUMS
from vit_jax.data.suspicious import Split, split_warnings
from vit_jax.errors import DataError, UnreachableError

_CHUNK = 64


@dataclasses.dataclass(frozen=True)
class SplitReport:
    """The result of checking a split with N readable images."""

    name: str
    per_class: np.ndarray  # i[C], readable examples of each class.
    sizes: np.ndarray  # i[N, 2], width and height.
    num_bytes: np.ndarray  # i[N], of the file or the pixels.
    formats: Counter[str]  # Format -> number of images.
    bad: list[tuple[str, str]]  # (example, reason): unreadable, or a bad label or caption.
    constant: list[str]  # Images whose pixels are all equal.
    indices: np.ndarray  # i[N], in the source.
    contents: np.ndarray  # u64[N], hashes of the files or the pixels.
    labels: np.ndarray  # i[N].


@dataclasses.dataclass(frozen=True)
class _ExampleReport:
    id: str
    label: int
    size: tuple[int, int]
    num_bytes: int
    format: str
    reason: str | None
    is_constant: bool = False
    content: int = 0


def check_split(source: Source, split: str, threads: int | None = None) -> SplitReport:
    """Decodes every image of a whole split."""
    num_classes = len(source.class_names)
    chunks = [range(i, min(i + _CHUNK, len(source))) for i in range(0, len(source), _CHUNK)]
    per_class = np.zeros(num_classes, np.int64)
    formats: Counter[str] = Counter()
    sizes, num_bytes = array("i"), array("q")
    bad: list[tuple[str, str]] = []
    constant: list[str] = []
    indices, contents, labels = array("q"), array("Q"), array("q")
    with (
        ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool,
        ProgressBar(f"checking {split}", len(source)) as progress,
    ):
        checked = pool.map(lambda chunk: _check_chunk(source, chunk, num_classes), chunks)
        for chunk, found in zip(chunks, checked, strict=True):
            progress.advance(len(found))
            for index, one in zip(chunk, found, strict=True):
                if one.reason is not None:
                    bad.append((one.id, one.reason))
                    continue
                if num_classes:
                    per_class[one.label] += 1
                formats[one.format] += 1
                sizes.extend(one.size)
                num_bytes.append(one.num_bytes)
                constant += [one.id] if one.is_constant else []
                indices.append(index)
                contents.append(one.content)
                labels.append(one.label)
    return SplitReport(
        name=split,
        per_class=per_class,
        sizes=np.array(sizes).reshape(-1, 2),
        num_bytes=np.array(num_bytes),
        formats=formats,
        bad=bad,
        constant=constant,
        indices=np.array(indices),
        contents=np.array(contents, np.uint64),
        labels=np.array(labels),
    )


def dataset_warnings(reports: Sequence[SplitReport], sources: Mapping[str, Source]) -> list[str]:
    """Returns warnings about a dataset whose images can all be read.

    They are about splits and classes without enough examples, images of one colour, images that are
    in two splits, and images that are in two classes.
    """
    class_names = next(iter(sources.values())).class_names
    splits = [Split(f"split {r.name!r}", len(r.indices), r.per_class) for r in reports]
    is_train = [report.name == "train" for report in reports]
    train = splits[is_train.index(True) if any(is_train) else 0]
    others = [split for split in splits if split is not train]
    warnings = split_warnings(train, others, class_names)
    for report in reports:
        if report.constant:
            warnings.append(
                f"{len(report.constant):,} of {len(report.indices):,} images of split"
                f" {report.name!r} are of one colour, such as {report.constant[0]}"
            )
    for number, report in enumerate(reports):
        for earlier in reports[:number]:
            same = np.flatnonzero(np.isin(report.contents, earlier.contents))
            if len(same):
                at = np.flatnonzero(earlier.contents == report.contents[same[0]])[0]
                one = sources[report.name][int(report.indices[same[0]])].id
                other = sources[earlier.name][int(earlier.indices[at])].id
                warnings.append(
                    f"{len(same):,} of {len(report.indices):,} images of split {report.name!r}"
                    f" are also in split {earlier.name!r}, such as {one} = {other}"
                )
    return warnings + [
        text for report in reports for text in _in_two_classes(report, sources[report.name])
    ]


def _in_two_classes(report: SplitReport, source: Source) -> list[str]:
    """Returns a warning if a split has an image under several labels, or nothing."""
    _, group = np.unique(report.contents, return_inverse=True)
    lowest = np.full(len(report.contents), np.iinfo(np.int64).max)
    np.minimum.at(lowest, group, report.labels)
    differs = np.flatnonzero(report.labels != lowest[group])
    if not len(source.class_names) or not len(differs):
        return []
    one = differs[0]
    other = np.flatnonzero((group == group[one]) & (report.labels != report.labels[one]))[0]
    first, second = (source[int(report.indices[i])].id for i in (other, one))
    return [
        f"images of split {report.name!r} in more than one class:"
        f" {len(np.unique(group[differs])):,}, such as {first} = {second}"
    ]


def wrong_checksums(folder: Path) -> list[tuple[str, str]]:
    """Returns (file, reason) for each file that does not match the dataset's checksum file.

    Datasets that TFDS prepared have no checksum file, so nothing is checked there.
    """
    path = folder / CHECKSUMS
    if not path.is_file():
        return []
    wrong = []
    lines = path.read_text(encoding="utf-8").splitlines()
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
    try:
        return _check_one(source[index], num_classes)
    except UnreachableError:
        raise
    except DataError as error:
        return _ExampleReport(str(index), -1, (0, 0), 0, "", error.got)


def _check_one(example: Example, num_classes: int) -> _ExampleReport:
    size, kind, reason, is_constant = (0, 0), "pixels", None, False
    stored = example.image
    content = stored if isinstance(stored, bytes) else stored.tobytes()
    try:
        image = decode(stored)
        size, is_constant = image.size, image.getcolors(maxcolors=1) is not None
        if isinstance(stored, bytes):
            kind = str(Image.open(io.BytesIO(stored)).format)
    except DataError as error:
        reason = error.got
    if reason is None and num_classes and not 0 <= example.label < num_classes:
        reason = f"label {example.label} is not 0 to {num_classes - 1}"
    if reason is None and not num_classes:
        reason = _bad_caption(example)
    digest = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
    return _ExampleReport(
        example.id, example.label, size, len(content), kind, reason, is_constant, digest
    )


def _bad_caption(example: Example) -> str | None:
    """Returns what is wrong with the captions of an example, if it has any."""
    try:
        for value in example.features.values():
            read_texts(value)
    except DataError as error:
        return error.got
    return None
