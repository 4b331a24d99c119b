"""experiments/head_norm_shape: the studies of appendices D.2 and D.3."""

from pathlib import Path

import jax
import made_up_runs
import pytest

from vit_jax.__main__ import main
from vit_jax.models.flops import forward_macs
from vit_jax.models.registry import model_shape
from vit_jax.models.vit_options import check_sizes

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def plan(plan_of):
    return lambda arg: plan_of("head_norm_shape", arg).jobs


def shapes(jobs):
    """Returns scaled -> the shapes (depth, width, MLP, patch), without seeds."""
    found = {}
    for job in jobs.values():
        if job.job.labels["study"] == "shape":
            shape = model_shape(job.config.model)
            sizes = (shape.depth, shape.width, shape.mlp_dim, shape.patch_size)
            found.setdefault(job.job.labels["scaled"], {})[sizes] = None
    return {scaled: list(sizes) for scaled, sizes in found.items()}


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_line_of_shapes_changes_only_its_own_dimension(plan, scale):
    found = shapes(plan(scale))
    (base,) = found["base"]
    for i, scaled in enumerate(("depth", "width", "MLP", "patch size")):
        for shape in found[scaled]:
            assert [a != b for a, b in zip(shape, base, strict=True)] == [k == i for k in range(4)]
    for shape in found["all"]:
        larger = [a > b for a, b in zip(shape, base, strict=True)]
        # A larger model has smaller patches.
        assert larger in ([True, True, True, False], [False, False, False, True])


def test_the_base_shape_at_full_scale_is_that_of_appendix_d_2(plan):
    found = shapes(plan("paper"))
    assert found["base"] == [(8, 1024, 2048, 32)]
    assert max(depth for depth, *_ in found["depth"]) == 64
    assert sum(map(len, found.values())) == 19


def test_full_scale_has_figure_9_with_its_learning_rates(plan):
    jobs = [j for j in plan("paper").values() if j.job.labels["study"] == "head and norm"]
    rates = {}
    for job in jobs:
        config, key = job.config, (job.job.labels["head"], job.job.labels["norm"])
        assert job.job.labels["learning_rate"] == f"{config.optimizer.learning_rate:g}"
        assert (config.model.name, config.fewshot.interval_epochs) == ("ViT-B/16", 1)
        rates.setdefault(key, set()).add(config.optimizer.learning_rate)
    assert len(rates) == 5
    assert rates["class token", "pre"] >= {8e-4}
    assert rates["GAP", "pre"] == {8e-4, 3e-4}
    pooling = {j.job.labels["head"]: j.config.model.pooling for j in jobs}
    assert pooling == {"class token": "token", "GAP": "gap", "MAP": "map", "flatten": "flatten"}
    norms = {j.job.labels["norm"]: j.config.model.norm_placement for j in jobs}
    assert norms == {"pre": "pre", "post": "post"}


def test_learning_rates_of_heads_are_selected_on_held_out_images(plan):
    jobs = plan("small")
    stages = [(job.job.labels["study"], job.job.stage) for job in jobs.values()]
    assert stages.count(("head and norm", "search")) == 5 * 3
    assert stages.count(("head and norm", "final")) == 5 * 2
    assert stages.count(("shape", "final")) == 11 * 2 == len(jobs) - 25
    search = jobs["search/GAP/pre-norm/learning_rate=0.004"].config
    assert search.data.train_split == "train[:90%]"
    assert search.evaluation.splits == {"dev": "train[90%:]"}
    final = jobs["final/GAP/pre-norm/seed1"].config
    assert (final.data.train_split, final.evaluation.splits) == ("train", {"test": "test"})


@pytest.mark.parametrize(
    ("scale", "side"), [("small", 32), pytest.param("paper", 224, marks=pytest.mark.slow)]
)
def test_every_shape_makes_a_model_and_the_lines_span_the_compute(plan, scale, side):
    costs = []
    for job in plan(scale).values():
        config = job.config
        check_sizes(model_shape(config.model), config.model, (side, side))
        if job.job.labels["study"] == "shape":
            costs.append(forward_macs(config.model, num_classes=10, image_size=(side, side)))
    assert max(costs) > 15 * min(costs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "columns"),
    [("small", "cifar10"), pytest.param("paper", "0.0003 | 0.0008", marks=pytest.mark.slow)],
)
def test_the_report_has_heads_and_shapes(tmp_path, monkeypatch, scale, columns):
    monkeypatch.chdir(ROOT)
    spec = f"experiments/head_norm_shape/sweep.py:{scale}"
    folder = made_up_runs.finish(
        spec, tmp_path / "runs", lambda name: not name.startswith("search/")
    )
    monkeypatch.setattr("vit_jax.report.content.save", lambda *_: "<svg/>")  # Only tables matter.
    with jax.numpy_dtype_promotion("standard"):  # JAX's attention promotes bfloat16 by itself.
        assert main(["report", str(folder)]) == 0
    page = (folder / "report" / "report.md").read_text()
    assert f"| Head · norm | {columns} |" in page
    assert "| class token · post |" in page
    assert page.count("| depth · ") == {"small": 2, "paper": 4}[scale]
    assert "The lines of all series go through base." in page
