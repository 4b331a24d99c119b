"""One run: task and model of a config, training, and figures on examples not trained on."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.config.synthetic import SyntheticConfig
from vit_jax.errors import DivergenceError
from vit_jax.rng import stream
from vit_jax.synthetic.constructed import solve_association, solve_convolution, solve_double_if
from vit_jax.synthetic.convolution import Convolution, OffsetAttention, recovery
from vit_jax.synthetic.fit import fit
from vit_jax.synthetic.networks import SequenceModel, count_parameters, reach
from vit_jax.synthetic.tasks import (
    Association,
    Batch,
    DoubleIf,
    Task,
    accuracy,
    cross_entropy,
    distances,
    random_orthogonal,
)

# Examples at a time when measuring; a batch of long sequences has many attention weights.
_MEASURED_TOKENS = 16_384


@dataclasses.dataclass(frozen=True)
class OffsetWeights:
    """What heads have learned of a convolution.

    Attributes:
        task: the convolution.
        weights: attention of each head to each offset, mean over examples.
    """

    task: Convolution
    weights: Float[np.ndarray, "H R"]


class Experiment:
    """Builds task and model; `train`, then `measure`.

    Args:
        config: of the run.
    """

    def __init__(self, config: SyntheticConfig):
        self.config = config
        self.task: Convolution | Task
        rngs = nnx.Rngs(stream(config.seed, "init"))
        if config.task == "convolution":
            asked = config.convolution
            self.task = Convolution.random(asked, config.length, config.seed)
            self.model: nnx.Module = (
                solve_convolution(self.task, asked.heads)
                if config.model == "constructed"
                else OffsetAttention(
                    self.task.grid, asked.features, asked.heads, asked.rank or asked.features,
                    content=asked.content, rngs=rngs,
                )
            )  # fmt: skip
            return
        if config.task == "association":
            key = stream(config.seed, "association")
            matrix = random_orthogonal(key, config.association.features)
            self.task = task = Association(matrix, config.length)
            solve: Callable[[], SequenceModel] = lambda: solve_association(task)  # noqa: E731
        else:
            self.task = other = DoubleIf(config.double_if.most, config.length)
            solve = lambda: solve_double_if(other)  # noqa: E731
        if config.model == "constructed":
            self.model = solve()
        else:
            self.model = SequenceModel(
                config.model, self.task.inputs, self.task.classes, config.network, rngs=rngs
            )

    @property
    def steps(self) -> int:
        """How many steps are to be trained; none where the weights are set by hand."""
        return 0 if self.config.model == "constructed" else self.config.training.steps

    def train(self) -> Iterator[tuple[int, float]]:
        """Trains the model; yields as `fit` does."""
        if self.steps:
            loss_fn = _squared_error if isinstance(self.task, Convolution) else _task_loss
            yield from fit(
                self.model, self.task.draw, loss_fn, self.config.training, self.config.seed
            )

    def measure(self) -> dict[str, float]:
        """Returns the figures on test examples, and facts of the model.

        Raises:
            DivergenceError: a figure that is not finite, so that no run is finished with one.
        """
        figures: dict[str, float] = {}
        if isinstance(self.task, Convolution):
            figures["eval/test/relative_error"] = self._mean(
                self.task.draw, _relative_error, "test"
            )
            shape = recovery(self.offset_weights().weights, self.task.taps)
            figures |= {f"kernel/{name}": value for name, value in shape.items()}
        else:
            figures["eval/test/accuracy_top1"] = self._mean(self.task.draw, _task_accuracy, "test")
            figures |= self._by_distance(self.task)
            figures["reach"] = reach(self.config.model, self.config.network, self.config.length)
        for name, value in figures.items():
            if not math.isfinite(value):
                raise DivergenceError(
                    f"{name} is {value}", "a finite figure",
                    "run the same command again; if it stays, lower training.learning_rate",
                )  # fmt: skip
        return figures | {"parameters": count_parameters(self.model)}

    def offset_weights(self) -> OffsetWeights:
        """Returns what heads look at; only of the task `convolution`."""
        assert isinstance(self.task, Convolution)
        assert isinstance(self.model, OffsetAttention)
        x, _ = self.task.draw(stream(self.config.seed, "test"), self._batch_size())
        return OffsetWeights(self.task, np.asarray(self.model.by_offset(x)))

    def _by_distance(self, task: Task) -> dict[str, float]:
        """Returns the accuracy at each distance, all by one compiled function."""
        graph, params = nnx.split(self.model, nnx.Param)
        rows, batches = self._batches()
        places = distances(self.config.length)

        @jax.jit
        def measured(params: Any, distance: Array, number: Array) -> Array:
            model = nnx.merge(graph, params)

            def one(place: tuple[Array, Array]) -> Array:
                distance, number = place
                key = jax.random.fold_in(stream(self.config.seed, "distance", number), distance)
                return _task_accuracy(model, task.draw_at(key, rows, distance))

            return jax.lax.map(one, (distance, number))

        number = jnp.tile(jnp.arange(batches), len(places))
        found = measured(params, jnp.repeat(jnp.asarray(places), batches), number)
        means = np.asarray(found).reshape(len(places), batches).mean(1)
        return {
            f"distance/{place}/accuracy_top1": float(mean)
            for place, mean in zip(places, means, strict=True)
        }

    def _mean(
        self, draw: Callable[[Array, int], Any], figure: Callable[..., Array], name: str
    ) -> float:
        """Returns the mean of a figure over the test examples."""
        graph, params = nnx.split(self.model, nnx.Param)
        rows, batches = self._batches()

        @jax.jit
        def mean(params: Any) -> Array:
            model = nnx.merge(graph, params)

            def one(number: Array) -> Array:
                return figure(model, draw(stream(self.config.seed, name, number), rows))

            return jax.lax.map(one, jnp.arange(batches)).mean()

        return float(mean(params))

    def _batches(self) -> tuple[int, int]:
        """Returns examples in a batch and the number of batches: all test examples, rounded up."""
        rows = self._batch_size()
        return rows, -(-self.config.test_examples // rows)

    def _batch_size(self) -> int:
        return min(self.config.test_examples, max(1, _MEASURED_TOKENS // self.config.length))


def _squared_error(
    model: Any, batch: tuple[Float[Array, "B N D"], Float[Array, "B N D"]]
) -> Float[Array, ""]:
    return jnp.square(model(batch[0]) - batch[1]).mean()


def _relative_error(
    model: Any, batch: tuple[Float[Array, "B N D"], Float[Array, "B N D"]]
) -> Float[Array, ""]:
    return _squared_error(model, batch) / jnp.square(batch[1]).mean()


def _task_loss(model: Any, batch: Batch) -> Float[Array, ""]:
    return cross_entropy(model(batch.inputs), batch)


def _task_accuracy(model: Any, batch: Batch) -> Float[Array, ""]:
    return accuracy(model(batch.inputs), batch)
