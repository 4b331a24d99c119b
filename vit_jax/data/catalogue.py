"""Lists the prepared datasets in a folder from their metadata."""

import dataclasses
from pathlib import Path

from vit_jax.data.builders import BUNDLED
from vit_jax.storage.files import read_json

RANDOM_ACCESS = ("array_record", "parquet")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A prepared dataset.

    Attributes:
        name: name with config and version, as in `data.name`.
        path: its folder.
        splits: split -> number of examples.
        formats: file formats, the preferred one first.
        num_classes: None: no class labels.
        num_bytes: total size of its files.
    """

    name: str
    path: Path
    splits: dict[str, int]
    formats: tuple[str, ...]
    num_classes: int | None
    num_bytes: int

    @property
    def readable(self) -> bool:
        """Whether the format has random access, which training needs."""
        return any(name in RANDOM_ACCESS for name in self.formats)


def list_datasets(data_dir: Path) -> list[Entry]:
    """Returns the prepared datasets in a folder, sorted by name."""
    found = [p for depth in ("*/*", "*/*/*") for p in data_dir.glob(f"{depth}/dataset_info.json")]
    entries = [entry for p in found if (entry := _read_entry(data_dir, p.parent)) is not None]
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
            num_bytes=sum(p.stat().st_size for p in folder.iterdir() if p.is_file()),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # Not a dataset, or an incomplete one.


def _num_classes(path: Path) -> int | None:
    features = read_json(path)
    inner = features.get("featuresDict", {}).get("features", {})
    labels = {name: f["classLabel"] for name, f in inner.items() if "classLabel" in f}
    if not labels:
        return None
    chosen = labels.get("label", next(iter(labels.values())))
    return int(chosen.get("numClasses", 0))
