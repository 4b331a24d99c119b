import base64
import json
import zlib

import numpy as np
import pytest
from evaluation.test_classification import METRICS, Table, batch, run, table_batch

from vit_jax.errors import FileError
from vit_jax.evaluation.classification import PredictionTotals
from vit_jax.evaluation.correct import correct_file, read_correct, write_correct
from vit_jax.evaluation.predicted import PredictedExamples

LOGITS = [[0, 2, 1], [3, 0, 0], [0, 0, 1], [np.nan, 0, 0], [5, 5, 0]]


def examples(correct, labels, mask):
    """Returns examples for which nothing else is predicted than right or wrong."""
    correct, labels, mask = np.array(correct, bool), np.array(labels), np.array(mask, bool)
    return PredictedExamples(labels, labels, np.ones(len(labels)), correct, mask)


def write(folder, correct, labels=(0, 0, 0, 0), mask=(1, 1, 1, 1)):
    path = correct_file(folder, "test")
    write_correct(path, examples(correct, labels, mask))
    return path


def test_an_evaluation_keeps_which_examples_are_right(tmp_path):
    totals = PredictionTotals(METRICS)
    batches = [table_batch([1, 2, 2, 1, 0]), batch(np.zeros((2, 2, 2, 3)), [1, 0], [True, False])]
    metrics = run(Table(np.array(LOGITS)), batches, totals=totals)
    totals.write(tmp_path, "test")
    found = read_correct(tmp_path / "correct-test.json")
    # The second has another class, the fourth a NaN; of equal logits the first class is predicted.
    assert found.correct.tolist() == [True, False, True, False, True, True]
    assert found.counted.all()
    assert found.classes.tolist() == [1, 2, 2, 1, 0, 1]
    assert found.accuracy == metrics["accuracy_top1"] == 4 / 6


def test_batches_and_padding_do_not_change_the_file(tmp_path):
    rng = np.random.default_rng(0)
    correct, labels = rng.random(37) < 0.5, rng.integers(10, size=37)
    mask = np.ones(37, bool)
    mask[[3, 30]] = False  # Skipped examples.
    written = set()
    for size in (37, 8, 5):
        batches = []
        for start in range(0, 37, size):
            rows, padding = slice(start, start + size), (0, max(0, start + size - 37))
            columns = [np.pad(part[rows], padding) for part in (labels, correct, mask)]
            label, right, counted = columns
            batches.append(vars(examples(right, label, counted)))
        write_correct(tmp_path / f"{size}.json", PredictedExamples.of_batches(batches))
        written.add((tmp_path / f"{size}.json").read_text())
    assert len(written) == 1
    found = read_correct(tmp_path / "8.json")
    np.testing.assert_array_equal(found.correct, correct & mask)
    np.testing.assert_array_equal(found.counted, mask)


def test_the_test_set_is_known_by_its_labels_and_its_skipped_examples(tmp_path):
    labels = [0, 1, 2, 3]
    files = [
        write(tmp_path / "a", [1, 0, 0, 1], labels),
        write(tmp_path / "b", [0, 0, 1, 1], labels),
        write(tmp_path / "c", [1, 0, 0, 1], [0, 1, 2, 4]),
        write(tmp_path / "d", [1, 0, 0, 1], labels, [1, 1, 0, 1]),
    ]
    names = [read_correct(path).test_set for path in files]
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_the_labels_are_kept(tmp_path):
    path = write(tmp_path, [1, 0, 0, 1], [7, 0, 300, 2], [1, 1, 1, 0])
    assert read_correct(path).classes.tolist() == [7, 0, 300]


def test_nothing_is_written_without_examples(tmp_path):
    assert not write(tmp_path, [0, 0, 0, 0], mask=[0, 0, 0, 0]).exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"examples": 20}, "8 bits for 20 examples"),
        ({"examples": "4"}, "values of other types"),
        ({"correct": "?"}, "base64"),
        ({"skipped": [4]}, "skipped examples that are not 0 to 3"),
        ({"skipped": [0]}, "skipped examples that are right"),
        ({"skipped": None}, "values of other types"),
        ({"classes": 3}, "values of other types"),
        ({"classes": "AAAA"}, "classes that cannot be read"),
        ({"classes": base64.b64encode(zlib.compress(bytes(20))).decode()},
         "classes of other than 4 examples"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused(change, message, tmp_path):
    path = write(tmp_path, [True, False, False, True])
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FileError, match=f"correct-test.json: .*{message}"):
        read_correct(path)
