"""experiments/learned_bias: what the measures are, and their slopes."""

import numpy as np
import pandas as pd
import pytest

from experiments.learned_bias import measure


def test_the_measures_by_hand():
    found = {
        "equivariance": pd.DataFrame(
            {
                "layer": [
                    "embedded",
                    "embedded",
                    "encoded",
                    "encoded",
                    "pre_logits",
                    "class token 1",
                ],
                "shift_px": [1, 4, 1, 4, 1, 1],
                "error": [0.8, 0.2, 0.6, 0.4, 0.3, 9.0],
            }
        ),
        "permutation": pd.DataFrame({"accuracy": [0.5, 0.2, 0.3]}),
        "distance": pd.DataFrame({"minus_uniform_px": [-2.0, -1.0]}),
    }
    assert measure.summarise(found) == pytest.approx(
        {
            "patch shift": 0.3,
            "pixel shift": 0.7,
            "invariance": 0.3,
            "permutation": -30,
            "distance": -1.5,
        }
    )


def test_the_interval_of_a_slope_holds_the_truth_and_zero_if_there_is_none():
    random, images = np.random.default_rng(0), np.repeat([480, 4_800, 48_000], 3)
    value, low, high = measure.slope(images, 2 * np.log10(images) + random.normal(0, 0.1, 9))
    assert low < 2 < high
    assert low < value < high
    _, low, high = measure.slope(images, random.normal(0, 1, 9))
    assert low < 0 < high


def test_tables_have_a_row_for_each_model_and_measure():
    rows = pd.DataFrame(
        [
            {
                "family": "ViT",
                "head": "gap",
                "seed": seed,
                "images": size,
                "measure": name,
                "value": v,
            }
            for name, values in {"distance": (0, -1, -2), "patch shift": (1, 1, 1)}.items()
            for size, v in zip((0, 480, 4_800), values, strict=True)
            for seed in range(3)
        ]
    )
    first, second = measure.means_table(rows).splitlines()[2:]
    assert first.startswith("| patch shift | ViT gap | 1 (1 to 1)")
    assert second == "| distance | ViT gap | 0 (0 to 0) | -1 (-1 to -1) | -2 (-2 to -2) |"
    (_, slope) = measure.slopes_table(rows).splitlines()[2:]
    assert slope == "| distance | ViT gap | -1 [-1, -1] | falls | 6 |"


def test_a_folder_without_such_runs_is_a_one_line_error(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        measure.main([str(tmp_path), f"--data_dir={tmp_path}"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")
