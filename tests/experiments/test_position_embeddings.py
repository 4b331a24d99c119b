"""experiments/position_embeddings: the cells of Table 8."""

from pathlib import Path

import made_up_runs
import numpy as np
import pandas as pd
import pytest
from flax import nnx

from experiments.position_embeddings import elsewhere, sweep
from vit_jax.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
# arXiv:2010.11929, Table 8: linear 5-shot accuracy on ImageNet of ViT-B/16. The first column there
# is "default / stem".
TABLE_8 = {
    ("none", "stem"): 0.61382,
    ("1-D", "stem"): 0.64206,
    ("1-D", "every layer"): 0.63964,
    ("1-D", "shared"): 0.64292,
    ("2-D", "stem"): 0.64001,
    ("2-D", "every layer"): 0.64046,
    ("2-D", "shared"): 0.64022,
    ("relative", "stem"): 0.64032,
}


@pytest.fixture
def plan(plan_of):
    return lambda arg: plan_of("position_embeddings", arg).jobs


def cell(job):
    return job.job.labels["position"], job.job.labels["placement"]


def test_at_full_scale_the_sweep_is_table_8(plan):
    jobs = plan("paper").values()
    assert [cell(job) for job in jobs] == list(TABLE_8)
    for job in jobs:
        config = job.config
        assert (config.model.name, config.data.name, config.train_epochs) == ("ViT-B/16", "jft", 7)
        assert config.optimizer.learning_rate == 8e-4
        assert config.fewshot.shots == (5,)
        imagenet = config.fewshot.datasets["imagenet"]
        assert (imagenet.name, imagenet.test_split) == ("imagenet2012", "validation")


def test_the_small_sweep_has_the_same_cells_with_twelve_seeds(plan):
    jobs = plan("small")
    assert len(jobs) == 12 * len(TABLE_8)
    for seed in range(12):  # A sweep that is stopped has whole seeds.
        whole = list(jobs.values())[seed * len(TABLE_8) : (seed + 1) * len(TABLE_8)]
        assert {cell(job) for job in whole} == set(TABLE_8)
        assert {job.config.seed for job in whole} == {seed}
    kinds = {
        (c.model.position_embedding, c.model.position_placement)
        for c in (job.config for job in jobs.values())
    }
    tables = {
        (kind, place)
        for kind in ("learned_1d", "learned_2d")
        for place in ("stem", "every_layer", "shared")
    }
    assert kinds == tables | {("none", "stem"), ("relative", "stem")}
    one = jobs["1-D/every-layer/seed1"].config
    assert (one.seed, one.train_examples, one.evaluation.splits) == (1, 51_200, {"test": "test"})
    assert set(one.fewshot.datasets) == {"clothing_small", "sign_language_digits"}


def test_the_pilot_is_a_part_of_the_small_sweep(plan):
    pilot, small = plan("pilot"), plan("small")
    assert {*pilot} == {f"{kind}/stem/seed{s}" for kind in ("none", "1-D") for s in range(4)}
    assert all(pilot[name].command() == small[name].command() for name in pilot)


def test_the_committed_results_are_those_of_two_seeds(plan):
    jobs = plan("two_seeds").values()
    assert [cell(job) for job in jobs] == [*TABLE_8] * 2
    found = {(job.config.model.name, job.config.train_examples) for job in jobs}
    assert found == {("ViT-Micro/4", 160_000)}


def test_the_power_is_that_of_two_groups():
    # 11 seeds each: t of 20 degrees of freedom, 2.086 and 0.860.
    assert sweep.detectable(1.0, 11) == pytest.approx((2.086 + 0.860) * (2 / 11) ** 0.5, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "tables"), [("small", 3), pytest.param("paper", 1, marks=pytest.mark.slow)]
)
def test_the_report_is_laid_out_as_table_8(tmp_path, monkeypatch, scale, tables):
    monkeypatch.chdir(ROOT)
    spec = f"experiments/position_embeddings/sweep.py:{scale}"
    folder = made_up_runs.finish(spec, tmp_path / "runs")
    monkeypatch.setattr("vit_jax.report.content.save", lambda *_: "<svg/>")  # Only tables matter.
    assert main(["report", str(folder)]) == 0
    page = (folder / "report" / "report.md").read_text()
    assert page.count("| Position | every layer | shared | stem |") == tables
    rows = [line for line in page.splitlines() if line.startswith(("| none |", "| relative |"))]
    assert len(rows) == 2 * tables
    assert all("| – | – |" in row for row in rows)


def test_views_move_and_pad_images():
    pixels = np.arange(2 * 32 * 32 * 3, dtype=np.uint8).reshape(2, 32, 32, 3)
    shifted = elsewhere.moved(pixels)
    np.testing.assert_array_equal(shifted[:, 8:, 8:], pixels[:, :24, :24])
    assert (shifted[:, :8] == 127).all()
    cut = elsewhere.cut(pixels)  # The same pixels are lost.
    np.testing.assert_array_equal(cut[:, :24, :24], shifted[:, 8:, 8:])
    assert (cut == 127).all(-1).sum() == (shifted == 127).all(-1).sum()
    canvas = elsewhere.on_canvas(pixels)
    assert canvas.shape == (2, 48, 48, 3)
    for image, inside in zip(pixels, canvas, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(inside, image.shape)
        assert (windows == image).all((-3, -2, -1)).sum() == 1
    assert elsewhere.VIEWS["64 px"](pixels).shape == (2, 64, 64, 3)


def test_differences_are_paired_by_seed():
    rows = pd.DataFrame(
        [
            {
                "position": kind,
                "placement": "stem",
                "seed": seed,
                "view": view,
                "accuracy": value,
                "image_error": 0.0,
            }
            for view in elsewhere.VIEWS
            for kind, values in {"1-D": (0.5, 0.6), "none": (0.4, 0.5)}.items()
            for seed, value in enumerate(values)
        ]
    )
    reference, none = elsewhere.accuracy_table(rows).splitlines()[2:]
    assert reference.startswith("| 1-D | stem | 55.0 |")
    assert none.startswith("| none | stem | 45.0 (-10.0 [-10.0, -10.0]) |")


def test_intervals_hold_seeds_and_images():
    rows = pd.DataFrame(
        [
            {"position": kind, "placement": "stem", "seed": seed, "view": view,
             "correct": np.arange(100) < right}
            for view in elsewhere.VIEWS
            for kind, right in (("1-D", 60), ("none", 50))
            for seed in (0, 1)
        ]
    )  # fmt: skip
    found = elsewhere.with_image_errors(rows)
    none = found[found["position"] == "none"]
    assert none["accuracy"].tolist() == [0.5] * len(none)
    # Ten of 100 images differ by one: deviation sqrt(0.1 * 0.9 * 100 / 99).
    error = (0.1 * 0.9 / 99) ** 0.5
    assert none["image_error"].to_numpy() == pytest.approx(error)
    assert (found[found["position"] == "1-D"]["image_error"] == 0).all()
    low, high = -10 - 196 * error, -10 + 196 * error  # Seeds do not differ.
    line = elsewhere.accuracy_table(found).splitlines()[-1]
    assert line.startswith(f"| none | stem | 50.0 (-10.0 [{low:.1f}, {high:.1f}]) |")


def test_predictions_are_compared_image_by_image():
    class Brightest(nnx.Module):
        def __call__(self, images):
            return images.mean((1, 2))

    labels = np.arange(250) % 3
    pixels = np.zeros((250, 4, 4, 3), np.uint8)
    pixels[np.arange(250), :, :, labels] = 255
    labels[:25] = (labels[:25] + 1) % 3
    np.testing.assert_array_equal(
        elsewhere.correct(Brightest(), pixels, labels), np.arange(250) >= 25
    )
