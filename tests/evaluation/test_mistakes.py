"""The table and the picture of wrong predictions."""

import csv

import numpy as np
from PIL import Image

from vit_jax.data.sources import Example, Source
from vit_jax.evaluation.mistakes import Mistakes

PIXELS = np.full((20, 30, 3), 200, np.uint8)


class Images(Source):
    """Five equal images."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return Example(PIXELS, 0, f"{index}.png")


def batch(labels, predicted, probability, mask):
    labels, predicted, mask = map(np.array, (labels, predicted, mask))
    return {
        "label": labels, "predicted": predicted, "probability": np.array(probability),
        "mask": mask, "correct": labels == predicted,
    }  # fmt: skip


def test_the_most_certain_mistakes_come_first_and_padding_is_none(tmp_path):
    mistakes = Mistakes(("cat", "dog"))
    mistakes.add(batch([0, 1, 1], [1, 1, 0], [0.6, 0.9, 0.8], [True, True, True]))
    # A NaN logit has no class; the last row is padding.
    mistakes.add(batch([0, 1, 0], [1, 2, 1], [0.7, 0.5, 0.9], [True, True, False]))
    mistakes.write(tmp_path, "dev", Images())
    with (tmp_path / "mistakes-dev.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["image", "label", "prediction", "probability"],
            ["2.png", "dog", "cat", "0.8000"],
            ["3.png", "cat", "dog", "0.7000"],
            ["0.png", "cat", "dog", "0.6000"],
        ]
    with Image.open(tmp_path / "mistakes-dev.png") as picture:
        assert picture.width > 500


def test_a_picture_of_an_earlier_evaluation_goes_if_nothing_is_wrong(tmp_path):
    (tmp_path / "mistakes-dev.png").write_bytes(b"old")
    Mistakes(("cat",)).write(tmp_path, "dev", Images())
    assert not (tmp_path / "mistakes-dev.png").exists()
    assert len((tmp_path / "mistakes-dev.csv").read_text().splitlines()) == 1
