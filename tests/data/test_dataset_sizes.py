"""Sizes of well-known datasets."""

import pytest

from vit_jax.config.data import DataConfig
from vit_jax.data.dataset_sizes import known_size


@pytest.mark.parametrize(
    ("data", "size"),
    [
        ({"name": "imagenet2012"}, (1000, 1_281_167)),
        # TFDS rounds percentages to whole examples: 0.99 x 1,281,167 = 1,268,355.3.
        ({"name": "imagenet2012:5.1.0", "train_split": "train[:99%]"}, (1000, 1_268_355)),
        ({"name": "imagenet2012", "train_split": "train[:90%]"}, (1000, 1_153_050)),
        ({"name": "jft", "subset": {"preset": "jft_9m"}}, (18_291, 9_000_000)),
        ({"name": "cifar10", "subset": {"fraction": 0.1}}, (10, 5000)),
        ({"name": "cifar10", "num_classes": 12}, (12, 50_000)),
        ({"name": "photos", "num_classes": 3}, (3, None)),
        ({"name": "photos"}, (None, None)),
    ],
)
def test_sizes_of_known_datasets(data, size):
    assert known_size(DataConfig.from_mapping({"global_batch_size": 1, **data})) == size
