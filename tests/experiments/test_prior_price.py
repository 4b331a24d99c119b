"""experiments/prior_price: its runs, and the price by hand."""

import math
from runpy import run_path

import numpy as np
import pandas as pd
import pytest

from experiments.prior_price import price


def curves_of(accuracies: dict[tuple[str, str, int], list[float]]) -> pd.DataFrame:
    """Returns the curves of runs that are evaluated after 10, 100, 1,000, ... examples."""
    return pd.DataFrame(
        [
            {"task": task, "family": family, "seed": seed, "examples": 10 ** (i + 1), "accuracy": a}
            for (task, family, seed), values in accuracies.items()
            for i, a in enumerate(values)
        ]
    )


def test_every_task_has_all_models_with_equal_examples_and_seeds(plan_of):
    jobs = plan_of("prior_price", "gpu,rates").jobs
    assert len(jobs) == 6 * 3 * 4
    seen = {(j.config.train_examples, j.config.data.train_split) for j in jobs.values()}
    assert seen == {(10_000_000, "train[:10000000]")}  # Each image once.
    assert {j.config.evaluation.splits["dev"] for j in jobs.values()} == {"test[:2000]"}


def test_the_main_runs_have_the_chosen_rates():
    sweep = run_path("experiments/prior_price/sweep.py")
    rates = {task: dict.fromkeys(sweep["MODELS"]["small"], 3e-3) for task in sweep["TASKS"]}
    sweep["RATES"]["small"].update(rates)
    jobs = [*sweep["get_sweep"]("small,main")]
    assert len(jobs) == 6 * 3 * 5
    assert {job.overrides["optimizer.learning_rate"] for job in jobs} == {3e-3}


def test_examples_to_a_threshold():
    assert price.examples_to(0.5, [10, 100, 1_000], [0.3, 0.4, 0.6]) == pytest.approx(10**2.5)
    assert price.examples_to(0.2, [10, 100], [0.3, 0.4]) == 10
    assert price.examples_to(0.9, [10, 100], [0.3, 0.4]) == math.inf
    # The first crossing counts, even if the curve falls again.
    assert price.examples_to(0.5, [10, 100, 1_000], [0.4, 0.6, 0.4]) == pytest.approx(10**1.5)


def test_the_ratio_is_of_geometric_means_and_its_interval_is_welchs():
    value, low, high = price.ratio(np.array([100.0, 400.0]), np.array([10.0, 10.0]))
    assert value == pytest.approx(20)
    # Logarithms: variance 0.9609 / 2 seeds, one degree of freedom: t = 12.706.
    half = 12.7062 * math.sqrt(np.log(4) ** 2 / 2 / 2)
    assert [low, high] == pytest.approx([20 * math.exp(-half), 20 * math.exp(half)], rel=1e-4)


def test_the_table_says_bounds_where_runs_do_not_reach_the_threshold():
    curves = curves_of(
        {
            ("same", "ViT", 0): [0.5, 0.9, 1.0],
            ("same", "ViT", 1): [0.5, 0.9, 1.0],
            ("same", "ResNet", 0): [0.5, 0.5, 0.5],
            ("same", "ResNet", 1): [0.5, 0.5, 0.5],
            ("texture", "ViT", 0): [0.2, 0.9, 1.0],
            ("texture", "ViT", 1): [0.2, 0.9, 1.0],
            ("texture", "ResNet", 0): [0.9, 1.0, 1.0],
            ("texture", "ResNet", 1): [0.9, 1.0, 1.0],
        }
    )
    assert price.reachable(curves) == {"same": 1.0, "texture": 1.0}
    texture, same = price.price_table(curves).splitlines()[2:]
    assert texture == "| texture | 90.0 % | 100 | – | 10 | 10 [10, 10] |"
    assert same == "| same | 90.0 % | 100 | – | > 1k | < 0.1 |"


def test_curves_survive_the_file(tmp_path):
    curves = curves_of({("same", "ViT", 0): [0.5, 0.9]})
    curves.to_csv(tmp_path / "curves.csv", index=False)
    pd.testing.assert_frame_equal(price.read_curves(tmp_path / "curves.csv"), curves)


def test_a_folder_without_such_runs_is_a_one_line_error(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        price.main([str(tmp_path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")
