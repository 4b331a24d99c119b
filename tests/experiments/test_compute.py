"""experiments/compute: the rows of Table 6 and their exaFLOPs."""

import csv
import runpy
from pathlib import Path

import made_up_runs
import pytest

from vit_jax.__main__ import main
from vit_jax.models.flops import forward_macs
from vit_jax.sweep import Job, Selection

ROOT = Path(__file__).resolve().parents[2]
SPEC = "experiments/compute/sweep.py"


@pytest.fixture(scope="module", autouse=True)
def root():
    """Jobs name their configs from there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield


@pytest.fixture(scope="module")
def rows():
    return runpy.run_path("experiments/compute/plan.py")["planned"]()


# Family -> how far the farthest of its rows is from Table 6, but for one hybrid (see below). The
# table's own whole numbers leave 1 % of room at 50.
REACHED = {"ViT": 0.024, "hybrid": 0.018, "ResNet": 0.051}


@pytest.mark.slow
def test_the_exaflops_of_table_6_are_reproduced(rows):
    assert len(rows) == 18
    for row in rows:
        if (row.model, row.epochs) != ("R50+ViT-L/16", 7):
            assert abs(row.difference) < REACHED[row.family], row
    vits = {row.model: row.difference for row in rows if row.family == "ViT"}
    assert {model for model, d in vits.items() if abs(d) > 0.002} == {"ViT-B/32"}
    # All ResNets are above the table, by about as much: no single model is counted wrongly.
    resnets = [row.difference for row in rows if row.family == "ResNet"]
    assert len(resnets) == 7
    assert 0.034 < min(resnets) < max(resnets) < 0.051


@pytest.mark.slow
def test_one_row_of_table_6_does_not_agree_with_the_table_itself(rows):
    """859 exaFLOPs in 7 epochs, where 14 take 1668 = 2 x 834."""
    ours = {row.epochs: row.exaflops for row in rows if row.model == "R50+ViT-L/16"}
    assert ours[14] == pytest.approx(1668, rel=0.001)
    assert ours[7] == pytest.approx(1668 / 2, rel=0.001)
    assert ours[7] == pytest.approx(859, rel=0.03)
    assert ours[7] != pytest.approx(859, rel=0.025)


@pytest.mark.slow
def test_the_committed_table_equals_the_plan(rows):
    with (ROOT / "experiments/compute/plan.csv").open(newline="") as file:
        kept = list(csv.DictReader(file))
    assert [(k["model"], int(k["epochs"])) for k in kept] == [(r.model, r.epochs) for r in rows]
    for row, line in zip(rows, kept, strict=True):
        assert row.exaflops == pytest.approx(float(line["exaflops"]), rel=1e-12)
        assert row.paper == int(line["paper"])
    page = (ROOT / "experiments/compute/plan.md").read_text()
    assert all(f"| {' | '.join(row.texts())} |" in page for row in rows)


@pytest.fixture
def paper(plan_of):
    return plan_of("compute", "paper")


@pytest.mark.slow
def test_every_row_is_fine_tuned_on_five_datasets(paper):
    """Table 4 has four learning rates for each dataset; ResNets try BiT's recipe as well."""
    pretrained = [entry for entry in paper.sweep.entries if isinstance(entry, Job)]
    tuned = [entry for entry in paper.sweep.entries if isinstance(entry, Selection)]
    assert (len(pretrained), len(tuned)) == (18, 18 * 5)
    assert {len(s.candidates) for s in tuned if s.labels["model"].startswith("BiT")} == {5}
    assert {len(s.candidates) for s in tuned if "ViT" in s.labels["model"]} == {4}
    assert sum(len(s.candidates) + len(s.seeds) for s in tuned) == 55 * 4 + 35 * 5 + 90 * 3


@pytest.mark.slow
def test_rows_missing_in_table_3_use_the_settings_of_another_row(paper):
    config = paper.jobs["pretrain/R200x3-14"].config
    assert (config.model.name, config.train_epochs) == ("BiT-R200x3", 14)
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay) == (6e-4, 0.1)
    longer = paper.jobs["pretrain/R152x2-14"].config
    assert (longer.model.name, longer.train_epochs) == ("BiT-R152x2", 14)


@pytest.mark.slow
def test_a_resnet_is_selected_on_dev_and_reported_on_test(paper):
    row = "imagenet2012/R50x1-7/"
    searched = [j.config for name, j in paper.jobs.items() if name.startswith(f"search/{row}")]
    assert {c.optimizer.learning_rate for c in searched} == {0.003, 0.01, 0.03, 0.06}
    assert {c.optimizer.schedule.decay for c in searched} == {"cosine", "step"}
    assert {tuple(c.evaluation.splits) for c in searched} == {("dev",)}
    finals = [j.config for name, j in paper.jobs.items() if name.startswith(f"final/{row}")]
    assert [c.seed for c in finals] == [0, 1, 2]
    assert {c.data.train_split for c in finals} == {"train"}
    assert {c.evaluation.splits["test"] for c in finals} == {"validation"}


def test_small_has_four_lengths_of_each_model(plan_of):
    jobs = plan_of("compute", "small").jobs.values()
    final = [job.config for job in jobs if job.job.stage == "final"]
    assert (len(jobs) - len(final), len(final)) == (3 * 2 * 3, 3 * 2 * 4 * 2)
    effort = [
        forward_macs(c.model, num_classes=10, image_size=(32, 32)) * c.train_examples for c in final
    ]
    assert max(effort) > 15 * min(effort)
    assert {c.data.train_split for c in final} == {"train[:96%]"}
    assert {c.model.pooling for c in final} == {"flatten"}


@pytest.mark.slow
def test_the_report_at_full_scale_is_figure_5(tmp_path):
    wanted = ("B-32-7", "R50x1-7")

    def is_one(name):
        return any(part in wanted for part in name.split("/"))

    folder = made_up_runs.finish(f"{SPEC}:paper", tmp_path / "runs", is_one)
    assert main(["report", str(folder)]) == 0
    page = (folder / "report" / "report.md").read_text()
    assert "| BiT-R50x1 · 7 |" in page
    svg = (folder / "report" / "plot-1.svg").read_text()
    for dataset in ("imagenet2012", "cifar10", "cifar100", "pets", "flowers"):
        assert f">{dataset}</text>" in svg
