"""Random-access sources of examples. They do not need TensorFlow."""

from vit_jax.data.sources.base import Example, Source
from vit_jax.data.sources.open import (
    TrainingData,
    class_count,
    default_features,
    open_source,
    open_training_data,
    with_subset_hash,
)
from vit_jax.data.sources.tfds import TfdsSource, default_data_dir

__all__ = [
    "Example",
    "Source",
    "TfdsSource",
    "TrainingData",
    "class_count",
    "default_data_dir",
    "default_features",
    "open_source",
    "open_training_data",
    "with_subset_hash",
]
