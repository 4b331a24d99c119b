"""Opens the sources of a config."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from vit_jax.config.data import DataConfig
from vit_jax.config.run import Config
from vit_jax.data.sources.base import LABEL_ONLY, Source, check_features, without_label
from vit_jax.data.sources.captioned import CaptionedSource, list_captioned
from vit_jax.data.sources.folder import FolderSource
from vit_jax.data.sources.listing import list_images
from vit_jax.data.sources.sequence import open_own_source, open_passed_source
from vit_jax.data.sources.subset import take_subset
from vit_jax.data.sources.tfds import TfdsSource
from vit_jax.errors import DataError
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
    """Opens the training examples: the training split or its subset."""
    source = open_source(data, data.train_split)
    if data.subset.rule is None:
        return TrainingData(source, None)
    return TrainingData(*take_subset(source, data.subset))


def open_source(data: DataConfig, split: str, features: Sequence[str] | None = None) -> Source:
    """Opens a whole split of a config's dataset for evaluation. Ignores the subset.

    The split may be a preset of `data.sources.splits`. Reads `default_features` unless others are
    given.
    """
    features = default_features(data) if features is None else features
    own = getattr(data, data.source, None)
    if own is not None or data.source == "passed":
        check_features(without_label(features), (), data.name)
        return open_own_source(own, data, split) if own else open_passed_source(data, split)
    keys = {"image_key": data.image_key, "label_key": data.label_key}
    if data.source == "tfds":
        return TfdsSource(
            data.name,
            split,
            data.data_dir,
            **keys,
            label_rule=data.label_rule,
            features=features,
            cache=data_cache(data),
        )
    empty_files = "error" if data.on_bad_example == "error" else "keep"
    what = {"csv": "the CSV file", "folder": "the folder of images"}.get(
        data.source, "the images with captions"
    )
    if data.data_dir is None:
        raise DataError(
            f"data.source is {data.source}, but data.data_dir is not set",
            what,
            "add --config.data.data_dir=PATH",
        )
    path = user_path(data.data_dir)
    if data.source == "captioned":
        captioned = list_captioned(path, features, data_cache(data))
        return CaptionedSource(captioned, split, data.name, empty_files)
    if path.exists() and path.is_file() != (data.source == "csv"):
        found = "csv" if path.is_file() else "folder"
        raise DataError(
            f"data.source is {data.source}, but {path} is a {'file' if found == 'csv' else found}",
            what,
            f"set data.source={found}",
        )
    listing = list_images(path, data_cache(data))
    return FolderSource(listing, split, data.name, empty_files, features)


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
