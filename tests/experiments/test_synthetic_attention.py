"""The sweep of experiments/synthetic_attention expands to the runs that its page speaks of."""

import argparse
from collections import Counter
from pathlib import Path

import pytest

from vit_jax.commands import synthetic
from vit_jax.sweep.plan import Plan
from vit_jax.sweep.sweep_file import read_sweep

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """Name of a job -> the config that its command makes of its arguments."""

    def make(arg):
        monkeypatch.chdir(ROOT)
        plan = Plan(read_sweep(f"experiments/synthetic_attention/sweep.py:{arg}"), tmp_path)
        parser = argparse.ArgumentParser()
        synthetic.add_arguments(parser)
        found = {}
        for name, job in plan.jobs.items():
            args, rest = parser.parse_known_args(job.command()[4:])
            assert all(word.startswith("--config.") for word in rest)
            texts = [word.removeprefix("--config.") for word in rest]
            found[name] = synthetic.config_of(args, texts)
        return found

    return make


def test_the_small_sweep_compares_three_models_at_three_lengths_with_three_seeds(configs):
    small = configs("small")
    counts = Counter(config.task for config in small.values())
    assert counts == {"association": 3 * 3 * 3, "double_if": 3 * 3 * 3, "convolution": 18}
    one = small["association/dilated_cnn/48/seed2"]
    assert (one.model, one.length, one.seed, one.network.layers) == ("dilated_cnn", 48, 2, 3)
    torus = small["convolution/torus/seed0"]
    assert (torus.length, torus.convolution.grid, torus.convolution.taps) == (64, (8, 8), 9)
    low = small["convolution/ring/low_rank/5_heads/seed1"]
    assert (low.convolution.rank, low.convolution.span, low.convolution.heads) == (2, 12, 5)


def test_the_full_sweep_has_sequences_of_512_tokens_and_five_seeds(configs):
    full = configs("full")
    counts = Counter(config.task for config in full.values())
    assert counts == {"association": 105, "double_if": 105, "convolution": (8 + 1 + 1) * 5}
    longest = full["double_if/attention/512/seed4"]
    assert (longest.length, longest.network.width, longest.training.steps) == (512, 64, 5000)
