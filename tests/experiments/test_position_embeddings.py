"""experiments/position_embeddings: the cells of Table 8."""

from pathlib import Path

import made_up_runs
import pytest

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


def test_the_small_sweep_has_the_same_cells_with_two_seeds(plan):
    jobs = plan("small")
    assert [cell(job) for job in jobs.values()] == [*TABLE_8] * 2  # Whole seeds first.
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
    assert (one.seed, one.train_examples, one.evaluation.splits) == (1, 160_000, {"test": "test"})
    assert set(one.fewshot.datasets) == {"clothing_small", "sign_language_digits"}


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
