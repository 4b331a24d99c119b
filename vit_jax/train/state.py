"""The training state. It is created sharded, so no device ever holds all of it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from vit_jax.config.mesh import MeshConfig
from vit_jax.parallel.sharding import parameter_shardings, sharding_rules, state_shardings


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The state that a training step reads and returns.

    Attributes:
        step: i32 scalar, number of updates made.
        params: nested dict of f32 arrays.
        opt_state: state of the optax chain.
        ema: moving average of params, or the averaged parameters of a schedule-free optimizer;
            None: the run keeps no average. If the task has a teacher, these are its parameters.
        extra: arrays that the task's teacher has beside its parameters, such as a centre.
    """

    # Any: the same tree also holds shapes, shardings or names instead of arrays.
    step: Any
    params: Any
    opt_state: Any
    ema: Any
    extra: Any = None

    @property
    def eval_params(self) -> Any:
        """The parameters to evaluate: their average if the run keeps one."""
        return self.params if self.ema is None else self.ema


InitState = Callable[[Any], TrainState]


def make_init_state(
    optimizer: optax.GradientTransformation, *, ema: bool, extra: Callable[[], Any] | None = None
) -> InitState:
    """Returns init_state_fn(params) -> TrainState at step 0; may be traced.

    With `ema` the state has an average, which starts as a copy of the parameters. `extra` makes
    `TrainState.extra`.
    """

    def init_state_fn(params: Any) -> TrainState:
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            ema=jax.tree.map(jnp.copy, params) if ema else None,
            extra=None if extra is None else extra(),
        )

    return init_state_fn


def abstract_state(init_fn: Callable[[], TrainState], mesh: Mesh, config: MeshConfig) -> TrainState:
    """Returns the state's shapes, dtypes and shardings without computing anything."""
    shapes = jax.eval_shape(init_fn)
    rules = sharding_rules(config, shapes.params, mesh)
    shardings = state_shardings(shapes, shapes.params, mesh, rules)
    return _with_shardings(shapes, shardings)


def abstract_frozen(shapes: Any, mesh: Mesh, config: MeshConfig) -> Any:
    """Returns shapes, dtypes and shardings of frozen parameters, by the rules of the preset.

    `mesh.rules` apply only to the trained model and are not used here.
    """
    rules = sharding_rules(config.replace(rules=()), shapes, mesh)
    return _with_shardings(shapes, parameter_shardings(shapes, mesh, rules))


def _with_shardings(shapes: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
        shapes,
        shardings,
    )
