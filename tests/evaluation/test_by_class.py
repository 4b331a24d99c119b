"""Figures by class equal scikit-learn's, for any batch size."""

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, roc_auc_score

from vit_jax.data.class_names import names_of_head
from vit_jax.evaluation.by_class import NO_CLASS, confusion_file, read_confusion
from vit_jax.evaluation.classification import (
    PredictionTotals,
    example_outputs,
    prediction_metrics,
    predictions_of,
)
from vit_jax.report.confusion import draw_confusions


def collected(logits, labels, size, names=()):
    """Adds up batches of `size`; the last one is padded with masked rows.

    Returns the totals and the metrics.
    """
    num_classes = logits.shape[1]
    metrics = prediction_metrics(num_classes, by_class=True)
    totals = PredictionTotals(metrics, names_of_head(names, num_classes))
    for start in range(0, len(labels), size):
        own = slice(start, start + size)
        missing = size - len(labels[own])
        predictions = predictions_of(
            jnp.pad(jnp.asarray(logits[own]), ((0, missing), (0, 0)), constant_values=3),
            jnp.pad(jnp.asarray(labels[own]), (0, missing)),
            jnp.arange(size) < size - missing,
            lambda logits, labels: jnp.zeros(len(labels)),
        )
        totals.add(jax.device_get(example_outputs(predictions, metrics)))
    return totals, totals.metrics()


def confusion(totals, folder):
    """Returns the counts that the totals write."""
    totals.write(folder, "test")
    return read_confusion(confusion_file(folder, "test"))[2]


def drawn(num_classes, count=101):
    rng = np.random.default_rng(num_classes)
    frequency = np.arange(1, num_classes + 1)
    labels = rng.choice(num_classes, count, p=frequency / frequency.sum()).astype(np.int32)
    logits = rng.normal(size=(count, num_classes)).astype(np.float32)
    logits[np.arange(count), labels] += 1
    return logits, labels


@pytest.mark.parametrize("size", [7, 128])
def test_figures_equal_those_of_scikit_learn(size, tmp_path):
    logits, labels = drawn(5)
    found, figures = collected(logits, labels, size, "abcde")
    predicted = logits.argmax(axis=1)
    wanted = confusion_matrix(labels, predicted, labels=range(5))
    np.testing.assert_array_equal(confusion(found, tmp_path), wanted)
    assert figures["accuracy_per_class_mean"] == pytest.approx(
        balanced_accuracy_score(labels, predicted), abs=1e-12
    )
    assert figures["accuracy_class/c"] == wanted[2, 2] / wanted[2].sum()
    assert "roc_auc" not in figures


def test_classes_without_examples_are_not_in_the_mean():
    logits, labels = drawn(5)
    kept = np.isin(labels, (1, 4))
    _, figures = collected(logits[kept], labels[kept], 16, "abcde")
    assert [k for k in figures if "class/" in k] == ["accuracy_class/b", "accuracy_class/e"]
    mean = (figures["accuracy_class/b"] + figures["accuracy_class/e"]) / 2
    assert figures["accuracy_per_class_mean"] == pytest.approx(mean, abs=1e-12)


def test_the_area_under_the_roc_curve_of_two_classes():
    logits, labels = drawn(2)
    logits[:10] = 0  # Ties.
    area = collected(logits, labels, 7)[1]["roc_auc"]
    assert area == roc_auc_score(labels, logits[:, 1] - logits[:, 0])
    assert 0.6 < area < 0.95
    assert "roc_auc" not in collected(logits, 0 * labels, 101)[1]


def test_a_nan_logit_is_wrong_and_a_class_without_examples_does_not_count(tmp_path):
    logits = np.array([[1, 0, 0], [0, np.nan, 0], [0, 0, 2]], np.float32)
    found, figures = collected(logits, np.array([0, 0, 2], np.int32), 3, ("x", "y", "x"))
    np.testing.assert_array_equal(
        confusion(found, tmp_path), [[1, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0]]
    )
    assert {name: value for name, value in figures.items() if "class" in name} == {
        "accuracy_per_class_mean": 0.75,
        "accuracy_class/x (0)": 0.5,
        "accuracy_class/x (2)": 1.0,
    }


def test_the_table_and_the_picture(tmp_path):
    logits, labels = drawn(4)
    found, _ = collected(logits, labels, 50, ("a", "b, c", "d"))
    table = tmp_path / "report" / "confusion-test.csv"
    found.write(table.parent, "test")
    with table.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["true class", "a", "b, c", "d", "class 3"]
    wanted = confusion_matrix(labels, logits.argmax(axis=1))
    assert rows[2] == ["b, c", *map(str, wanted[1])]
    logits[0] = np.nan
    collected(logits, labels, 50)[0].write(table.parent, "test")
    assert table.read_text().splitlines()[0].endswith(f",{NO_CLASS}")
    (picture,) = draw_confusions(tmp_path)
    assert picture == table.with_suffix(".png")
    assert picture.stat().st_size > 10_000
    assert draw_confusions(tmp_path) == []  # Drawn already.
