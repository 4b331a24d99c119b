"""What went wrong in a step that is not finite: the step again, looking at every tensor."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.data.device import Batch
from vit_jax.errors import DivergenceError
from vit_jax.models.placement import Placement, placed
from vit_jax.named_tree import leaf_names
from vit_jax.rng import stream
from vit_jax.train.program import Program
from vit_jax.train.state import TrainState
from vit_jax.train.step import accumulated_gradient

# Intermediates that have a leading axis over the blocks, in the order of their computation.
_OF_BLOCKS = ("attention_output", "mlp_output", "block_output")
_LEFT_OUT = ("attention_weights", "max_attention_logit")
_BEHIND_BLOCKS = ("encoded", "pre_logits")


@dataclasses.dataclass(frozen=True)
class TensorFacts:
    """What one tensor of a step held.

    Attributes:
        name: such as "parameter head/linear/kernel" or "mlp_output of layer 3".
        size: number of values.
        not_finite: how many of them are NaN or infinite.
        largest: the largest absolute value among the finite ones; 0 where there is none.
    """

    name: str
    size: int
    not_finite: int
    largest: float

    def __str__(self) -> str:
        return f"{self.name} ({self.not_finite:,} of {self.size:,} values not finite)"


def examine_step(program: Program, state: TrainState, batch: Batch) -> list[TensorFacts]:
    """Runs a step once more and returns what its tensors held, in the order of their computation.

    That is parameters, optimizer state, the batch after mixing, what the model computes layer by
    layer, the loss, the gradients from the head down, the parameters after the update, the metrics.

    Args:
        program: the run.
        state: as it was before the step.
        batch: as it came over the wire.
    """
    config = program.config
    prepare, batch_loss = program.task.prepare, program.task.batch_loss
    table = _Table()

    def look(state: TrainState, batch: Batch) -> list[tuple[jax.Array, jax.Array]]:
        ready = prepare(batch, state.step)
        key = stream(config.seed, "dropout", state.step)
        loss, gradient = accumulated_gradient(
            batch_loss, state.params, ready, key, config.accumulation_steps
        )
        after, metrics = program.step_fn(state, batch)
        table.add_tree("parameter", state.params)
        table.add_tree("optimizer state", state.opt_state)
        table.add_tree("batch", ready)
        _add_forward(table, program, state.params, ready, key)
        table.add("loss", loss)
        table.add_tree("gradient", gradient, backwards=True)
        table.add_tree("updated parameter", after.params)
        # A norm may overflow where every value is finite.
        table.add_tree("metric", metrics)
        return table.facts

    placement = Placement(program.mesh, config.mesh.gradient_dtype)
    everywhere = NamedSharding(program.mesh, PartitionSpec())
    look_fn = jax.jit(placed(look, placement), out_shardings=everywhere)
    found = jax.device_get(look_fn(state, batch))
    return [
        TensorFacts(name, size, int(not_finite), float(largest))
        for (name, size), (not_finite, largest) in zip(table.rows, found, strict=True)
    ]


def first_bad(facts: list[TensorFacts]) -> TensorFacts | None:
    """Returns the first tensor with a value that is not finite; None: all are finite."""
    return next((row for row in facts if row.not_finite), None)


def write_report(path: Path, step: int, facts: list[TensorFacts]) -> None:
    """Writes all tensors of a step as a table, the first bad one on top."""
    bad = first_bad(facts)
    top = "every tensor was finite when the step was run again" if bad is None else f"{bad}"
    lines = [f"step {step}, first bad tensor: {top}", "", "not finite   largest finite   tensor"]
    lines += [f"{row.not_finite:>10,}   {row.largest:>14.4g}   {row.name}" for row in facts]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


class _Table:
    """Collects, while a function is traced, names of tensors and facts on them."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []
        self.facts: list[tuple[jax.Array, jax.Array]] = []

    def add(self, name: str, tensor: jax.Array) -> None:
        values = jnp.abs(tensor.astype(jnp.float32))
        finite = jnp.isfinite(values)
        self.rows.append((name, tensor.size))
        self.facts.append(
            (jnp.sum(~finite), jnp.max(jnp.where(finite, values, 0.0), initial=0.0))
        )  # fmt: skip

    def add_tree(self, kind: str, tree: Any, *, backwards: bool = False) -> None:
        named = list(zip(leaf_names(tree), jax.tree.leaves(tree), strict=True))
        for name, leaf in reversed(named) if backwards else named:
            if jnp.issubdtype(leaf.dtype, jnp.inexact):
                self.add(f"{kind} {name}", leaf)


def _add_forward(
    table: _Table, program: Program, params: Any, batch: Batch, key: jax.Array
) -> None:
    """Adds what the model computes of a batch, as the loss sees it, microbatch by microbatch."""
    parts = program.config.accumulation_steps
    keys = [key] if parts == 1 else jax.random.split(key, parts)
    model = nnx.merge(program.graphdef, params)
    names = tuple(name for name in model.intermediates if name not in _LEFT_OUT)
    for part, key in enumerate(keys):
        rows = jax.tree.map(lambda leaf, part=part: leaf[part::parts], batch)
        logits, found = program.task.forward(params, rows, key=key, return_intermediates=names)
        suffix = f" of microbatch {part}" if parts > 1 else ""
        blocks = [name for name in _OF_BLOCKS if name in found]
        before = [name for name in names if name not in (*blocks, *_BEHIND_BLOCKS)]
        for name in before:
            table.add(name + suffix, found[name])
        for layer in range(len(found[blocks[0]]) if blocks else 0):
            for name in blocks:
                table.add(f"{name} of layer {layer}{suffix}", found[name][layer])
        for name in _BEHIND_BLOCKS:
            table.add(name + suffix, found[name])
        table.add("logits" + suffix, logits)


def diverged(what: str, step: int, kept: list[int], left_out: int) -> DivergenceError:
    """Returns the error of a step that is not finite.

    Args:
        what: figure, value and step.
        step: that it happened at.
        kept: steps of the checkpoints that are there.
        left_out: batches that a rewind leaves out beside those since the last checkpoint.
    """
    last_good = f"that of step {kept[-1]}" if kept else "none"
    error = DivergenceError(
        what, "a finite number",
        "lower the learning rate, clip gradients, use float32 or set divergence.rewinds; the last"
        f" good checkpoint is {last_good}",
    )  # fmt: skip
    error.step = step
    error.leave_out = left_out + step - (kept[-1] if kept else 0)
    return error


def explained(error: DivergenceError, facts: list[TensorFacts], path: Path) -> DivergenceError:
    """Returns the error with the first bad tensor, and where the report of all is."""
    bad = first_bad(facts) or "all tensors finite"
    made = DivergenceError(f"{error.got} (run again: {bad}; see {path})", error.expected, error.fix)
    made.step, made.leave_out = error.step, error.leave_out
    return made
