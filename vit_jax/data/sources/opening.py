"""From a config to the sources it names."""

import dataclasses
from pathlib import Path
from typing import Any

from vit_jax.config.data import DataConfig, MemberConfig
from vit_jax.config.run import Config
from vit_jax.data.sources.base import LabelledSource, Source
from vit_jax.data.sources.folder import FolderSource
from vit_jax.data.sources.huggingface import HuggingFaceSource
from vit_jax.data.sources.listing import list_images
from vit_jax.data.sources.mixture import MixtureMember, MixtureSource, slots_by_weight
from vit_jax.data.sources.subset import take_subset
from vit_jax.data.sources.tfds import TfdsSource
from vit_jax.errors import DataError, nearest


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """What a run trains on.

    Attributes:
        source: the examples.
        manifest: which examples of the training split these are; None where they are all.
    """

    source: Source
    manifest: dict[str, Any] | None


def open_training_data(data: DataConfig) -> TrainingData:
    """Returns the training examples: the training split, its subset, or the weighted mixture.

    Raises:
        DataError: it is not there, cannot be read at random, or is not the subset it was.
    """
    if data.mixture:
        members = {
            name: _open_one(member, member.train_split or data.train_split, data)
            for name, member in data.mixture.items()
        }
        sizes = {name: len(member) for name, member in members.items()}
        weights = {name: member.weight for name, member in data.mixture.items()}
        return TrainingData(MixtureSource(members, slots_by_weight(sizes, weights)), None)
    source = _open_one(data, data.train_split, data)
    if data.subset.rule is None:
        return TrainingData(source, None)
    return TrainingData(*take_subset(source, data.subset))


def open_source(data: DataConfig, split: str) -> Source:
    """Returns a whole split of a config's dataset, for evaluation; subsets are for training.

    Args:
        data: with a mixture, the split is that of all its members, one after the other, or in the
            form "MEMBER:split" that of one of them; labels are those of the mixture either way.
        split: TFDS split string, or a preset of `data.sources.splits`.

    Raises:
        DataError: it is not there, or cannot be read at random.
    """
    if not data.mixture:
        return _open_one(data, split, data)
    name, colon, rest = split.partition(":")
    if not colon or "[" in name:
        opened = {n: _open_one(m, split, data) for n, m in data.mixture.items()}
        return MixtureSource(opened, {n: len(m) for n, m in opened.items()})
    if name not in data.mixture:
        raise DataError(
            f"split {split!r} of a mixture without a member {name!r}",
            f"MEMBER:split with one of {', '.join(data.mixture)}",
            f"did you mean '{nearest(name, data.mixture)}:{rest}'?",
        )
    opened = {
        n: _open_one(m, rest if n == name else m.train_split or data.train_split, data)
        for n, m in data.mixture.items()
    }
    return MixtureMember(opened, name)


def with_subset_hash(config: Config, training: TrainingData) -> Config:
    """Returns the config with the hash of the subset that it trains on."""
    if training.manifest is None:
        return config
    subset = config.data.subset.replace(hash=training.manifest["hash"])
    return config.replace(data=config.data.replace(subset=subset))


def class_count(source: Source, wanted: int | None) -> int:
    """Returns the number of classes of the head: as wanted, else as the dataset says.

    Args:
        source: any split.
        wanted: `data.num_classes`.

    Raises:
        DataError: fewer are wanted than the dataset has.
    """
    if wanted is not None and wanted < len(source.class_names):
        raise DataError(
            f"data.num_classes is {wanted}, {source.name} has {len(source.class_names)} classes",
            "at least as many",
            "leave data.num_classes out",
        )
    return wanted or len(source.class_names)


def _open_one(which: DataConfig | MemberConfig, split: str, data: DataConfig) -> LabelledSource:
    """Opens the dataset that a config or a member of its mixture describes."""
    data_dir = which.data_dir or data.data_dir
    keys = {"image_key": which.image_key, "label_key": which.label_key}
    if which.source == "tfds":
        rule = which.label_rule if isinstance(which, DataConfig) else None
        return TfdsSource(which.name, split, data_dir, **keys, label_rule=rule)
    if which.source == "huggingface":
        return HuggingFaceSource(which.name, split, data_dir, **keys)
    what = "the CSV file" if which.source == "csv" else "the folder of images"
    if data_dir is None:
        raise DataError(
            f"data.source is {which.source} and data.data_dir is not set",
            what,
            "add --config.data.data_dir=PATH",
        )
    path = Path(data_dir).expanduser()
    if path.exists() and path.is_file() != (which.source == "csv"):
        found = "csv" if path.is_file() else "folder"
        raise DataError(
            f"data.source is {which.source} and {path} is a {'file' if found == 'csv' else found}",
            what,
            f"set data.source={found}",
        )
    empty_files = "error" if data.on_bad_example == "error" else "keep"
    return FolderSource(list_images(path), split, which.name, empty_files)
