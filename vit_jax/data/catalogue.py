"""Lists the prepared datasets in a folder from their metadata."""

import dataclasses
from pathlib import Path

from vit_jax.data.builders import BUNDLED
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import read_json

RANDOM_ACCESS = ("array_record", "parquet")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A prepared dataset."""

    name: str  # With config and version, as in `data.name`.
    path: Path
    splits: dict[str, int]  # Split -> number of examples.
    formats: tuple[str, ...]  # The preferred one first.
    num_classes: int | None  # None: no class labels.
    num_bytes: int  # Of all its files.

    @property
    def readable(self) -> bool:
        """Whether the format has random access, which training needs."""
        return any(name in RANDOM_ACCESS for name in self.formats)


def prepared_folders(data_dir: Path) -> list[Path]:
    """Returns the folders NAME/VERSION and NAME/CONFIG/VERSION of prepared datasets."""
    depths = ("*/*", "*/*/*")
    return [p.parent for depth in depths for p in data_dir.glob(f"{depth}/dataset_info.json")]


def list_datasets(data_dir: Path) -> list[Entry]:
    """Returns the prepared datasets in a folder, sorted by name."""
    found = prepared_folders(data_dir)
    entries = [entry for path in found if (entry := _read_entry(data_dir, path)) is not None]
    return sorted(entries, key=lambda entry: entry.name)


def bundled_missing(entries: list[Entry]) -> list[str]:
    """Returns the bundled datasets that are not prepared yet. First use prepares them."""
    prepared = {entry.name.split(":")[0] for entry in entries}
    return sorted(set(BUNDLED) - prepared)


def _read_entry(data_dir: Path, folder: Path) -> Entry | None:
    try:
        info = read_json(folder / "dataset_info.json")
        splits = {
            split["name"]: sum(map(int, split.get("shardLengths", [])))
            for split in info.get("splits", [])
        }
        formats = (info.get("fileFormat", "tfrecord"), *info.get("alternativeFileFormats", ()))
        return Entry(
            name=f"{folder.parent.relative_to(data_dir).as_posix()}:{folder.name}",
            path=folder,
            splits=splits,
            formats=formats,
            num_classes=_num_classes(folder / "features.json"),
            num_bytes=_size_of(folder),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # Not a dataset, or an incomplete one.


def _size_of(folder: Path) -> int:
    if isinstance(folder, BucketPath):
        return sum(size for _, size in folder.find())
    return sum(p.stat().st_size for p in folder.iterdir() if p.is_file())


def _num_classes(path: Path) -> int | None:
    features = read_json(path)
    inner = features.get("featuresDict", {}).get("features", {})
    labels = {name: f["classLabel"] for name, f in inner.items() if "classLabel" in f}
    if not labels:
        return None
    chosen = labels.get("label", next(iter(labels.values())))
    return int(chosen.get("numClasses", 0))
