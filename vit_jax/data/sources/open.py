"""Opens the sources of a config."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from vit_jax.config.data import DataConfig, MemberConfig
from vit_jax.config.run import Config
from vit_jax.data.sources.base import LABEL_ONLY, LabelledSource, Source
from vit_jax.data.sources.captioned import CaptionedSource, list_captioned
from vit_jax.data.sources.folder import FolderSource
from vit_jax.data.sources.huggingface import HuggingFaceSource
from vit_jax.data.sources.listing import list_images
from vit_jax.data.sources.mixture import MixtureMember, MixtureSource, slots_by_weight
from vit_jax.data.sources.subset import take_subset
from vit_jax.data.sources.tfds import TfdsSource
from vit_jax.errors import DataError, nearest
from vit_jax.storage.block_cache import BlockCache, block_cache
from vit_jax.storage.paths import check_output_folder, local_path, user_path


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """The training examples of a run."""

    source: Source
    manifest: dict[str, Any] | None  # Describes the subset; None: the whole split.


def default_features(data: DataConfig) -> Sequence[str]:
    """Returns the features that are read with the image: the caption or, without one, the label."""
    feature = None if data.captions.tokenizer is None else data.captions.feature_name
    return LABEL_ONLY if feature is None else (feature.partition("/")[0],)


def open_training_data(data: DataConfig) -> TrainingData:
    """Opens the training examples: the training split, its subset, or the weighted mixture."""
    features = default_features(data)
    if data.mixture:
        members = {
            name: _open_one(member, member.train_split or data.train_split, data, features)
            for name, member in data.mixture.items()
        }
        sizes = {name: len(member) for name, member in members.items()}
        weights = {name: member.weight for name, member in data.mixture.items()}
        return TrainingData(MixtureSource(members, slots_by_weight(sizes, weights)), None)
    source = _open_one(data, data.train_split, data, features)
    if data.subset.rule is None:
        return TrainingData(source, None)
    return TrainingData(*take_subset(source, data.subset))


def open_source(data: DataConfig, split: str, features: Sequence[str] | None = None) -> Source:
    """Opens a whole split of a config's dataset for evaluation. Ignores the subset.

    The split may be a preset of `data.sources.splits`. For a mixture, "SPLIT" reads the split of
    all members in turn and "MEMBER:SPLIT" reads the split of one member. Both use the labels of the
    mixture. Reads `default_features` unless others are given.
    """
    features = default_features(data) if features is None else features
    if not data.mixture:
        return _open_one(data, split, data, features)
    name, colon, rest = split.partition(":")
    if not colon or "[" in name:
        opened = {n: _open_one(m, split, data, features) for n, m in data.mixture.items()}
        return MixtureSource(opened, {n: len(m) for n, m in opened.items()})
    if name not in data.mixture:
        raise DataError(
            f"split {split!r}, but the mixture has no member {name!r}",
            f"MEMBER:split with one of {', '.join(data.mixture)}",
            f"did you mean '{nearest(name, data.mixture)}:{rest}'?",
        )
    opened = {
        n: _open_one(m, rest if n == name else m.train_split or data.train_split, data, features)
        for n, m in data.mixture.items()
    }
    return MixtureMember(opened, name)


def data_cache(data: DataConfig) -> BlockCache:
    """Returns the cache for data in buckets."""
    folder = None if data.cache_dir is None else local_path(data.cache_dir, "data.cache_dir")
    if folder is not None:
        check_output_folder(folder)
    return block_cache(folder, data.cache_dir_gb)


def with_subset_hash(config: Config, training: TrainingData) -> Config:
    """Returns the config with `data.subset.hash` set to the hash of its training subset."""
    if training.manifest is None:
        return config
    subset = config.data.subset.replace(hash=training.manifest["hash"])
    return config.replace(data=config.data.replace(subset=subset))


def class_count(source: Source, wanted: int | None) -> int:
    """Returns the number of classes of the head: `data.num_classes`, or the dataset's number."""
    if wanted is not None and wanted < len(source.class_names):
        raise DataError(
            f"data.num_classes is {wanted}; {source.name} has {len(source.class_names)} classes",
            "at least that many",
            "leave data.num_classes out",
        )
    return wanted or len(source.class_names)


def _open_one(
    which: DataConfig | MemberConfig, split: str, data: DataConfig, features: Sequence[str]
) -> LabelledSource:
    """Opens a split of the dataset that a config or a member of its mixture describes."""
    data_dir = which.data_dir or data.data_dir
    keys = {"image_key": which.image_key, "label_key": which.label_key}
    if which.source == "tfds":
        rule = which.label_rule if isinstance(which, DataConfig) else None
        return TfdsSource(
            which.name,
            split,
            data_dir,
            **keys,
            label_rule=rule,
            features=features,
            cache=data_cache(data),
        )
    if which.source == "huggingface":
        return HuggingFaceSource(which.name, split, data_dir, **keys, features=features)
    empty_files = "error" if data.on_bad_example == "error" else "keep"
    what = {"csv": "the CSV file", "folder": "the folder of images"}.get(
        which.source, "the images with captions"
    )
    if data_dir is None:
        raise DataError(
            f"data.source is {which.source}, but data.data_dir is not set",
            what,
            "add --config.data.data_dir=PATH",
        )
    path = user_path(data_dir)
    if which.source == "captioned":
        captioned = list_captioned(path, features, data_cache(data))
        return CaptionedSource(captioned, split, which.name, empty_files)
    if path.exists() and path.is_file() != (which.source == "csv"):
        found = "csv" if path.is_file() else "folder"
        raise DataError(
            f"data.source is {which.source}, but {path} is a {'file' if found == 'csv' else found}",
            what,
            f"set data.source={found}",
        )
    listing = list_images(path, data_cache(data))
    return FolderSource(listing, split, which.name, empty_files, features)
