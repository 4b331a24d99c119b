import json

import numpy as np
import pandas as pd
import pytest
from report.fake_runs import config, result, write
from scipy import stats

from vit_jax.errors import ConfigError
from vit_jax.evaluation.correct import correct_file, write_correct
from vit_jax.evaluation.intervals import interval
from vit_jax.evaluation.predicted import PredictedExamples
from vit_jax.report import intervals
from vit_jax.report.differences import difference_table
from vit_jax.report.frame import run_frame
from vit_jax.report.plots import plot_points
from vit_jax.report.requests import PlotRequest, TableRequest, parse_requests
from vit_jax.report.runs import read_runs
from vit_jax.report.scores import VALUE, values_by_seed
from vit_jax.report.tables import score_table

SCORE = "eval/test/accuracy_top1"
IMAGES = 400
LABELS = np.arange(IMAGES) % 10


def put(folder, model, correct, *, seed=0, labels=LABELS):
    """Writes a finished run that was right for some of the images."""
    run = folder / f"{model}-{seed}"
    score = float(np.mean(correct))
    figures = result(score, 400) | {"eval/test/examples": len(correct)}
    write(run, config=config(model, seed=seed), result=figures)
    every = np.ones(len(correct), bool)
    examples = PredictedExamples(labels, labels, every / 1, correct, every)
    write_correct(correct_file(run / "report", "test"), examples)


def right(share, start=0):
    """Returns bool[IMAGES] with a share of True, from an image on."""
    return np.roll(np.arange(IMAGES) < share * IMAGES, start)


def make_table(folder, **request):
    request = TableRequest(metric=SCORE, **request)
    return request, score_table(request, run_frame(read_runs([folder]).runs))


def means_of(folder):
    _, table = make_table(folder)
    return {row: values for (_, row), values in table.means.to_dict("index").items()}


def test_the_interval_of_one_run_is_that_of_its_images(tmp_path):
    put(tmp_path, "A", right(0.5))
    (one,) = means_of(tmp_path).values()
    half = 1.96 * (0.25 / IMAGES) ** 0.5
    assert one["mean"] == 0.5
    assert (one["images"], one["freedom"]) == (IMAGES, 0)
    assert one["low"] == pytest.approx(0.5 - half, abs=0.004)
    assert one["high"] == pytest.approx(0.5 + half, abs=0.004)


@pytest.mark.parametrize(("share", "ends"), [(1.0, (0.9905, 1.0)), (0.0, (0.0, 0.0095))])
def test_the_interval_is_that_of_wilson_if_all_images_are_right_or_all_wrong(tmp_path, share, ends):
    put(tmp_path, "A", right(share))
    (one,) = means_of(tmp_path).values()
    assert (one["low"], one["high"]) == pytest.approx(ends, abs=1e-4)  # 1.96^2 / (400 + 1.96^2)


@pytest.mark.parametrize(
    ("metric", "figures"),
    [
        (SCORE, {SCORE: 0.5, "eval/test/examples": 500}),
        (
            "fewshot/{dataset}/{shots}_shot/accuracy_top1",
            {"fewshot/pets/5_shot/accuracy_top1": 0.5, "fewshot/pets/examples": 500},
        ),
    ],
)
def test_without_predictions_the_draws_are_binomial(tmp_path, metric, figures):
    write(tmp_path / "run", config=config("A"), result={"step": 0, **figures})
    table = score_table(TableRequest(metric=metric), run_frame(read_runs([tmp_path]).runs))
    (one,) = table.means.to_dict("records")
    assert (one["images"], one["paired"]) == (500, "")
    assert one["high"] - one["low"] == pytest.approx(2 * 1.96 * (0.25 / 500) ** 0.5, rel=0.1)


def test_predictions_for_equal_images_are_paired(tmp_path):
    """Both models fail for the same images but for three in a hundred."""
    put(tmp_path, "A", right(0.50))
    put(tmp_path, "B", right(0.53))
    means = means_of(tmp_path)
    assert means["A"]["low"] < means["B"]["mean"] < means["A"]["high"]
    difference = means["B"]["draws"] - means["A"]["draws"]
    low, high = interval(difference)
    half = 1.96 * (0.03 * 0.97 / IMAGES) ** 0.5
    assert (low, high) == (
        pytest.approx(0.03 - half, abs=0.004),
        pytest.approx(0.03 + half, abs=0.004),
    )
    assert intervals.is_told_apart(means["B"]["draws"], means["A"]["draws"])
    table = make_table(tmp_path)[1]
    assert [cell.kind for cell in (row[1] for row in table.rows)] == ["", "best"]
    assert "the same images" not in " ".join(table.notes)


def test_predictions_for_other_images_are_not_paired(tmp_path):
    put(tmp_path, "A", right(0.50))
    put(tmp_path, "B", right(0.53), labels=LABELS[::-1])
    means = means_of(tmp_path)
    assert means["A"]["paired"] != means["B"]["paired"]
    correlation = np.corrcoef(means["A"]["draws"], means["B"]["draws"])[0, 1]
    assert abs(correlation) < 0.1  # Of equal images it is above 0.9.
    assert not intervals.is_told_apart(means["B"]["draws"], means["A"]["draws"])
    said = "Not all runs of a column were tested on the same images: cifar10."
    assert said in make_table(tmp_path)[1].notes


@pytest.mark.parametrize("score", [0.25, 0.5025])  # One image of 400 more.
def test_predictions_of_another_evaluation_are_not_used(tmp_path, score):
    put(tmp_path, "A", right(0.5))
    path = tmp_path / "A-0" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {SCORE: score}))
    (one,) = means_of(tmp_path).values()
    assert (one["mean"], one["paired"]) == (score, "")


def test_equal_means_are_shown_by_two_tests_at_5_percent():
    draws = stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    none = np.zeros(4000)
    # The middle 90 % are within 1.645, the middle 95 % within 1.96.
    assert intervals.is_equal_within(1.7, draws, none)
    assert not intervals.is_equal_within(1.6, draws, none)
    assert not intervals.is_told_apart(draws + 1.9, none)
    assert intervals.is_told_apart(draws + 2.0, none)


def test_the_order_of_runs_does_not_change_the_draws(tmp_path):
    for model, seed in (("A", 0), ("A", 1), ("B", 0)):
        put(tmp_path, model, right(0.5 + 0.05 * seed), seed=seed, labels=LABELS + seed)
    frame = run_frame(read_runs([tmp_path]).runs)
    request = TableRequest(metric=SCORE)
    one, other = (score_table(request, f).means for f in (frame, frame[::-1]))
    for place, row in one.iterrows():
        np.testing.assert_array_equal(row["draws"], other.loc[place, "draws"])


def test_damaged_predictions_are_named_and_not_used(tmp_path, caplog):
    put(tmp_path, "A", right(0.5))
    path = correct_file(tmp_path / "A-0" / "report", "test")
    path.write_text(path.read_text().replace('"examples": 400', '"examples": 500'))
    (one,) = means_of(tmp_path).values()
    assert one["paired"] == ""
    assert "correct-test.json: 400 bits for 500 examples" in caplog.text


def test_runs_whose_seed_is_not_known_count_by_themselves():
    cell = pd.DataFrame({VALUE: [1.0, 2.0, 4.0, 6.0], "seed": [None, None, 3, 3]}, dtype=object)
    assert values_by_seed(cell) == (1.0, 2.0, 5.0)


def test_seeds_and_images_add_up(tmp_path):
    """Every seed is right for the same images and for some of its own."""
    for seed, share in enumerate((0.48, 0.50, 0.52)):
        put(tmp_path, "A", right(share), seed=seed)
    (one,) = means_of(tmp_path).values()
    assert one["freedom"] == 2
    images = np.mean([right(share) for share in (0.48, 0.50, 0.52)], axis=0).std() / IMAGES**0.5
    t = stats.t.rvs(2, size=400_000, random_state=0) * 0.02 / 3**0.5
    sums = 0.5 + t + np.random.default_rng(0).normal(0, images, t.size)
    expected = np.quantile(sums, [0.025, 0.975])
    assert (one["low"], one["high"]) == (
        pytest.approx(expected[0], abs=0.006),
        pytest.approx(expected[1], abs=0.006),
    )


def test_a_table_of_differences_says_what_is_certain(tmp_path):
    put(tmp_path, "base", right(0.50))
    put(tmp_path, "better", right(0.60))
    put(tmp_path, "worse", right(0.40))
    put(tmp_path, "same", right(0.5025))
    put(tmp_path, "unclear", right(0.50, start=100))
    request, scores = make_table(tmp_path, rows="model", against="base", margin=0.01)
    table = difference_table(request, scores)
    verdicts = {row[0].text: row[1].text.partition("] ")[2] for row in table.rows}
    assert verdicts == {
        "better": "better",
        "same": "equal",
        "unclear": "not significant",
        "worse": "worse",
    }
    assert "a difference of less than 1.00" in table.notes[1]
    wrong = request.replace(against="bose")
    with pytest.raises(ConfigError, match=r"against=bose: no model has this name.*'base'"):
        difference_table(wrong, scores)


def test_margins_on_the_command_line_are_numbers():
    (request,) = parse_requests(["metric=x,against=A,margin=0.005"], TableRequest, "--table")
    assert (request.against, request.margin) == ("A", 0.005)
    with pytest.raises(ConfigError, match=r"--table: margin=much.*a number"):
        parse_requests(["metric=x,margin=much"], TableRequest, "--table")
    with pytest.raises(ConfigError, match=r"has where\.model more than once"):
        parse_requests(["metric=x,where.model=A,where.model=B"], TableRequest, "--table")


def test_a_mean_over_datasets_has_the_images_of_all_and_the_fewest_degrees_of_freedom():
    draws = np.zeros(4000)
    rows = {
        ("x", "A"): (draws + 1, 500, "p", 2, 3, "images and seeds"),
        ("y", "A"): (draws + 3, 300, "q", 1, 2, "images and seeds"),
        ("z", "A"): (draws, 0, "", 0, 0, ""),
    }
    index = pd.MultiIndex.from_tuples(list(rows), names=["@columns", "@rows"])
    drawn = pd.DataFrame([*rows.values()], index=index, columns=intervals._DRAWN)
    sets = {"both": ["x", "y"], "all": ["x", "y", "z"]}
    found = intervals.draw_means_over(sets, drawn, [("both", "A"), ("all", "A")])
    both, everything = found.to_dict("records")
    assert both["draws"].tolist() == [2.0] * 4000
    del both["draws"]
    assert both == {
        "images": 800, "paired": "p q", "freedom": 1, "pooled": 2, "source": "images and seeds",
    }  # fmt: skip
    assert everything["source"] == ""
    means = found.assign(n=[2, 2], values=[(0.5, 0.7)] * 2)
    assert intervals.describe_means(means.iloc[:1]) == (
        "Means of n = 2 runs [95 % interval over 800 test images and seeds]"
    )


def test_a_mean_over_folds_has_no_interval_over_the_images_of_one(tmp_path):
    """Two folds of A with other images; top-5 has no file of predictions, so the split tells."""
    put(tmp_path, "A", right(0.5), seed=0)
    put(tmp_path, "A", right(0.6), seed=1, labels=LABELS[::-1])
    put(tmp_path, "B", right(0.5))
    means = means_of(tmp_path)
    assert (means["A"]["images"], means["A"]["source"]) == (0, "seeds")
    assert means["B"]["images"] == IMAGES
    _, table = make_table(tmp_path)
    assert intervals.APART in table.notes
    top5 = "eval/val/accuracy_top5"
    for fold in range(2):
        splits = {"evaluation__splits": {"val": f"train[{10 * fold}%:{10 * fold + 10}%]"}}
        figures = {"step": 1, top5: 0.5 + fold / 10, "eval/val/examples": 40}
        write(tmp_path / f"fold{fold}", config=config("C", **splits), result=figures)
    request = TableRequest(metric=top5)
    table = score_table(request, run_frame(read_runs([tmp_path]).runs))
    assert [cell.text for cell in table.rows[0]] == ["C", "55.00"]
    assert intervals.APART in table.notes
    assert any(note.endswith("seed: evaluation.splits.val.") for note in table.notes)
    plot = PlotRequest(x="train_steps", y=top5)
    assert intervals.APART in plot_points(plot, run_frame(read_runs([tmp_path]).runs))[1]


@pytest.mark.parametrize(("margin", "fix"), [(1, "margin=0.01"), (0.5, "margin=0.005")])
def test_a_margin_of_an_accuracy_in_percentage_points_is_refused(margin, fix):
    words = f"--table: .*margin.*{100 * margin:g} percentage points; expected at most 0.1.*{fix}"
    with pytest.raises(ConfigError, match=words):
        parse_requests([f"metric={SCORE},against=A,margin={margin}"], TableRequest, "--table")
    parse_requests([f"metric=eval/test/loss,against=A,margin={margin}"], TableRequest, "--table")
