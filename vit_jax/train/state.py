"""The training state. It is created sharded: no device ever holds all of it."""

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
    """Everything that a step reads and writes.

    Attributes:
        step: i32 scalar, number of updates made.
        params: nested dict of f32 arrays.
        opt_state: of the optax chain.
        ema: moving average of params, or the average that a schedule-free optimizer evaluates, or
            None.
    """

    # Any: the same tree also holds shapes, shardings or names instead of arrays.
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
    """Returns the state's shapes, dtypes and shardings without computing anything.

    Args:
        init_fn: makes the state.
        mesh: devices.
        config: the mesh section; its preset and rules say how arrays are sharded.

    Raises:
        ConfigError: rules that do not fit the parameters or the mesh.
    """
    shapes = jax.eval_shape(init_fn)
    rules = sharding_rules(config, shapes.params, mesh)
    shardings = state_shardings(shapes, shapes.params, mesh, rules)
    return _with_shardings(shapes, shardings)


def abstract_frozen(shapes: Any, mesh: Mesh, config: MeshConfig) -> Any:
    """Returns shapes, dtypes and shardings of frozen parameters: sharded by the preset's rules.

    `mesh.rules` are about the trained model's parameters and are not used.

    Args:
        shapes: tree of `jax.ShapeDtypeStruct`.
        mesh: devices.
        config: the mesh section.
    """
    rules = sharding_rules(config.replace(rules=()), shapes, mesh)
    return _with_shardings(shapes, parameter_shardings(shapes, mesh, rules))


def _with_shardings(shapes: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
        shapes,
        shardings,
    )


def shard_arrays(arrays: Any, abstract: Any) -> Any:
    """Puts a tree of host arrays on the devices; each device receives only its part."""

    def put(array: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
        return jax.make_array_from_callback(like.shape, like.sharding, lambda part: array[part])

    return jax.tree.map(put, arrays, abstract)
