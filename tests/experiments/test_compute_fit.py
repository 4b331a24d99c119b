import math

import numpy as np
import pandas as pd
import pytest

from experiments.compute.fit import DRAWS, ScalingLaw, _Data, bootstrap_laws, fit_law, main
from vit_jax.errors import ConfigError

LAW = ScalingLaw(0.5, 40.0, 0.4, 90.0, 0.5)
SIZES, EXAMPLES = (
    values.ravel()
    for values in np.meshgrid([2e4, 5e4, 1e5, 3e5], [1e4, 3e4, 1e5, 3e5, 1e6], indexing="ij")
)


def test_the_loss_by_hand():
    law = ScalingLaw(1.0, 8.0, 0.5, 100.0, 1.0)
    assert law.loss(16, 50) == 1 + 8 / 4 + 100 / 50
    assert law.examples_for(4.0, 16) == pytest.approx(100)
    assert law.examples_for(3.0, 16) == math.inf  # Its size alone costs as much.


def test_a_law_is_found_again_from_its_losses():
    found = fit_law(SIZES, EXAMPLES, LAW.loss(SIZES, EXAMPLES))
    grid = np.logspace(4, 8, 9)
    np.testing.assert_allclose(found.loss(1e6, grid), LAW.loss(1e6, grid), rtol=1e-3)
    assert found.data_exponent == pytest.approx(0.5, abs=0.01)
    assert found.floor == pytest.approx(0.5, abs=0.01)


def test_one_run_that_failed_hardly_changes_the_law():
    losses = LAW.loss(SIZES, EXAMPLES)
    losses[7] *= 1.5
    found = fit_law(SIZES, EXAMPLES, losses)
    np.testing.assert_allclose(found.loss(1e5, 1e7), LAW.loss(1e5, 1e7), rtol=0.01)


def test_the_slopes_are_finite_differences():
    data = _Data.of(SIZES, EXAMPLES, LAW.loss(SIZES, EXAMPLES))
    x = np.array([-0.3, 0.3, 0.2, 0.6, -0.5])
    for i, step in enumerate(1e-6 * np.eye(5)):
        numeric = (data.residuals(x + step) - data.residuals(x - step)) / 2e-6
        np.testing.assert_allclose(data.slopes(x)[:, i], numeric, rtol=1e-4, atol=1e-8)


def test_a_law_and_its_parameters_convert_both_ways():
    data = _Data.of(SIZES, EXAMPLES, LAW.loss(SIZES, EXAMPLES))
    back = data.law(data.start(LAW))
    assert vars(back) == pytest.approx(vars(LAW))


@pytest.mark.slow
def test_the_interval_of_the_bootstrap_holds_the_truth_and_shrinks_with_the_noise():
    widths = []
    for noise in (0.02, 0.002):
        random = np.random.default_rng(1)
        losses = LAW.loss(SIZES, EXAMPLES) * np.exp(random.normal(0, noise, len(SIZES)))
        law = fit_law(SIZES, EXAMPLES, losses)
        laws = bootstrap_laws(SIZES, EXAMPLES, losses, law)
        assert len(laws) == DRAWS
        low, high = np.quantile([one.loss(3e5, 3e6) for one in laws], [0.025, 0.975])
        assert low < LAW.loss(3e5, 3e6) < high
        widths.append(high - low)
    assert widths[1] < widths[0] / 3


def test_too_few_runs_are_refused():
    with pytest.raises(ConfigError, match=r"20 runs, 1 sizes and 5 numbers.*at least 6 runs, 2"):
        fit_law(np.full(20, 1e5), EXAMPLES, LAW.loss(1e5, EXAMPLES))


@pytest.mark.slow
def test_the_script_prints_laws_and_the_compute_for_an_equal_loss(tmp_path, capsys):
    """Training on an example costs 6 floating-point operations a parameter."""
    rows = pd.DataFrame({"parameters": SIZES, "examples_seen": EXAMPLES, "state": "finished"})
    rows["eval/test/loss"] = LAW.loss(SIZES, EXAMPLES)
    rows["train_exaflops"] = 6e-18 * SIZES * EXAMPLES
    worse = rows.assign(model="BiT-R-Nano")
    worse["eval/test/loss"] += 0.1
    pd.concat([rows.assign(model="ViT-Nano/4"), worse]).to_csv(tmp_path / "runs.csv")
    main(tmp_path / "runs.csv")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = {line[0]: float(line[1]) for line in lines[-2:]}
    loss = worse["eval/test/loss"].min()
    sizes = sorted({*SIZES})
    vit = min(6e-18 * n * LAW.examples_for(loss, n) for n in sizes)
    resnet = min(6e-18 * n * LAW.examples_for(loss - 0.1, n) for n in sizes)
    assert found["ViT"] == pytest.approx(vit, rel=0.05)
    assert found["ResNet"] == pytest.approx(resnet, rel=0.05)
