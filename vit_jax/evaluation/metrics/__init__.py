"""Metrics of the predictions on a split. Each is a file of this package, named as the metric.

To add one, write a file with a subclass of `Metric` and register it. It says what the metric is
(`kind`), what the evaluation step adds up over a batch (`sums`), and what the metric is of these
sums over the split (`value`).
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from vit_jax.config.evaluation import METRICS
from vit_jax.errors import PluginError
from vit_jax.own_functions import OwnFunction, own_function, owner_of

log = logging.getLogger(__name__)
# Other figures of a split.
_TAKEN = ("examples", "skipped_examples")

F = TypeVar("F", bound=Callable[..., Any])

# What a batch adds to a metric: name -> array.
Sums = dict[str, Array]
# logits, labels -> one loss per prediction.
LossFn = Callable[[jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class MetricKind:
    """What a metric is.

    Attributes:
        title: its name in headings, without the unit; "": made from the metric's name.
        lower: whether smaller values are better.
        bounds: smallest and largest value that it can have.
        unit: "%" (a fraction, shown in percent), "s", "MB", "exaFLOPs" or "".
        images: what of the test images its intervals are drawn from. "mean": it is the mean over
            all images of right or wrong; "class": over the images of one class; "class mean": the
            mean over classes of such means; "": only several seeds show its uncertainty.
    """

    title: str = ""
    lower: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)
    unit: Literal["", "%", "s", "MB", "exaFLOPs"] = ""
    images: Literal["", "mean", "class", "class mean"] = ""

    @property
    def is_fraction(self) -> bool:
        """Whether it is shown in percent."""
        return self.unit == "%"


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The predictions for a batch: one per image, or one per patch of its images.

    Attributes:
        mask: False for those that do not count.
        ranks: number of classes that rank above the label; `num_classes` or more if its logit is
            NaN. A prediction is correct in top k if its rank is below k.
    """

    logits: Float[Array, "M C"]
    labels: Int[Array, " M"]
    mask: Bool[Array, " M"]
    losses: Float[Array, " M"]
    ranks: Int[Array, " M"]

    @property
    def num_classes(self) -> int:
        return self.logits.shape[1]

    @property
    def classes(self) -> Int[Array, " M"]:
        """The predicted classes; `num_classes` for a prediction with a NaN logit."""
        bad = jnp.isnan(self.logits).any(axis=1)
        return jnp.where(bad, self.num_classes, jnp.argmax(self.logits, axis=1))


class Metric:
    """A metric of a split."""

    kind: ClassVar[MetricKind] = MetricKind()

    def applies(self, num_classes: int) -> bool:
        """Whether it is measured for predictions of so many classes."""
        del num_classes
        return True

    def sums(self, predictions: Predictions) -> Sums:
        """Returns what a batch adds, without predictions whose mask is False; may be traced.

        A metric that a task sums up in its own evaluation step does not have it.
        """
        raise NotImplementedError

    def add(self, totals: Mapping[str, Any], sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Returns the totals, {} at first, with the sums of a batch, as float64 or int64."""
        return {name: totals.get(name, 0) + _wide(array) for name, array in sums.items()}

    def value(self, totals: Mapping[str, Any]) -> float | None:
        """Returns the metric; None: it is not defined on this split."""
        raise NotImplementedError


class Mean(Metric):
    """A mean over the predictions that count."""

    def sums(self, predictions: Predictions) -> Sums:
        return mean_sums(self.of_each(predictions), predictions.mask)

    def of_each(self, predictions: Predictions) -> Shaped[Array, " M"]:
        """Returns the number, or True or False, of each prediction."""
        raise NotImplementedError

    def value(self, totals: Mapping[str, Any]) -> float:
        return float(totals["sum"]) / int(totals["count"])


def mean_sums(values: Shaped[Array, " M"], mask: Bool[Array, " M"]) -> Sums:
    """Returns what a batch adds to a `Mean`."""
    return {"sum": jnp.sum(values, where=mask), "count": jnp.sum(mask)}


class OfAll(Metric):
    """A metric that needs all predictions of a split at once, such as an area under a curve.

    Every host keeps what `rows` returns of them.
    """

    def rows(self, predictions: Predictions) -> Mapping[str, Shaped[Array, "M ..."]]:
        """Returns name -> what is kept of each prediction."""
        raise NotImplementedError

    def of_all(self, rows: Mapping[str, np.ndarray]) -> float | None:
        """Returns the metric of the rows of all predictions that count."""
        raise NotImplementedError

    def sums(self, predictions: Predictions) -> Sums:
        return {**self.rows(predictions), "mask": predictions.mask}

    def add(self, totals: Mapping[str, Any], sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
        kept = {name: rows[sums["mask"]] for name, rows in sums.items() if name != "mask"}
        return {name: [*totals.get(name, ()), rows] for name, rows in kept.items()}

    def value(self, totals: Mapping[str, Any]) -> float | None:
        return self.of_all({name: np.concatenate(rows) for name, rows in totals.items()})


class OwnMetric(OfAll):
    """A metric made of a registered function."""

    own: ClassVar[OwnFunction]

    def rows(self, predictions: Predictions) -> Mapping[str, Shaped[Array, "M ..."]]:
        return {"logits": predictions.logits.astype("float32"), "labels": predictions.labels}

    def of_all(self, rows: Mapping[str, np.ndarray]) -> float | None:
        value = self.own(rows["logits"], rows["labels"])
        if value is None:
            return None
        low, high = self.kind.bounds
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = None
        if number is None or number < low or number > high:
            bounds = "" if math.isinf(high - low) else f" in [{low:g}, {high:g}]"
            raise self.own.error(
                f"returned {value!r}"[:80], f"a number{bounds}, or None", "return one"
            )
        if math.isfinite(number):
            return number
        log.warning("metric %r is %g, and left out", self.own.name, number)
        return None

    def try_out(self, num_classes: int) -> None:
        """Calls the function with made-up predictions, so that a mistake shows before training."""
        labels = np.arange(2 * num_classes, dtype=np.int32)[:1000] % num_classes
        logits = np.random.default_rng(0).normal(size=(len(labels), num_classes))
        self.of_all({"logits": logits.astype(np.float32), "labels": labels})


def register_metric(
    *,
    direction: str,
    title: str = "",
    bounds: tuple[float, float] = (-math.inf, math.inf),
    unit: str = "",
) -> Callable[[F], F]:
    """Registers a metric of the predictions on a split; use it as a decorator with a direction.

    `evaluation.metrics=["NAME"]` measures it on every evaluated split, as eval/SPLIT/NAME. Reports,
    early stopping and selections of sweeps read its direction. Its intervals are over seeds. Before
    a run starts, the function is tried on made-up predictions, in which all classes occur if there
    are at most 1,000.

    Args:
        direction: "higher" or "lower", whichever is better.
        title: its name in headings; "": made from the function's name.
        bounds: smallest and largest value.
        unit: "%" for a fraction that is shown in percent.

    Returns:
        A decorator for functions (logits f32[N, C], labels i32[N]) -> number. They get NumPy arrays
        with all N images of a split, which every host keeps: 200 MB for 50,000 images of 1,000
        classes. None: the metric is not defined on this split.

    Raises:
        PluginError: a wrong direction, other parameters, or a name that another module has
            registered.

    >>> @register_metric(direction="higher", bounds=(0, 1), unit="%")  # doctest: +SKIP
    ... def f1(logits, labels):
    ...     return sklearn.metrics.f1_score(labels, logits.argmax(1), average="macro")
    """
    if direction not in ("higher", "lower"):
        raise PluginError(f"a metric of direction {direction!r}", "higher or lower", "choose one")
    if unit not in ("", "%") or not bounds[0] < bounds[1]:
        raise PluginError(
            f"a metric of unit {unit!r} and bounds {bounds!r}",
            "unit '' or '%', and bounds (smallest, largest)",
            "correct them",
        )
    kind = MetricKind(title, direction == "lower", bounds, unit)

    def register(function: F) -> F:
        own = own_function("metric", function, ("logits", "labels"))
        if own.name in _TAKEN:
            raise own.error(
                "has the name of a count", f"another than {', '.join(_TAKEN)}", "rename it"
            )
        if own.keywords:
            raise own.error(
                f"has the keyword '{own.keywords[0]}'", "no keywords", "write a metric for each"
            )
        METRICS.add(
            own.name, type(own.name, (OwnMetric,), {"own": own, "kind": kind}), owner_of(function)
        )
        return function

    return register


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64 if np.issubdtype(array.dtype, np.floating) else np.int64)
