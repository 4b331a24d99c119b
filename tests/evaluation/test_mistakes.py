"""The table and the picture of wrong predictions."""

import csv

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from vit_jax.data.sources import Example, Source
from vit_jax.evaluation.mistakes import write_mistakes
from vit_jax.evaluation.predicted import PredictedExamples

PIXELS = np.full((20, 30, 3), 200, np.uint8)


class Images(Source):
    """Five equal images."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return Example(PIXELS, 0, f"{index}.png")


def test_the_most_certain_mistakes_come_first_and_padding_is_none(tmp_path):
    # Of row 4 a logit is NaN, so that it has no class; row 5 is padding.
    labels, predicted = np.array([[0, 1, 1, 0, 1, 0], [1, 1, 0, 1, 2, 1]])
    probability, mask = np.array([0.6, 0.9, 0.8, 0.7, 0.5, 0.9]), np.arange(6) < 5
    examples = PredictedExamples(labels, predicted, probability, labels == predicted, mask)
    write_mistakes(tmp_path, "dev", Images(), examples, ("cat", "dog"))
    with (tmp_path / "mistakes-dev.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["image", "label", "prediction", "probability"],
            ["2.png", "dog", "cat", "0.8000"],
            ["3.png", "cat", "dog", "0.7000"],
            ["0.png", "cat", "dog", "0.6000"],
        ]
    with Image.open(tmp_path / "mistakes-dev.png") as picture:
        assert picture.width > 500


def test_names_with_dollars_are_drawn_as_they_are(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.extend(figure.axes))
    labels, predicted = np.zeros(1, int), np.ones(1, int)
    mask = np.ones(1, bool)
    examples = PredictedExamples(labels, predicted, mask * 0.9, ~mask, mask)
    write_mistakes(tmp_path, "dev", Images(), examples, ("$5", "$1"))
    (axes,) = drawn
    assert axes.get_title() == "0.png\n$5, taken for $1 (90%)"
    assert not axes.title.get_parse_math()


def test_a_picture_of_an_earlier_evaluation_goes_if_nothing_is_wrong(tmp_path):
    (tmp_path / "mistakes-dev.png").write_bytes(b"old")
    one = np.zeros(1, int)
    examples = PredictedExamples(one, one, one + 0.5, one == 0, one == 0)
    write_mistakes(tmp_path, "dev", Images(), examples, ("cat",))
    assert not (tmp_path / "mistakes-dev.png").exists()
    assert len((tmp_path / "mistakes-dev.csv").read_text().splitlines()) == 1
