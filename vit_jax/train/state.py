"""The training state, born sharded."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from vit_jax.config.mesh import MeshConfig
from vit_jax.parallel.sharding import sharding_rules, state_shardings


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything a step reads and writes.

    Attributes:
        step: i32 scalar, number of updates made.
        params: nested dict of f32 arrays.
        opt_state: of the optax chain.
        ema: moving average of params, or the average that a schedule-free optimizer evaluates, or
            None.
    """

    # Any: the same tree also holds shapes, shardings or names in place of the arrays.
    step: Any
    params: Any
    opt_state: Any
    ema: Any

    @property
    def eval_params(self) -> Any:
        """The parameters to evaluate: their average if the run keeps one."""
        return self.params if self.ema is None else self.ema


StartFrom = Callable[[Any], TrainState]


def make_start_from(optimizer: optax.GradientTransformation, *, ema: bool) -> StartFrom:
    """Returns start_from_fn(params) -> TrainState at step 0; may be traced."""

    def start_from_fn(params: Any) -> TrainState:
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            ema=jax.tree.map(jnp.copy, params) if ema else None,
        )

    return start_from_fn


def abstract_state(init_fn: Callable[[], TrainState], mesh: Mesh, config: MeshConfig) -> TrainState:
    """Returns the state's shapes, types and shardings, computing nothing.

    Args:
        init_fn: makes the state.
        mesh: devices.
        config: the mesh section, whose preset and rules say what lies where.

    Raises:
        ConfigError: rules that do not fit the parameters or the mesh.
    """
    shapes = jax.eval_shape(init_fn)
    rules = sharding_rules(config, shapes.params, mesh)
    shardings = state_shardings(shapes, shapes.params, mesh, rules)
    return jax.tree.map(
        lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
        shapes,
        shardings,
    )


def init_sharded(init_fn: Callable[[], TrainState], abstract: TrainState) -> TrainState:
    """Makes the state directly on the devices that hold its parts; no device sees the whole."""
    shardings = jax.tree.map(lambda s: s.sharding, abstract)
    return jax.jit(init_fn, out_shardings=shardings)()
