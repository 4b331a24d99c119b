"""Packs a folder of images or tar files into a TFDS dataset of ArrayRecord shards."""

import dataclasses
import logging
import os
import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from vit_jax.data.builders import BUNDLED
from vit_jax.data.prepare.images import JPEG_QUALITY, fit_image
from vit_jax.data.prepare.shards import JOURNAL, Shard, ShardFolder
from vit_jax.data.progress import ProgressBar
from vit_jax.data.records import encode_record
from vit_jax.data.sources.listing import Listing
from vit_jax.errors import DataError
from vit_jax.storage.files import write_atomically

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

VERSION = "1.0.0"
# This number of images keeps all threads busy and needs little memory.
_IN_FLIGHT_PER_THREAD = 4
# Images in a bucket are read ahead in groups of this size.
_ROWS_AHEAD = 64


@dataclasses.dataclass(frozen=True)
class PackOptions:
    """Options of `pack`."""

    name: str  # Of the dataset, `data.name`.
    short_side: int | None = None  # Pixels; larger images are shrunk to it. None: unchanged bytes.
    val_fraction: float = 0.0  # Of every class of "train", moved to "validation".
    shard_mb: float = 256.0  # Megabytes of images per shard, before shrinking.
    on_bad_example: Literal["error", "skip"] = "error"
    threads: int | None = None  # None: one per core.


@dataclasses.dataclass(frozen=True)
class Packed:
    """A finished dataset."""

    path: Path  # NAME/1.0.0.
    splits: dict[str, int]  # Split -> number of examples.
    skipped: list[str]  # Names of unreadable images.
    was_complete: bool


def pack(listing: Listing, data_dir: Path, options: PackOptions) -> Packed:
    """Writes the images of a listing to DATA_DIR/NAME/1.0.0. Resumes an interrupted run.

    Decodes every image once to check that it is readable. The examples have the same order as in
    `FolderSource`. Only a few images are in memory at a time.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", options.name) or options.name in BUNDLED:
        raise DataError(
            f"dataset name {options.name!r}",
            f"a lowercase letter, then lowercase letters, digits or _; not {', '.join(BUNDLED)}",
            "choose another --name",
        )
    _check_class_names(listing.class_names)
    splits = _make_splits(listing, options.val_fraction)
    shards = {
        name: rows
        for split, rows_of_split in splits.items()
        for name, rows in _shard_rows(listing, split, rows_of_split, options)
    }
    everything = np.concatenate([rows for _, rows in sorted(splits.items())])
    plan = {
        "images": listing.identity(everything),
        "shards": {name: len(rows) for name, rows in shards.items()},
        "short_side": options.short_side,
        "jpeg_quality": JPEG_QUALITY,
    }
    path = data_dir.absolute() / options.name / VERSION
    if (path / "dataset_info.json").exists() and not (path / JOURNAL).exists():
        raise DataError(
            f"{path} holds a dataset that another program wrote",
            "no dataset, or one written by this command",
            "choose another name",
        )
    total = sum(len(rows) for rows in shards.values())
    with ShardFolder(path, plan) as folder:
        done = sum(len(shards[name]) for name in folder.shards)
        if done:
            log.info("%d of %d images are already packed", done, total)
        with (
            ProgressBar(f"packing {options.name}", total, done) as progress,
            ThreadPoolExecutor(options.threads or os.cpu_count() or 1) as pool,
        ):
            for name, rows in shards.items():
                if name not in folder.shards:
                    _write_shard(folder, name, listing, rows, options, pool, progress)
        finished = [folder.shards[name] for name in shards]
        counts = {split: sum(s.examples for s in _of_split(finished, split)) for split in splits}
        skipped = [name for shard in finished for name in shard.facts["skipped"]]
        _check_skipped(listing.root, counts, skipped, options)
        was_complete = done == total and _metadata_matches(path, listing.class_names)
        if not was_complete:
            folder.write_checksums()
            _write_metadata(folder, listing, options, list(splits))
    return Packed(path, counts, skipped, was_complete)


def _check_class_names(names: Iterable[str]) -> None:
    """Raises DataError for a name that TFDS cannot store in its file of one name per line."""
    for name in names:
        written = name.encode(errors="replace").decode().splitlines()
        if written != [name.strip()] or name != name.strip():
            raise DataError(
                f"class name {name!r}",
                "one line of UTF-8 without leading or trailing spaces",
                "rename the class",
            )


def _check_skipped(
    root: Path, counts: dict[str, int], skipped: list[str], options: PackOptions
) -> None:
    """Raises DataError if images were skipped without --on_bad_example=skip or a split is empty."""
    if skipped and options.on_bad_example == "error":
        raise DataError(
            f"an earlier run skipped {len(skipped)} unreadable images, such as {root / skipped[0]}",
            "only readable images",
            "add --on_bad_example=skip, or choose another --name",
        )
    for split, count in counts.items():
        if not count:
            raise DataError(
                f"no image of split {split} in {root} can be read",
                "at least one",
                "list bad images with: python -m vit_jax data check",
            )


def _make_splits(listing: Listing, val_fraction: float) -> dict[str, np.ndarray]:
    if not val_fraction:
        return listing.splits
    if list(listing.splits) != ["train"]:
        raise DataError(
            f"--val_fraction={val_fraction:g}, but there are splits {', '.join(listing.splits)}",
            "images without splits",
            "leave --val_fraction out",
        )
    rows = listing.splits["train"]
    kept = len(rows) - round(val_fraction * len(rows))
    if not 0 < kept < len(rows):
        raise DataError(
            f"--val_fraction={val_fraction:g} of {len(rows)} images",
            "a fraction that leaves images in both parts",
            "choose another fraction",
        )
    return {"train": rows[:kept], "validation": rows[kept:]}


def _shard_rows(
    listing: Listing, split: str, rows: np.ndarray, options: PackOptions
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (file name, rows) for each shard of a split."""
    megabytes = listing.sizes[rows].sum() / 1e6
    count = int(min(len(rows), max(1, np.ceil(megabytes / options.shard_mb))))
    for number, part in enumerate(np.array_split(rows, count)):
        yield f"{options.name}-{split}.array_record-{number:05d}-of-{count:05d}", part


def _write_shard(
    folder: ShardFolder,
    name: str,
    listing: Listing,
    rows: np.ndarray,
    options: PackOptions,
    pool: ThreadPoolExecutor,
    progress: ProgressBar,
) -> None:
    formats: dict[str, int] = {}
    skipped: list[str] = []
    facts: dict[str, Any] = {"formats": formats, "skipped": skipped}

    def load(row: int) -> tuple[bytes, str] | DataError:
        try:
            return fit_image(listing.read(row), options.short_side)
        except DataError as error:
            return error

    def records() -> Iterator[bytes]:
        window = _IN_FLIGHT_PER_THREAD * (options.threads or os.cpu_count() or 1)
        results = _ordered_map(pool, load, _announced(listing, rows), window)
        for row, result in zip(rows, results, strict=True):
            progress.advance()
            if not isinstance(result, DataError):
                image, kind = result
                formats[kind] = formats.get(kind, 0) + 1
                yield encode_record(image, int(listing.labels[row]), listing.names[row])
            elif options.on_bad_example == "skip":
                skipped.append(listing.names[row])
                log.warning("skipped: %s: %s", listing.names[row], result.got)
            else:
                where = str(listing.root / listing.names[row])
                raise DataError(
                    result.got if result.got.startswith(where) else f"{where}: {result.got}",
                    result.expected,
                    "remove it, or add --on_bad_example=skip"
                    " (python -m vit_jax data check lists all bad images)",
                )

    folder.write(name, records(), facts)


def _announced(listing: Listing, rows: np.ndarray) -> Iterator[int]:
    """Yields rows, and lets a listing in a bucket read ahead."""
    for start in range(0, len(rows), _ROWS_AHEAD):
        first = start and start + _ROWS_AHEAD
        listing.read_ahead(int(row) for row in rows[first : start + 2 * _ROWS_AHEAD])
        yield from (int(row) for row in rows[start : start + _ROWS_AHEAD])


def _ordered_map(
    pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], window: int
) -> Iterator[R]:
    """Yields function(item) in the order of the items, with at most `window` in flight."""
    pending: deque[Future[R]] = deque()
    for item in items:
        pending.append(pool.submit(function, item))
        if len(pending) >= window:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _of_split(shards: Iterable[Shard], split: str) -> list[Shard]:
    return [shard for shard in shards if f"-{split}.array_record-" in shard.name]


def _metadata_matches(path: Path, class_names: tuple[str, ...]) -> bool:
    """Whether the metadata files exist and list these classes."""
    import tensorflow_datasets as tfds

    if not (path / "dataset_info.json").exists():
        return False
    try:
        features: Any = tfds.builder_from_directory(str(path)).info.features
        return tuple(features["label"].names) == class_names
    except Exception:  # Damaged files raise errors of many types.
        return False


def _write_metadata(
    folder: ShardFolder, listing: Listing, options: PackOptions, splits: list[str]
) -> None:
    """Writes features.json, label.labels.txt and, last, dataset_info.json."""
    import tensorflow_datasets as tfds

    formats = {kind for shard in folder.shards.values() for kind in shard.facts["formats"]}
    encoding = {"JPEG": "jpeg", "PNG": "png"}.get(formats.pop()) if len(formats) == 1 else None
    features = {
        "id": tfds.features.Text(),
        "image": tfds.features.Image(shape=(None, None, 3), encoding_format=encoding),
        "label": tfds.features.ClassLabel(names=list(listing.class_names)),
    }
    identity = tfds.core.DatasetIdentity(
        name=options.name,
        version=tfds.core.Version(VERSION),
        data_dir=str(folder.path),
        module_name="",
    )
    info = tfds.core.DatasetInfo(
        builder=identity,
        description=f"{len(listing.class_names)} classes of images, packed by vit_jax.",
        features=tfds.features.FeaturesDict(features),
        supervised_keys=("image", "label"),
    )
    info.set_file_format("array_record")
    shards = [shard for _, shard in sorted(folder.shards.items())]
    template = tfds.core.ShardedFileTemplate(
        dataset_name=options.name,
        data_dir=tfds.core.Path(str(folder.path)),
        filetype_suffix="array_record",
    )
    split_infos = [
        tfds.core.SplitInfo(
            name=split,
            shard_lengths=[shard.examples for shard in _of_split(shards, split)],
            num_bytes=sum(shard.num_bytes for shard in _of_split(shards, split)),
            filename_template=template.replace(split=split),
        )
        for split in splits
    ]
    info.set_splits(tfds.core.SplitDict(split_infos))
    with tempfile.TemporaryDirectory() as temporary:
        info.write_to_directory(temporary)
        # dataset_info.json comes last: its presence means that the dataset is complete.
        written = sorted(Path(temporary).iterdir(), key=lambda p: p.name == "dataset_info.json")
        for path in written:
            write_atomically(folder.path / path.name, path.read_text(encoding="utf-8"))
