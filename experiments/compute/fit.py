"""Fits a scaling law to the runs of each family: loss = E + A / N**a + B / D**b.

    python -m experiments.compute.fit [experiments/compute/results/runs.csv]

N is the number of parameters, D the number of examples seen. Prints how much compute each family
needs for the lowest loss that all of them reach, the ratios between families, and what the shorter
runs predict for the longest ones. In brackets: 95 % intervals of a bootstrap over the residuals.

Source: arXiv:2203.15556, equation 2. As in its appendix D.2, the fit minimises the Huber loss of
the logarithm's residuals, from several starts.
"""

import dataclasses
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.optimize import least_squares

from vit_jax.errors import ConfigError
from vit_jax.report.labels import family

LOSS = "eval/test/loss"
DRAWS = 1000
"""Number of laws of the bootstrap."""
# Residuals of the logarithm beyond this count linearly.
_HUBER = 1e-3
_EXPONENTS, _FLOORS = (0.2, 0.5, 1.0), (0.3, 0.9)
_MOST_EXPONENT = 3.0
_LEAST = {"runs": 6, "sizes": 2, "numbers of examples": 3}

_Values = Float[np.ndarray, " n"]


@dataclasses.dataclass(frozen=True)
class ScalingLaw:
    """Loss as a function of model size and examples seen.

    Attributes:
        floor: E, the loss that no size and no number of examples goes below.
        size_factor: A.
        size_exponent: a.
        data_factor: B.
        data_exponent: b.
    """

    floor: float
    size_factor: float
    size_exponent: float
    data_factor: float
    data_exponent: float

    def loss(self, sizes: Any, examples: Any) -> Any:
        """Returns the loss of models with N parameters after D examples; arrays are broadcast."""
        by_size = self.size_factor / np.power(sizes, self.size_exponent)
        return self.floor + by_size + self.data_factor / np.power(examples, self.data_exponent)

    def examples_for(self, loss: float, size: float) -> float:
        """Returns how many examples a model of a size needs for a loss; infinity: it cannot."""
        rest = loss - self.loss(size, math.inf)
        if rest <= 0 or self.data_exponent <= 0:
            return math.inf
        with np.errstate(over="ignore"):
            return float(np.power(self.data_factor / rest, 1 / self.data_exponent))


@dataclasses.dataclass(frozen=True)
class Fit:
    """A law, and those of the bootstrap.

    Attributes:
        law: fitted to the runs.
        drawn: `DRAWS` laws, each fitted to the law's predictions plus resampled residuals.
        residuals: logarithms of measured over predicted losses, widened for the five unknowns.
    """

    law: ScalingLaw
    drawn: list[ScalingLaw]
    residuals: _Values


def fit_law(sizes: _Values, examples: _Values, losses: _Values, seed: int = 0) -> Fit:
    """Fits the law to runs; ConfigError if they are too few for five unknowns.

    Families whose laws are compared need different seeds of the bootstrap.
    """
    counts = (len(losses), len({*sizes.tolist()}), len({*examples.tolist()}))
    if any(count < least for count, least in zip(counts, _LEAST.values(), strict=True)):
        raise ConfigError(
            "a scaling law of {} runs, {} sizes and {} numbers of examples".format(*counts),
            "at least " + ", ".join(f"{least} {what}" for what, least in _LEAST.items()),
            "add runs",
        )
    lowest, spread = np.log(losses.min()), np.log(max(np.ptp(losses), 1e-6))
    starts = (
        _minimum(sizes, examples, losses, [spread, a, spread, b, lowest + math.log(floor)])
        for a, b, floor in itertools.product(_EXPONENTS, _EXPONENTS, _FLOORS)
    )
    best = min(starts, key=lambda found: found.cost)
    law = _law(best.x, sizes, examples)
    predicted = law.loss(sizes, examples)
    residuals = np.log(losses / predicted) * math.sqrt(len(losses) / max(1, len(losses) - 5))
    random, drawn = np.random.default_rng(seed), []
    for _ in range(DRAWS):
        again = predicted * np.exp(random.choice(residuals, len(residuals)))
        drawn.append(_law(_minimum(sizes, examples, again, best.x).x, sizes, examples))
    return Fit(law, drawn, residuals)


def _minimum(sizes: _Values, examples: _Values, losses: _Values, start: Any) -> Any:
    """Returns the nearest minimum of the Huber loss.

    Its x are the logarithm of the size's term at the geometric mean of the sizes, a, the same of
    the data's term, b, and the floor's logarithm.
    """
    n, d = (np.log(values) - np.log(values).mean() for values in (sizes, examples))

    def residuals(x: np.ndarray) -> np.ndarray:
        terms = [x[0] - x[1] * n, x[2] - x[3] * d, np.full_like(n, x[4])]
        return np.logaddexp.reduce(terms) - np.log(losses)

    bounds = ([-np.inf, 0, -np.inf, 0, -np.inf], [np.inf, *[_MOST_EXPONENT, np.inf] * 2])
    return least_squares(residuals, start, bounds=bounds, loss="huber", f_scale=_HUBER)


def _law(x: np.ndarray, sizes: _Values, examples: _Values) -> ScalingLaw:
    by_size, a, by_data, b, floor = map(float, x)
    n, d = np.log(sizes).mean(), np.log(examples).mean()
    return ScalingLaw(math.exp(floor), math.exp(by_size + a * n), a, math.exp(by_data + b * d), b)


def _fit(runs: pd.DataFrame, seed: int) -> Fit:
    values = (runs[key].to_numpy(float) for key in ("parameters", "examples_seen", LOSS))
    return fit_law(*values, seed=seed)


def _range(values: Any, *middle: float) -> str:
    low, high = np.quantile(values, [0.025, 0.975])
    return " ".join([*(f"{value:.4g}" for value in middle), f"[{low:.4g}, {high:.4g}]"])


def compare(runs: pd.DataFrame) -> None:
    """Prints the compute that each family needs for an equal loss, and the ratios."""
    loss = runs.groupby("family")[LOSS].min().max()
    costs, drawn = {}, {}
    for seed, (name, own) in enumerate(runs.groupby("family")):
        an_example = (own["train_exaflops"] / own["examples_seen"]).groupby(own["parameters"])
        sizes = an_example.mean().to_dict()
        fit = _fit(own, seed)
        costs[name], *drawn_costs = (
            min(law.examples_for(loss, size) * cost for size, cost in sizes.items())
            for law in (fit.law, *fit.drawn)
        )
        drawn[name] = np.array(drawn_costs)
    print(f"teraFLOPs of training to a loss of {loss:.4g}, with the cheaper size")
    for name, cost in costs.items():
        print(f"  {name:16} {_range(1e6 * drawn[name], 1e6 * cost)}")
    for one, other in itertools.combinations(costs, 2):
        ratio = _range(drawn[one] / drawn[other], costs[one] / costs[other])
        print(f"  {one + ' / ' + other:16} {ratio}")


def predict(runs: pd.DataFrame) -> None:
    """Prints the loss of each model's longest runs as its family's shorter runs predict it."""
    random = np.random.default_rng(0)
    print("loss of the longest runs, predicted by the shorter ones, and measured")
    for seed, (_, own) in enumerate(runs.groupby("family")):
        last = own.groupby("parameters")["examples_seen"].transform("max") == own["examples_seen"]
        fit = _fit(own[~last], seed)
        for (size, examples), came in own[last].groupby(["parameters", "examples_seen"]):
            noise = random.choice(fit.residuals, (DRAWS, len(came))).mean(axis=1)
            drawn = [law.loss(size, examples) for law in fit.drawn] * np.exp(noise)
            text = _range(drawn, fit.law.loss(size, examples))
            print(f"  {came['model'].iloc[0]:16} {text}, measured {came[LOSS].mean():.4g}")


def main(path: Path) -> None:
    """Runs both on the final runs of a runs.csv."""
    runs = pd.read_csv(path)
    runs = runs[(runs["state"] == "finished") & (runs["stage"] == "final")]
    runs = runs.dropna(subset=[LOSS, "examples_seen"])
    runs["family"] = runs["model"].map(family)
    compare(runs)
    predict(runs)


if __name__ == "__main__":
    try:
        main(Path(*sys.argv[1:] or [Path(__file__).parent / "results" / "runs.csv"]))
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
