"""Converts TFRecord datasets of TFDS to ArrayRecord without TensorFlow; the records stay the same.

A TFRecord file is a sequence of: length (u64, little-endian), masked CRC-32C of the length (u32),
the record, masked CRC-32C of the record (u32).
Source: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details.
"""

import contextlib
import dataclasses
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vit_jax.data.prepare.shards import ShardFolder
from vit_jax.data.progress import ProgressBar
from vit_jax.data.sources.base import bucket_error
from vit_jax.errors import DataError
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import copy_file, read_json, write_json
from vit_jax.storage.paths import user_path

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")


@dataclasses.dataclass(frozen=True)
class Converted:
    """A dataset that is stored as ArrayRecord."""

    path: Path
    examples: int  # In all splits.
    was_complete: bool  # It was ArrayRecord already.


def convert(builder: Any, destination: Path | None) -> Converted:
    """Writes the shards of a TFRecord dataset as ArrayRecord. Resumes an interrupted run.

    The destination is a folder of datasets for a separate copy. If it is None, the new files are
    next to the old ones. Then dataset_info.json names both formats, and TensorFlow still reads the
    old one.
    """
    from tensorflow_datasets.core import FileFormat

    info, old_folder = builder.info, user_path(str(builder.data_path))
    examples = sum(split.num_examples for split in info.splits.values())
    if FileFormat.ARRAY_RECORD in {info.file_format, *info.alternative_file_formats}:
        return Converted(old_folder, examples, was_complete=True)
    if info.file_format != FileFormat.TFRECORD:
        raise DataError(
            f"dataset {info.full_name} is stored as {info.file_format.value}",
            "tfrecord",
            "prepare it again with --file_format=array_record",
        )
    new_folder = old_folder if destination is None else destination / info.full_name
    pairs = [
        (old, new.name, length)
        for split in info.splits.values()
        for old, new, length in zip(
            sorted(split.filename_template.sharded_filepaths(split.num_shards)),
            sorted(
                split.filename_template.replace(
                    data_dir=str(new_folder), filetype_suffix="array_record"
                ).sharded_filepaths(split.num_shards)
            ),
            split.shard_lengths,
            strict=True,
        )
    ]
    checksum = crc32c()
    plan = {"shards": {name: length for _, name, length in pairs}, "from": info.full_name}
    with ShardFolder(new_folder, plan) as folder:
        done = sum(shard.examples for shard in folder.shards.values())
        with ProgressBar(f"converting {info.full_name}", examples, done) as progress:
            for old, name, length in pairs:
                if name not in folder.shards:
                    with _on_disk(user_path(str(old))) as path:
                        records = _checked_records(path, checksum, length, progress)
                        folder.write(name, records, {})
        folder.write_checksums()
    _write_metadata(old_folder, new_folder)
    return Converted(new_folder, examples, was_complete=False)


@contextlib.contextmanager
def _on_disk(path: Path) -> Iterator[Path]:
    """Gives a local path of a file: a temporary copy if it is in a bucket."""
    if not isinstance(path, BucketPath):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            copy_file(path, Path(folder) / path.name)
        except OSError as error:
            raise bucket_error(error) from None
        yield Path(folder) / path.name


def read_tfrecords(path: Path, checksum: Callable[[bytes], int]) -> Iterator[bytes]:
    """Yields the records of a file, after their CRC-32C was checked."""
    try:
        with path.open("rb") as file:
            while header := file.read(_HEADER.size):
                if len(header) < _HEADER.size:
                    raise _damaged_error(path)
                length, expected = _HEADER.unpack(header)
                if _mask_crc(checksum(header[:8])) != expected:
                    raise _damaged_error(path)
                record, footer = file.read(length), file.read(_FOOTER.size)
                if (
                    len(footer) < _FOOTER.size
                    or _mask_crc(checksum(record)) != _FOOTER.unpack(footer)[0]
                ):
                    raise _damaged_error(path)
                yield record
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}", "an intact file of the prepared dataset", "restore it"
        ) from None


def crc32c() -> Callable[[bytes], int]:
    """Returns the checksum function of TFRecord files."""
    try:
        import google_crc32c  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise DataError(
            "the package google-crc32c is not installed",
            "google-crc32c, which verifies the records",
            "run: pip install google-crc32c (part of the `prepare` extra)",
        ) from None
    return google_crc32c.value


def _mask_crc(value: int) -> int:
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _checked_records(
    path: Path, checksum: Callable[[bytes], int], expected: int, progress: ProgressBar
) -> Iterator[bytes]:
    """Yields the records of a file and checks their number."""
    found = 0
    for record in read_tfrecords(path, checksum):
        yield record
        found += 1
        progress.advance()
    if found != expected:
        raise DataError(
            f"{path} holds {found} records",
            f"{expected}, as dataset_info.json says",
            "prepare the dataset again",
        )


def _damaged_error(path: Path) -> DataError:
    return DataError(
        f"{path} is damaged", "an intact TFRecord file", "restore it or prepare the dataset again"
    )


def _write_metadata(old_folder: Path, new_folder: Path) -> None:
    """Adds ArrayRecord to the formats in dataset_info.json; copies other metadata if needed."""
    info = read_json(old_folder / "dataset_info.json", error=DataError)
    if new_folder == old_folder:
        formats = [*info.get("alternativeFileFormats", []), "array_record"]
        info["alternativeFileFormats"] = formats
    else:
        info["fileFormat"] = "array_record"
        info.pop("alternativeFileFormats", None)
        for path in [*old_folder.glob("*.json"), *old_folder.glob("*.txt")]:
            if path.name != "dataset_info.json":
                copy_file(path, new_folder / path.name)
    write_json(new_folder / "dataset_info.json", info)
