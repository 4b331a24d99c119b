"""experiments/learned_bias: what the measures are, their slopes and the table of the page."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.learned_bias import measure

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "learned_bias"
EQUIVARIANCE = pd.DataFrame(
    [
        ("stage 1", 1, 0.9, 0.05),
        ("stage 1", 4, 0.8, 0.04),
        ("encoded", 1, 0.6, np.nan),
        ("encoded", 4, 0.4, np.nan),
        ("class token 1", 1, 9.0, np.nan),
        ("pre_logits", 1, 0.3, np.nan),
    ],
    columns=["layer", "shift_px", "error", "interior_error"],
)


def permutation_of(accuracy):
    return pd.DataFrame({"accuracy": accuracy, "chance": 0.1})


def test_the_measures_by_hand():
    found = {
        "equivariance": EQUIVARIANCE,
        "permutation": permutation_of([0.5, 0.2, 0.3]),
        "distance": pd.DataFrame({"minus_uniform_px": [-2.0, -1.0]}),
    }
    wanted = {
        "patch shift": 0.4,
        "pixel shift": 0.6,
        "interior": 0.05,
        "permutation": 0.25,  # 10 of 40 points above chance.
        "distance": -1.5,
        "nearest head": -2.0,
    }
    assert measure.summarise(found) == pytest.approx(wanted)


def test_a_model_at_chance_has_no_share_of_accuracy():
    found = {"equivariance": EQUIVARIANCE, "permutation": permutation_of([0.14, 0.1])}
    assert "permutation" not in measure.summarise(found)


def test_one_small_p_among_many_is_not_told_apart():
    # 0.04 alone would be; of ten slopes it is not.
    assert measure.holm([0.04] + [0.5] * 9) == [0.4] + [1.0] * 9
    assert measure.holm([]) == []


def test_the_interval_of_a_slope_holds_the_truth_and_zero_if_there_is_none():
    random, images = np.random.default_rng(0), np.repeat([500, 2_000, 48_000], 3)
    value, low, high, p = measure.slope(images, 2 * np.log10(images) + random.normal(0, 0.1, 9))
    assert low < 2 < high
    assert low < value < high
    assert p < 1e-6
    _, low, high, _ = measure.slope(images, random.normal(0, 1, 9))
    assert low < 0 < high


def test_a_family_with_runs_of_one_size_has_no_slope():
    row = {"family": "ViT", "images": 500, "measure": "distance", "value": 1.0}
    assert measure.table(pd.DataFrame([row] * 4)).endswith("| distance | ViT | 1.00 | – | – |")


def test_the_table_of_the_page_is_that_of_the_file():
    rows = pd.read_csv(FOLDER / "results" / "measures.csv")
    assert measure.table(rows) in (FOLDER / "README.md").read_text()
