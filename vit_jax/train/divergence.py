"""The report of a diverged run: runs the failed step again and checks every tensor."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.data.arrays import cut_to
from vit_jax.data.device import Batch
from vit_jax.data.loader import on_device
from vit_jax.errors import DivergenceError
from vit_jax.named_tree import named_leaves
from vit_jax.parallel.mesh import to_devices
from vit_jax.parallel.processes import is_first_host
from vit_jax.train.program import Program
from vit_jax.train.start import restore_or_init
from vit_jax.train.state import TrainState
from vit_jax.train.step import dropout_key, microbatches

if TYPE_CHECKING:
    from vit_jax.train.context import RunContext

# Intermediates with a leading axis over the blocks, in the order of their computation.
_OF_BLOCKS = ("attention_output", "mlp_output", "block_output")
_LEFT_OUT = ("attention_weights", "max_attention_logit", "head_logits")
_AFTER_BLOCKS = ("encoded", "pre_logits")


@dataclasses.dataclass(frozen=True)
class TensorStats:
    """Statistics of one tensor of a step."""

    name: str  # e.g. "parameter head/linear/kernel" or "mlp_output of layer 3"
    size: int
    not_finite: int  # number of values that are NaN or infinite
    largest: float  # absolute value among the finite ones; 0 if there are none

    def __str__(self) -> str:
        return f"{self.name} ({self.not_finite:,} of {self.size:,} values not finite)"


def divergence_error(
    what: str, step: int, kept: list[int], skipped_batches: int
) -> DivergenceError:
    """Returns the error for a step with a metric that is not finite.

    `what` names metric, value and step. `skipped_batches` are skipped by a rewind in addition to
    those since the last of the `kept` checkpoints.
    """
    last_good = f"step {kept[-1]}" if kept else "none"
    error = DivergenceError(
        what,
        "a finite number",
        "lower the learning rate, clip gradients, use float32 or set divergence.rewinds; the last"
        f" good checkpoint is {last_good}",
    )
    error.step = step
    error.skip_batches = skipped_batches + step - (kept[-1] if kept else 0)
    return error


def explain_divergence(context: RunContext, error: DivergenceError) -> DivergenceError:
    """Runs the steps since the last checkpoint again and names the first tensor that is not finite.

    Writes report/divergence-STEP.txt with statistics of all tensors of the failed step.
    """
    program = context.program
    start = restore_or_init(program, context.checkpoints, context.source)
    context.progress.print_line(
        f"{error.got}: running from step {start.step} again to find the cause"
    )
    state = start.state
    first = start.step + context.start.skipped_batches
    last = error.step - 1 + context.start.skipped_batches
    with context.open_feed(start.step) as feed:
        for number in range(first, last):
            drawn = program.at(number)
            batch = cut_to(on_device(next(feed)), drawn.task.train_preprocessing)
            state, _ = drawn.compiled(state, to_devices(batch, program.mesh), *context.frozen)
        batch = cut_to(on_device(next(feed)), program.at(last).task.train_preprocessing)
        batch = to_devices(batch, program.mesh)
    stats = examine_step(program.at(last), state, batch, *context.frozen)
    path = context.folder / "report" / f"divergence-{error.step}.txt"
    if is_first_host():
        write_report(path, error.step, stats)
    bad = first_bad(stats) or "all tensors finite"
    got = f"{error.got} (when run again: {bad}; see {path})"
    explained = DivergenceError(got, error.expected, error.fix)
    explained.step, explained.skip_batches = error.step, error.skip_batches
    return explained


def examine_step(
    program: Program, state: TrainState, batch: Batch, *frozen: Any
) -> list[TensorStats]:
    """Runs a step and returns statistics of its tensors, in the order of their computation.

    The tensors are: parameters, optimizer state, prepared batch, the model's intermediates layer by
    layer, loss, gradients from the last layer to the first, updated parameters, and metrics.
    """
    names: list[tuple[str, int]] = []

    def examine(state: TrainState, batch: Batch, *frozen: Any) -> list[tuple[jax.Array, jax.Array]]:
        found: list[tuple[jax.Array, jax.Array]] = []
        names.clear()

        def add(name: str, tensor: jax.Array) -> None:
            values = jnp.abs(tensor.astype(jnp.float32))
            finite = jnp.isfinite(values)
            names.append((name, tensor.size))
            largest = jnp.max(jnp.where(finite, values, 0.0), initial=0.0)
            found.append((jnp.sum(~finite), largest))

        def observe(kind: str, tree: Any) -> None:
            named = list(named_leaves(tree).items())
            # Gradients are computed from the last layer to the first.
            for name, leaf in reversed(named) if kind == "gradient" else named:
                if jnp.issubdtype(leaf.dtype, jnp.inexact):
                    add(f"{kind} {name}".strip(), leaf)
            if kind == "batch":
                for name, leaf in _intermediates(program, state, tree):
                    add(name, leaf)

        program.step_fn(state, batch, *frozen, observe=observe)
        return found

    replicated = NamedSharding(program.mesh, PartitionSpec())
    found = jax.device_get(jax.jit(examine, out_shardings=replicated)(state, batch, *frozen))
    return [
        TensorStats(name, size, int(not_finite), float(largest))
        for (name, size), (not_finite, largest) in zip(names, found, strict=True)
    ]


def first_bad(stats: list[TensorStats]) -> TensorStats | None:
    """Returns the first tensor with values that are not finite."""
    return next((row for row in stats if row.not_finite), None)


def write_report(path: Path, step: int, stats: list[TensorStats]) -> None:
    """Writes a table of all tensors of a step, with the first bad one on top."""
    bad = first_bad(stats)
    top = "every tensor was finite when the step was run again" if bad is None else f"{bad}"
    lines = [f"step {step}, first bad tensor: {top}", "", "not finite   largest finite   tensor"]
    lines += [f"{row.not_finite:>10,}   {row.largest:>14.4g}   {row.name}" for row in stats]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def _intermediates(
    program: Program, state: TrainState, batch: Batch
) -> list[tuple[str, jax.Array]]:
    """Returns the names and values of the model's intermediates, microbatch by microbatch."""
    parts = program.choice.microbatches
    key = dropout_key(program.config, state.step)
    cut = (batch, key)
    if parts > 1:
        cut = microbatches(batch, key, parts)
    model = nnx.merge(program.graphdef, state.params)
    names = tuple(name for name in model.intermediates if name not in _LEFT_OUT)
    rows: list[tuple[str, jax.Array]] = []
    for part in range(parts):
        (microbatch, key), suffix = cut, ""
        if parts > 1:
            microbatch, key = jax.tree.map(lambda leaf, part=part: leaf[part], cut)
            suffix = f" of microbatch {part}"
        logits, found = program.task.forward(
            state.params, microbatch, key=key, return_intermediates=names
        )
        blocks = [name for name in _OF_BLOCKS if name in found]
        before = [name for name in names if name not in (*blocks, *_AFTER_BLOCKS)]
        rows += [(name + suffix, found[name]) for name in before]
        for layer in range(len(found[blocks[0]]) if blocks else 0):
            rows += [(f"{name} of layer {layer}{suffix}", found[name][layer]) for name in blocks]
        after = dict.fromkeys((*_AFTER_BLOCKS, *found))
        rows += [
            (name + suffix, found[name])
            for name in after
            if name in found and name not in (*blocks, *before)
        ]
        rows.append(("logits" + suffix, logits))
    return rows
