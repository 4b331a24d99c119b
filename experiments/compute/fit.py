"""Fits a scaling law to the runs of each family: loss = E + A / N**a + B / D**b.

    python -m experiments.compute.fit [experiments/compute/results/runs.csv]

N is the number of parameters, D the number of examples seen; all runs must be of one dataset.
Prints each law, and how much compute each family needs for the lowest loss that all of them reach.

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

# Residuals of the logarithm beyond this count linearly.
_HUBER = 1e-3
_EXPONENTS, _FLOORS = (0.2, 0.5, 1.0), (0.3, 0.9)
_MOST_EXPONENT = 3.0
_LEAST_SIZES, _LEAST_BUDGETS, _LEAST_RUNS = 2, 3, 6
DRAWS = 200
"""Number of laws that `bootstrap_laws` fits."""

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


def fit_law(sizes: _Values, examples: _Values, losses: _Values) -> ScalingLaw:
    """Fits the law to runs; ConfigError if they are too few for five unknowns."""
    counts = (len(losses), len({*sizes.tolist()}), len({*examples.tolist()}))
    least = (_LEAST_RUNS, _LEAST_SIZES, _LEAST_BUDGETS)
    if any(count < wanted for count, wanted in zip(counts, least, strict=True)):
        raise ConfigError(
            "a scaling law of {} runs, {} sizes and {} numbers of examples".format(*counts),
            "at least {} runs, {} sizes and {} numbers of examples".format(*least),
            "add runs",
        )
    data = _Data.of(sizes, examples, losses)
    lowest = float(np.log(losses.min()))
    spread = math.log(max(losses.max() - losses.min(), 1e-6))
    starts = (
        np.array([spread, a, spread, b, lowest + math.log(floor)])
        for a, b, floor in itertools.product(_EXPONENTS, _EXPONENTS, _FLOORS)
    )
    return data.law(min((data.minimum(start) for start in starts), key=lambda found: found[1])[0])


def bootstrap_laws(
    sizes: _Values, examples: _Values, losses: _Values, law: ScalingLaw, *, seed: int = 0
) -> tuple[ScalingLaw, ...]:
    """Returns `DRAWS` laws, each fitted to the predictions of a law plus resampled residuals."""
    predicted = law.loss(sizes, examples)
    residuals = np.log(losses / predicted)
    # Five unknowns make the residuals of few runs too small.
    residuals *= math.sqrt(len(losses) / max(1, len(losses) - 5))
    random, laws = np.random.default_rng(seed), []
    for _ in range(DRAWS):
        drawn = predicted * np.exp(random.choice(residuals, len(residuals)))
        data = _Data.of(sizes, examples, drawn)
        laws.append(data.law(data.minimum(data.start(law))[0]))
    return tuple(laws)


@dataclasses.dataclass(frozen=True)
class _Data:
    """Logarithms of the runs; sizes and examples are divided by their geometric means."""

    size: np.ndarray
    examples: np.ndarray
    loss: np.ndarray
    means: tuple[float, float]

    @classmethod
    def of(cls, sizes: np.ndarray, examples: np.ndarray, losses: np.ndarray) -> "_Data":
        n, d = np.log(sizes.astype(float)), np.log(examples.astype(float))
        return cls(n - n.mean(), d - d.mean(), np.log(losses), (float(n.mean()), float(d.mean())))

    def minimum(self, start: np.ndarray) -> tuple[np.ndarray, float]:
        """Returns the parameters of the nearest minimum of the Huber loss, and its value."""
        low = [-np.inf, 0, -np.inf, 0, -np.inf]
        high = [np.inf, _MOST_EXPONENT, np.inf, _MOST_EXPONENT, np.inf]
        jac: Any = self.slopes  # The stubs know only the names of methods.
        found = least_squares(self.residuals, start, jac, (low, high), loss="huber", f_scale=_HUBER)
        return found.x, float(found.cost)

    def residuals(self, x: np.ndarray) -> Float[np.ndarray, " n"]:
        """Returns the logarithms of predicted minus measured losses."""
        return np.logaddexp.reduce(self._terms(x)) - self.loss

    def slopes(self, x: np.ndarray) -> Float[np.ndarray, "n 5"]:
        """Returns the derivatives of the residuals."""
        terms = self._terms(x)
        by_size, by_data, floor = np.exp(terms - np.logaddexp.reduce(terms))
        columns = [by_size, -by_size * self.size, by_data, -by_data * self.examples, floor]
        return np.stack(columns, axis=1)

    def _terms(self, x: np.ndarray) -> Float[np.ndarray, "3 n"]:
        """Returns the logarithms of the three terms of the law."""
        by_size, by_data = x[0] - x[1] * self.size, x[2] - x[3] * self.examples
        return np.stack([by_size, by_data, np.full_like(by_size, x[4])])

    def law(self, x: np.ndarray) -> ScalingLaw:
        factors = [math.exp(x[0] + x[1] * self.means[0]), math.exp(x[2] + x[3] * self.means[1])]
        return ScalingLaw(math.exp(x[4]), factors[0], float(x[1]), factors[1], float(x[3]))

    def start(self, law: ScalingLaw) -> np.ndarray:
        """Returns the parameters of a law."""

        def log(value: float) -> float:
            return math.log(max(value, 1e-300))

        return np.array(
            [
                log(law.size_factor) - law.size_exponent * self.means[0],
                law.size_exponent,
                log(law.data_factor) - law.data_exponent * self.means[1],
                law.data_exponent,
                log(law.floor),
            ]
        )


def main(path: Path) -> None:
    """Prints the law of each family in a runs.csv, and the compute for an equal loss."""
    runs = pd.read_csv(path)
    runs = runs[runs["state"] == "finished"].dropna(subset=["eval/test/loss", "examples_seen"])
    runs["family"] = runs["model"].map(family)
    fitted = {}
    for name, own in runs.groupby("family", sort=False):
        columns = ("parameters", "examples_seen", "eval/test/loss")
        sizes, examples, losses = (own[column].to_numpy(float) for column in columns)
        law = fit_law(sizes, examples, losses)
        laws = bootstrap_laws(sizes, examples, losses, law)
        fitted[name] = own, law, laws
        print(f"{name}: {len(own)} runs")
        for key, value in vars(law).items():
            low, high = np.quantile([getattr(one, key) for one in laws], [0.025, 0.975])
            print(f"  {key:14} {value:.4g} [{low:.4g}, {high:.4g}]")
    loss = max(own["eval/test/loss"].min() for own, _, _ in fitted.values())
    print(f"EFLOPs of training to a loss of {loss:.4g}, with the cheapest size")
    for name, (own, law, laws) in fitted.items():
        per_example = (own["train_exaflops"] / own["examples_seen"]).groupby(own["parameters"])
        costs = per_example.mean()

        def cheapest(law: ScalingLaw, costs: pd.Series = costs) -> float:
            return min(law.examples_for(loss, size) * cost for size, cost in costs.items())

        low, high = np.quantile([cheapest(one) for one in laws], [0.025, 0.975])
        print(f"  {name:8} {cheapest(law):.3g} [{low:.3g}, {high:.3g}]")


if __name__ == "__main__":
    try:
        main(Path(*sys.argv[1:] or [Path(__file__).parent / "results" / "runs.csv"]))
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
