"""Intervals of accuracies of classes and of their mean, from the confusion table of a run."""

import json

import numpy as np
import pytest
from report.fake_runs import config, write
from scipy import optimize

from vit_jax.evaluation.by_class import (
    NO_CLASS,
    class_accuracies,
    confusion_file,
    confusion_matrix,
    write_confusion,
)
from vit_jax.evaluation.correct import correct_file, write_correct
from vit_jax.evaluation.intervals import DRAWS, interval, mean_share_quantiles, wilson_interval
from vit_jax.evaluation.predicted import PredictedExamples
from vit_jax.report import intervals
from vit_jax.report.differences import difference_table
from vit_jax.report.frame import run_frame
from vit_jax.report.intervals import is_told_apart
from vit_jax.report.requests import TableRequest
from vit_jax.report.runs import read_runs
from vit_jax.report.tables import score_table

MEAN = "eval/test/accuracy_per_class_mean"
COUNTS = ((980, 20), (20,) * 20)
ACCURACIES = (0.5, 0.7, 0.9, 0.95)


def put(folder, model, right, labels, *, seed=0, predictions=True):
    """Writes a run that was right for some images, and wrong by one class for the others."""
    classes = int(labels.max()) + 1
    names = [f"c{i}" for i in range(classes)]
    predicted = np.where(right, labels, (labels + 1) % classes)
    every = np.ones(len(labels), bool)
    examples = PredictedExamples(labels, predicted, every / 1, right, every)
    matrix = confusion_matrix(examples, classes)
    run = folder / f"{model}-{seed}"
    figures = {f"eval/test/{k}": v for k, v in class_accuracies(matrix, names).items()}
    figures[MEAN] = sum(figures.values()) / len(figures)
    result = {"step": 1, "eval/test/examples": len(labels)} | figures
    write(run, config=config(model, seed=seed), result=result)
    (run / "report").mkdir(exist_ok=True)
    write_confusion(confusion_file(run / "report", "test"), matrix, names)
    if predictions:
        write_correct(correct_file(run / "report", "test"), examples)


def make_table(folder, metric=MEAN, **request):
    request = TableRequest(metric=metric, **request)
    return request, score_table(request, run_frame(read_runs([folder]).runs))


def means_of(folder, metric=MEAN):
    found = make_table(folder, metric)[1].means.to_dict("index")
    return {model: row for (_, model), row in found.items()}


def labels_of(counts):
    return np.repeat(np.arange(len(counts)), counts)


def by_optimization(right, totals, side):
    """The end of the score interval of a mean of shares, by constrained optimization."""
    found, size = np.mean(np.divide(right, totals)), len(totals)

    def score(mean):
        def minus_likelihood(p):
            return -np.sum(right * np.log(p) + np.subtract(totals, right) * np.log(1 - p))

        start = np.full(size, mean)
        best = optimize.minimize(
            minus_likelihood,
            start,
            bounds=[(1e-9, 1 - 1e-9)] * size,
            constraints={"type": "eq", "fun": lambda p: p.mean() - mean},
            options={"ftol": 1e-14, "maxiter": 1000},
        ).x
        free = np.subtract(totals, 1)
        return (found - mean) ** 2 / (np.sum(best * (1 - best) / free) / size**2)

    far = 0.02 if side < 0 else 0.98
    return optimize.brentq(lambda mean: score(mean) - 1.959964**2, found + side * 1e-4, far)


@pytest.mark.parametrize(
    ("right", "totals"), [((931, 14), (980, 20)), ((3, 5, 4), (6, 7, 8)), ((16, 20), (40, 25))]
)
def test_the_interval_of_a_mean_of_shares_is_that_of_constrained_optimization(right, totals):
    low, high = interval(mean_share_quantiles(np.array(right, float), np.array(totals)))
    assert low == pytest.approx(by_optimization(right, totals, -1), abs=2e-4)
    assert high == pytest.approx(by_optimization(right, totals, 1), abs=2e-4)


@pytest.mark.parametrize(("right", "total"), [(0, 10), (1, 3), (10, 10), (380, 400), (400, 400)])
def test_the_interval_of_one_share_is_that_of_wilson(right, total):
    found = interval(mean_share_quantiles(np.array([float(right)]), np.array([total])))
    assert found == pytest.approx(wilson_interval(right / total, total), abs=2e-5)


def test_a_class_has_the_interval_of_its_own_images(tmp_path):
    labels = labels_of((380, 20))
    put(tmp_path, "A", np.arange(400) % 4 > 0, labels, predictions=False)
    one = means_of(tmp_path, "eval/test/accuracy_class/c1")["A"]
    assert (one["images"], one["mean"]) == (20, 0.75)
    assert (one["low"], one["high"]) == pytest.approx(wilson_interval(0.75, 20), abs=1e-4)


def test_a_rare_class_makes_the_mean_uncertain(tmp_path):
    labels = labels_of((980, 20))
    right = np.arange(1000) % 20 > 0
    right[980:] = np.arange(20) < 14
    put(tmp_path, "A", right, labels)
    one = means_of(tmp_path)["A"]
    assert (one["images"], one["mean"]) == (1000, pytest.approx((0.95 + 0.7) / 2))
    # Nearly half of the width of Wilson's interval of 14 and 20, which is 0.48 to 0.85.
    assert (one["low"], one["high"]) == pytest.approx((0.716, 0.904), abs=0.005)


def test_without_class_counts_there_is_no_interval(tmp_path):
    put(tmp_path, "A", np.arange(400) % 4 > 0, labels_of((380, 20)))
    confusion_file(tmp_path / "A-0" / "report", "test").unlink()
    one = means_of(tmp_path)["A"]
    assert np.isnan(one["low"])
    assert one["source"] == ""


def test_a_table_of_another_evaluation_is_not_used(tmp_path):
    put(tmp_path, "A", np.arange(400) % 4 > 0, labels_of((380, 20)))
    path = tmp_path / "A-0" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {MEAN: 0.5}))
    assert means_of(tmp_path)["A"]["source"] == ""


@pytest.mark.parametrize("counts", [(1000, 3), (100,) * 20 + (1,) * 80, (200,) * 5 + (2,) * 5])
def test_classes_with_very_few_images_give_no_interval(tmp_path, counts):
    put(tmp_path, "A", np.arange(sum(counts)) % 4 > 0, labels_of(counts))
    assert np.isnan(means_of(tmp_path)["A"]["low"])


@pytest.mark.parametrize(
    ("counts", "known"),
    [
        ((10, 10), True),
        ((9, 10), False),
        # At most a quarter of the variance may be of classes below 10 images: 1/9 of 1/9 + 4/10.
        ((9, *[10] * 4), True),
        ((9, *[10] * 3), False),
    ],
)
def test_the_smallest_classes_with_an_interval(tmp_path, counts, known):
    put(tmp_path, "A", np.arange(sum(counts)) % 4 > 0, labels_of(counts))
    assert np.isfinite(means_of(tmp_path)["A"]["low"]) == known


@pytest.mark.parametrize("text", ["", "true class,c0\nc0", "true class,c0\nc0,x\n"])
def test_a_damaged_table_is_named_and_not_used(tmp_path, text, caplog):
    put(tmp_path, "A", np.arange(400) % 4 > 0, labels_of((380, 20)))
    confusion_file(tmp_path / "A-0" / "report", "test").write_text(text)
    assert np.isnan(means_of(tmp_path)["A"]["low"])
    assert "confusion-test.csv" in caplog.text


def test_equal_images_are_paired(tmp_path):
    """B is right where A is, and for 24 images more of the large class and none of the small."""
    labels = labels_of((980, 20))
    right = np.arange(1000) % 10 > 0
    more = right | (np.arange(1000) % 40 == 0) & (labels == 0)
    put(tmp_path, "A", right, labels)
    put(tmp_path, "B", more, labels)
    means = means_of(tmp_path)
    assert means["A"]["paired"] == means["B"]["paired"] != ""
    assert is_told_apart(means["B"]["draws"], means["A"]["draws"]) is False  # Of 20 images.
    one = "eval/test/accuracy_class/c0"
    means = means_of(tmp_path, one)
    assert is_told_apart(means["B"]["draws"], means["A"]["draws"])
    _, table = make_table(tmp_path, one)
    request, _ = make_table(tmp_path, one, against="A")
    (row,) = difference_table(request, table).rows
    assert row[1].text.endswith("better")
    assert NO_CLASS not in table.header


def test_a_class_gets_the_noise_of_two_more_images(tmp_path):
    """Two models are right for the same 10 of 20 images: the correlation is 20 / (20 + 2)."""
    labels, right = labels_of((380, 20)), np.arange(400) % 2 > 0
    put(tmp_path, "A", right, labels)
    put(tmp_path, "B", right, labels)
    means = means_of(tmp_path, "eval/test/accuracy_class/c1")
    correlation = np.corrcoef(means["A"]["draws"], means["B"]["draws"])[0, 1]
    assert correlation == pytest.approx(20 / 22, abs=0.015)  # Of one more image it is 0.952.


@pytest.mark.slow
@pytest.mark.parametrize("counts", COUNTS, ids=["980 and 20", "20 of 20"])
@pytest.mark.parametrize("accuracy", ACCURACIES)
def test_intervals_hold_the_truth_in_93_to_98_of_100_cases(counts, accuracy):
    rng, totals = np.random.default_rng(0), np.array(counts)
    cases = rng.binomial(totals, accuracy, (2000, len(totals))).astype(float)
    ends = np.array([interval(mean_share_quantiles(right, totals)) for right in cases])
    held = np.mean((ends[:, 0] <= accuracy) & (accuracy <= ends[:, 1]))
    assert 0.93 <= held <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("counts", COUNTS, ids=["980 and 20", "20 of 20"])
@pytest.mark.parametrize("accuracy", ACCURACIES)
@pytest.mark.parametrize("copied", [0.0, 0.5])
def test_equal_pairs_are_told_apart_in_at_most_8_of_100_cases(
    counts, accuracy, copied, monkeypatch
):
    """Of 2,000 pairs; a share of the images is `copied`: both models agree there."""
    rng, totals = np.random.default_rng(0), np.array(counts)
    index = labels_of(counts)
    signs = rng.choice(np.array([-1, 1], np.float32), (DRAWS, len(index)))

    def shared_order(values, weights, images, noise):  # As the real one, with the signs kept.
        found = np.empty(DRAWS)
        found[np.argsort(signs @ weights.astype(np.float32) + noise)] = values
        return found

    monkeypatch.setattr(intervals, "shared_order", shared_order)
    monkeypatch.setattr(intervals, "in_random_order", lambda values, name: rng.permutation(values))

    def draws_of(right):
        of_class = np.bincount(index, right)
        quantiles = mean_share_quantiles(of_class, totals)
        return intervals._in_order_of_images(quantiles, right, index, totals, "", "")

    told_apart = 0
    for _ in range(2000):
        one, other = rng.random((2, len(index))) < accuracy
        other = np.where(rng.random(len(index)) < copied, one, other)
        told_apart += is_told_apart(draws_of(one.astype(float)), draws_of(other.astype(float)))
    assert told_apart <= 160
