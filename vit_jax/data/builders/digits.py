"""TFDS builder of the handwritten digits that come with scikit-learn."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

_TEST_EVERY = 5


class Digits(tfds.core.GeneratorBasedBuilder):
    """1,797 handwritten digits, 8 x 8 gray pixels, 10 classes. Every fifth one is a test example.

    Images are encoded as PNG here because TFDS needs TensorFlow to encode them.

    Source: the test part of UCI Optical Recognition of Handwritten Digits, from
    `sklearn.datasets.load_digits`.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "The data of scikit-learn."}

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            homepage="https://scikit-learn.org/stable/modules/generated/sklearn.datasets.load_digits.html",
            features=tfds.features.FeaturesDict(
                {
                    "id": tfds.features.Text(),
                    "image": tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict]]]:
        """Returns the splits: 1,437 for training, 360 for testing."""
        return {"train": self._generate_examples(False), "test": self._generate_examples(True)}

    def _generate_examples(self, test: bool) -> Iterator[tuple[int, dict[str, Any]]]:
        from sklearn.datasets import load_digits  # Takes seconds; only preparing the data needs it.

        digits: Any = load_digits()
        for index, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
            if (index % _TEST_EVERY == 0) == test:
                png = io.BytesIO()
                gray = np.round(image * (255 / 16)).astype(np.uint8)
                Image.fromarray(gray).save(png, format="PNG")
                png.seek(0)
                yield index, {"id": f"digits/{index}", "image": png, "label": int(label)}
