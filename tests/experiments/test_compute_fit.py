import math
import re
from pathlib import Path

import numpy as np
import pytest

from experiments.compute import fit
from experiments.compute.fit import ScalingLaw, fit_law, main
from vit_jax.errors import ConfigError

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "compute"
LAW = ScalingLaw(0.5, 40.0, 0.4, 90.0, 0.5)
SIZES, EXAMPLES = (
    values.ravel()
    for values in np.meshgrid([2e4, 5e4, 1e5, 3e5], [1e4, 3e4, 1e5, 3e5, 1e6], indexing="ij")
)


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(fit, "DRAWS", 200)


def test_the_loss_by_hand():
    law = ScalingLaw(1.0, 8.0, 0.5, 100.0, 1.0)
    assert law.loss(16, 50) == 1 + 8 / 4 + 100 / 50
    assert law.examples_for(4.0, 16) == pytest.approx(100)
    assert law.examples_for(3.0, 16) == math.inf  # Its size alone costs as much.


def test_a_law_is_found_again_from_its_losses():
    found = fit_law(SIZES, EXAMPLES, LAW.loss(SIZES, EXAMPLES)).law
    grid = np.logspace(4, 8, 9)
    np.testing.assert_allclose(found.loss(1e6, grid), LAW.loss(1e6, grid), rtol=1e-3)
    assert found.data_exponent == pytest.approx(0.5, abs=0.01)
    assert found.floor == pytest.approx(0.5, abs=0.01)


def test_one_run_that_failed_hardly_changes_the_law():
    losses = LAW.loss(SIZES, EXAMPLES)
    losses[7] *= 1.5
    found = fit_law(SIZES, EXAMPLES, losses).law
    np.testing.assert_allclose(found.loss(1e5, 1e7), LAW.loss(1e5, 1e7), rtol=0.01)


def test_the_interval_of_the_bootstrap_holds_the_truth_and_shrinks_with_the_noise():
    widths = []
    for noise in (0.02, 0.002):
        random = np.random.default_rng(1)
        losses = LAW.loss(SIZES, EXAMPLES) * np.exp(random.normal(0, noise, len(SIZES)))
        drawn = fit_law(SIZES, EXAMPLES, losses).drawn
        assert len(drawn) == fit.DRAWS
        low, high = np.quantile([law.loss(3e5, 3e6) for law in drawn], [0.025, 0.975])
        assert low < LAW.loss(3e5, 3e6) < high
        widths.append(high - low)
    assert widths[1] < widths[0] / 3


def test_too_few_runs_are_refused():
    with pytest.raises(ConfigError, match=r"20 runs, 1 sizes and 5 numbers.*at least 6 runs, 2"):
        fit_law(np.full(20, 1e5), EXAMPLES, LAW.loss(1e5, EXAMPLES))


@pytest.mark.slow
def test_the_page_has_the_ratios_and_predictions_of_the_script(capsys, monkeypatch):
    """Of the committed runs. Their intervals, which take minutes, are left out."""
    monkeypatch.setattr(fit, "DRAWS", 2)
    main(FOLDER / "results" / "runs.csv")
    page = re.sub(r" \[.*?\]", "", (FOLDER / "README.md").read_text())
    compared, predicted = capsys.readouterr().out.split("loss of the longest runs")
    costs = {name: float(cost) for name, cost, *_ in map(str.split, compared.splitlines()[1:4])}
    for name, cost in costs.items():
        assert f"| {name} | {cost:.1f} x 10^12 | {cost / costs['ViT']:.2g} |" in page
    for line in predicted.splitlines()[1:]:
        name, loss, _, _, _, measured = line.split()
        assert f"| {name} | {float(loss):.3f} | {float(measured):.3f} |" in page
