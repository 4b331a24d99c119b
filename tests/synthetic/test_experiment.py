"""A run learns, leaves a run folder, and never ends with a figure that is no number."""

import json

import jax.numpy as jnp
import pytest

from vit_jax.__main__ import main
from vit_jax.config.synthetic import SyntheticConfig
from vit_jax.errors import ConfigError, DivergenceError
from vit_jax.synthetic.experiment import Experiment

RING = ["synthetic", "--task=convolution", "--length=8", "--config.convolution.features=2",
        "--config.convolution.taps=2", "--config.convolution.heads=2"]  # fmt: skip


def test_a_run_learns_and_is_finished_once(tmp_path, capsys):
    words = [*RING, f"--workdir={tmp_path}", "--config.training.steps=120",
             "--config.training.warmup_steps=10", "--config.training.interval_steps=60",
             "--config.training.learning_rate=0.03", "--json"]  # fmt: skip
    assert main(words) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert json.loads(capsys.readouterr().out) == result
    assert result["step"] == 120
    assert result["eval/test/relative_error"] < 0.3
    # 2 heads x 8 offsets; values 2 x (2 x 2) and 4 biases; 4 x 2 and 2 biases out.
    assert result["parameters"] == 16 + 12 + 10
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [60, 120, 120]
    assert rows[1]["train/loss"] < rows[0]["train/loss"]
    for name in ("config.json", "env.json", "report/attention.png", "report/attention.csv"):
        assert (tmp_path / name).stat().st_size > 100
    written = (tmp_path / "result.json").stat().st_mtime_ns
    assert main(words) == 0
    assert (tmp_path / "result.json").stat().st_mtime_ns == written


def test_a_figure_that_is_no_number_finishes_no_run():
    config = SyntheticConfig(task="convolution", model="constructed", length=8, test_examples=4)
    experiment = Experiment(config)
    experiment.model.out.bias[...] = jnp.full(8, jnp.nan)
    with pytest.raises(DivergenceError, match="eval/test/relative_error is nan"):
        experiment.measure()


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"model": "cnn"}, "'model' is 'cnn', and the task is a convolution itself"),
        ({"convolution": {"grid": [4, 4]}}, "'length' is 32; expected the 16 tokens"),
        ({"convolution": {"span": 16}}, "less than half of the shortest side, 32 tokens"),
        ({"convolution": {"taps": 6}}, "at most the 5 offsets of convolution.span 2"),
        ({"convolution": {"rank": 9}}, "at most the 8 features"),
        ({"model": "constructed", "convolution": {"heads": 4}}, "a head for each of the 5 taps"),
        ({"network": {"heads": 5}}, "a divisor of the width 32"),
        ({"network": {"kernel_size": 4}}, "an odd number"),
        ({"training": {"steps": 100}}, "fewer than the 100 steps"),
    ],
)
def test_what_cannot_be_is_told(given, part):
    with pytest.raises(ConfigError, match=part.replace("(", r"\(")):
        SyntheticConfig.from_mapping({"task": "convolution", **given})
