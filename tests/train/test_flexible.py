"""One model for several patch sizes: draws, costs, resume, metrics, and impossible sections."""

import collections

import pytest
from task_runs import assert_resumes, program_of, run_mapping

from vit_jax.config.run import Config
from vit_jax.errors import ConfigError
from vit_jax.rng import draw_index
from vit_jax.train.feed import program_of_batch
from vit_jax.train.loop import train
from vit_jax.train.signals import StopSignals

TINY = {"name": "ViT-Ti/4", "width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2}
STORED = {"patch_kernel_size": 4, "position_grid": 2}
STEPS = 8


def config(digits_dir=None, *, model=None, flexible=None, **changes):
    content = run_mapping(
        STEPS,
        size=8,
        model={**TINY, **STORED, **(model or {})},
        flexible={"patch_sizes": [2, 4], "probabilities": [3.0, 1.0], **(flexible or {})},
        evaluation={"splits": {"test": "test"}, "batch_size": 128},
    )
    content["data"]["data_dir"] = digits_dir and str(digits_dir)
    return Config.from_mapping(content | changes)


def test_a_draw_depends_on_seed_and_batch_only():
    shares = (0.75, 0.25)
    drawn = [draw_index(0, "size", batch, shares) for batch in range(4000)]
    assert drawn[:STEPS] == [draw_index(0, "size", batch, shares) for batch in range(STEPS)]
    assert drawn[:40] != [draw_index(1, "size", batch, shares) for batch in range(40)]
    assert collections.Counter(drawn)[0] == pytest.approx(3000, abs=3 * 28)  # 3 sigma


def test_the_cost_of_an_image_is_the_mean_over_the_draws():
    program = program_of(config())
    cost = {name: p.task.flops_per_image for name, p in program.variants.items()}
    assert list(cost) == ["p2", "p4"]
    assert program.flops_per_image == round(0.75 * cost["p2"] + 0.25 * cost["p4"])
    only_evaluated = program_of(config(flexible={"probabilities": [0, 1]}))
    assert list(only_evaluated.trained) == ["p4"]
    assert only_evaluated.flops_per_image == cost["p4"]
    drawn = [program_of_batch(only_evaluated, batch) for batch in range(20)]
    assert {size.config.model.name for size in drawn} == {"ViT-Ti/4"}


@pytest.fixture(scope="module")
def finished(digits_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("flexible") / "run"
    made = config(digits_dir)
    return folder, made, train(made, folder, StopSignals())


@pytest.mark.slow
def test_a_stopped_run_resumes_bit_for_bit(finished, tmp_path, monkeypatch):
    folder, made, want = finished
    program = program_of(made)
    sizes = [program_of_batch(program, batch).config.model.name for batch in range(STEPS)]
    assert set(sizes[5:]) == {"ViT-Ti/2", "ViT-Ti/4"}, "both sizes are drawn after the stop"
    assert_resumes(made, folder, want, tmp_path, monkeypatch, step=5)


@pytest.mark.slow
def test_every_size_is_evaluated(finished):
    _, _, result = finished
    of_own = {k: v for k, v in result.items() if k.startswith("eval/test/")}
    of_size = {k: v for k, v in result.items() if k.startswith("eval/test@p4/")}
    assert {k.replace("test/", "test@p4/"): v for k, v in of_own.items()} == of_size
    assert result["eval/test@p2/examples"] == 360
    assert result["eval/test@p2/loss"] != result["eval/test/loss"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flexible": {"patch_sizes": [3, 4]}}, r"has 3, which does not .* expected divisors of 8"),
        (
            {"flexible": {"probabilities": [1.0]}},
            r"'flexible.probabilities' has 1 values",
        ),
        ({"flexible": {"probabilities": [0, 0]}}, r"'flexible.probabilities' is \[0.0, 0.0\]"),
        ({"flexible": {"patch_sizes": [4, 4]}}, r"'flexible.patch_sizes' is \[4, 4\]"),
        ({"model": {"patch_kernel_size": None}}, r"'model.patch_kernel_size' is not set"),
        ({"model": {"position_grid": None}}, r"'model.position_grid' is not set"),
        ({"model": {"pooling": "flatten"}}, r"gives parameter 'head/linear/kernel' the shape"),
        ({"model": {"name": "R50+ViT-B/16"}}, r"R50\+ViT-B/16, a ViT; expected .* without a stem"),
    ],
)
def test_impossible_sections_are_config_errors(changes, message):
    with pytest.raises(ConfigError, match=message):
        program_of(config(**changes))


def test_a_resnet_has_no_patch_sizes():
    content = config().to_mapping() | {"model": {"name": "BiT-R-Nano"}}
    with pytest.raises(ConfigError, match="is given with BiT-R-Nano, a ResNet"):
        Config.from_mapping(content)
