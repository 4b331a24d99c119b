"""A scaling law with its uncertainty: what an amount of compute buys, and the file that keeps it.

`report --fit=scaling` writes scaling.json, and `plan --fit=scaling.json` reads it.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydantic

from vit_jax.errors import FileError
from vit_jax.plan.scaling_law import ScalingLaw
from vit_jax.storage.files import read_json

SCALING_FILE = "scaling.json"
# Sizes tried when the best one for an amount of compute is searched.
_GRID = 65


@dataclasses.dataclass(frozen=True)
class ScalingFit:
    """The law of some runs, and laws of the bootstrap, whose spread is its uncertainty.

    Attributes:
        panel: what the runs have in common, such as their dataset.
        series: such as the family of their models.
        metric: the loss.
        law: the law of all runs.
        draws: laws of the bootstrap.
        flops: number of parameters -> training FLOPs of one example, of the fitted sizes; {} if
            they are not known.
        sizes: smallest and largest fitted number of parameters.
        examples: smallest and largest fitted number of examples.
    """

    panel: str
    series: str
    metric: str
    law: ScalingLaw
    draws: tuple[ScalingLaw, ...]
    flops: Mapping[float, float]
    sizes: tuple[float, float]
    examples: tuple[float, float]

    def loss(self, size: float, examples: float) -> tuple[float, float, float]:
        """Returns the loss of a model of a size after some examples, and its 95 % interval."""
        return self._spread([float(law.loss(size, examples)) for law in self._laws])

    def best_loss(self, flops: float) -> tuple[float, float, float]:
        """Returns the loss that an amount of compute buys, and its 95 % interval.

        The size is the best one between the smallest and the largest fitted one.
        """
        return self._spread([self._least_loss(law, flops) for law in self._laws])

    def best_size(self, flops: float) -> tuple[float, float]:
        """Returns the size with the smallest loss for an amount of compute, and its examples."""
        sizes, costs = self._grid()
        best = int(np.argmin(self.law.loss(sizes, flops / costs)))
        return float(sizes[best]), float(flops / costs[best])

    def flops_for(self, loss: float) -> float:
        """Returns the fewest FLOPs that reach a loss; infinity: no fitted size reaches it."""
        return self._least_flops(self.law, loss)

    def flops_ratio(self, other: "ScalingFit", flops: float) -> tuple[float, float, float]:
        """Returns the share of compute that reaches the loss that another fit buys with `flops`.

        Args:
            other: the fit to compare with; its draws are paired with these one by one.
            flops: compute of `other`.

        Returns:
            The ratio of FLOPs, and its 95 % interval; infinity if the loss is not reached.
        """
        pairs = zip(self._laws, other._laws, strict=True)
        losses = [(own, other._least_loss(theirs, flops)) for own, theirs in pairs]
        return self._spread([self._least_flops(own, loss) / flops for own, loss in losses])

    @property
    def _laws(self) -> tuple[ScalingLaw, ...]:
        return (self.law, *self.draws)

    def _grid(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns sizes, and the FLOPs of an example of each, between logarithms linearly."""
        known = sorted(self.flops.items())
        at, costs = np.log(np.array(known).T)
        sizes = np.linspace(at[0], at[-1], _GRID)
        return np.exp(sizes), np.exp(np.interp(sizes, at, costs))

    def _least_loss(self, law: ScalingLaw, flops: float) -> float:
        sizes, costs = self._grid()
        return float(np.min(law.loss(sizes, flops / costs)))

    def _least_flops(self, law: ScalingLaw, loss: float) -> float:
        sizes, costs = self._grid()
        examples = [law.examples_for(loss, size) for size in sizes]
        return float(np.min(np.array(examples) * costs))

    @staticmethod
    def _spread(values: Sequence[float]) -> tuple[float, float, float]:
        """Returns the first value and the 95 % interval of the others."""
        # The method does not interpolate, which infinity would turn into NaN.
        low, high = np.quantile(values[1:], [0.025, 0.975], method="inverted_cdf")
        return values[0], float(low), float(high)

    def to_json(self) -> dict[str, Any]:
        """Returns the fit as JSON values."""
        laws = [dataclasses.astuple(law) for law in self.draws]
        plain = {"law": dataclasses.asdict(self.law), "draws": laws}
        flops = [[size, flops] for size, flops in sorted(self.flops.items())]
        return {**vars(self), **plain, "flops": flops}


_Pair = tuple[pydantic.PositiveFloat, pydantic.PositiveFloat]
_Number = pydantic.NonNegativeFloat


class _File(pydantic.BaseModel):
    """One fit of the file."""

    panel: str
    series: str
    metric: str
    law: dict[str, _Number]
    draws: list[tuple[_Number, _Number, _Number, _Number, _Number]] = pydantic.Field(min_length=1)
    flops: list[_Pair]
    sizes: _Pair
    examples: _Pair

    def fit(self) -> ScalingFit:
        known = vars(self) | {
            "law": ScalingLaw(**self.law),
            "draws": tuple(ScalingLaw(*values) for values in self.draws),
            "flops": dict(self.flops),
        }
        return ScalingFit(**known)


def read_fits(path: Path) -> list[ScalingFit]:
    """Reads the fits of a scaling.json.

    Raises:
        FileError: it cannot be read, or holds something else.
    """
    content = read_json(path)
    try:
        fits = [_File.model_validate(one).fit() for one in content["fits"]]
        if not fits or not all(math.isfinite(fit.law.floor) for fit in fits):
            raise ValueError(f"{len(fits)} fits")
    except (TypeError, KeyError, ValueError):
        raise FileError(
            f"{path} holds no scaling laws",
            f"the {SCALING_FILE} of a report",
            "write one: python -m vit_jax report RUNS --fit=scaling",
        ) from None
    return fits
