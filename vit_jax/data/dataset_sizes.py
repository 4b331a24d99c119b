"""Sizes of well-known datasets, for estimates before the dataset is available."""

import dataclasses

from vit_jax.config.data import DataConfig
from vit_jax.data.sources.splits import expand_presets, read_split
from vit_jax.errors import DataError


@dataclasses.dataclass(frozen=True)
class DatasetSize:
    """Number of classes and of examples per split."""

    num_classes: int
    splits: dict[str, int]


# Source: the TFDS catalogue (tensorflow.org/datasets/catalog); imagenet21k: the fall 2011 release,
# and jft: arXiv:2010.11929, section 4.1.
DATASET_SIZES: dict[str, DatasetSize] = {
    "digits": DatasetSize(10, {"train": 1437, "test": 360}),
    "mnist": DatasetSize(10, {"train": 60_000, "test": 10_000}),
    "cifar10": DatasetSize(10, {"train": 50_000, "test": 10_000}),
    "cifar100": DatasetSize(100, {"train": 50_000, "test": 10_000}),
    "oxford_iiit_pet": DatasetSize(37, {"train": 3680, "test": 3669}),
    "oxford_flowers102": DatasetSize(102, {"train": 1020, "validation": 1020, "test": 6149}),
    "coco_captions": DatasetSize(
        0, {"train": 82_783, "val": 5000, "restval": 30_504, "test": 5000}
    ),
    "imagenet2012": DatasetSize(1000, {"train": 1_281_167, "validation": 50_000}),
    "imagenet21k": DatasetSize(21_843, {"train": 14_197_122}),
    "jft": DatasetSize(18_291, {"train": 303_000_000}),
}


def known_size(data: DataConfig) -> tuple[int | None, int | None]:
    """Returns the number of classes and of training examples of a config; None if unknown.

    Reads no data. Takes `data.num_classes` and the subset into account.
    """
    known = DATASET_SIZES.get(data.name.split(":")[0].split("/")[-1])
    if known is None:
        return data.num_classes, None
    classes = data.num_classes or known.num_classes
    split = expand_presets(data.train_split, known.splits, data.name)
    shards = {name: [size] for name, size in known.splits.items()}
    count = sum(span.stop - span.start for span in read_split(split, shards, data.name))
    rule = data.subset.rule
    if rule is not None:
        kind, value = rule
        part = value * count if kind == "fraction" else value
        if part > count:
            raise DataError(
                f"a subset of {part:,.0f} examples of {data.name}",
                f"at most {count:,}",
                "ask for a smaller subset",
            )
        count = round(part)
    return classes, count
