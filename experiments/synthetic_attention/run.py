"""Trains attention and CNNs on synthetic tasks and writes run folders that `report` reads.

    python -m experiments.synthetic_attention.run runs/synthetic
    python -m experiments.synthetic_attention.run runs/synthetic --only='association/*/8/*'
    python -m vit_jax report runs/synthetic

small   (default) rings of 32 tokens and an 8 x 8 torus, sequences of 8, 24 and 48 tokens, three
        models, three seeds; about 20 minutes on one CPU core
full    rings of 128 tokens, a 16 x 16 torus, sequences of 8 to 512 tokens, five seeds, more heads,
        steps and examples; for a GPU

Runs that are finished are skipped, so the same command resumes.
"""

import argparse
import csv
import dataclasses
import fnmatch
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array

from experiments.synthetic_attention import tasks
from experiments.synthetic_attention.models import (
    OffsetAttention,
    SequenceModel,
    Shape,
    count_parameters,
    reach,
)
from vit_jax.rng import stream
from vit_jax.run.environment import environment
from vit_jax.storage.files import write_json

# Tokens at a time when measuring: long sequences have many attention weights.
_MEASURED_TOKENS = 16_384
_TEST_EXAMPLES = 2048
_ACCURACY = "eval/test/accuracy_top1"
_MODELS = {"attention": "attention", "cnn": "CNN", "dilated_cnn": "dilated CNN"}
_TASKS = {"association": "association", "double_if": "double if"}
_KERNELS = {"full": "matrices of full rank", "low": "matrices of rank 2"}

# The error of one kernel and number of heads varies a thousand times as much as that of another.
_OF_KERNELS = {"rows": "kernel", "columns": "convolution.heads", "pool": "kernel+convolution.heads"}

REPORT = {
    "families": {"attention": "ViT", "CNN": "ResNet", "dilated CNN": "ResNet"},
    "title": "What attention can learn that convolution cannot",
    "question": "Does a position bias recover a convolution? What do CNNs of equal size miss?",
    "tables": [
        {"metric": _ACCURACY, "rows": "model", "columns": "dataset+tokens",
         "title": "Accuracy on sequences of the length trained on"},
        {"metric": "eval/test/relative_error", **_OF_KERNELS,
         "title": "Error of a learned convolution, share of the output's variance, by heads"},
        {"metric": "kernel/share_of_attention_on_taps", **_OF_KERNELS,
         "title": "Share of the attention that lies on the kernel's taps, by heads"},
        {"metric": "kernel/share_of_taps_found", **_OF_KERNELS,
         "title": "Share of the offsets with the most attention that are taps, by heads"},
        {"metric": "kernel/share_of_heads_on_one_tap", **_OF_KERNELS,
         "title": "Share of heads with more than half of their attention on one tap, by heads"},
    ],
    "plots": [
        *({"x": "length", "y": _ACCURACY, "log_x": True, "where": {"dataset": task},
           "title": f"{task.capitalize()}: accuracy against the length"}
          for task in _TASKS.values()),
        *({"x": "distance", "y": "distance/{distance}/accuracy_top1", "log_x": True,
           "where": {"dataset": task, "longest": "yes"},
           "title": f"{task.capitalize()}: accuracy against the distance, longest sequences"}
          for task in _TASKS.values()),
        {"x": "convolution.heads", "y": "eval/test/relative_error", "series": "kernel",
         "where": {"dataset": "convolution"}, "pool": _OF_KERNELS["pool"], "log_y": True,
         "title": "Convolution of five taps: error against heads"},
    ],
    "curves": [
        *({"panel": "tokens", "where": {"dataset": task}, "title": task.capitalize()}
          for task in _TASKS.values()),
        {"series": "convolution.heads", "panel": "kernel", "where": {"tokens": ""},
         "title": "Convolution"},
    ],
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ConvolutionOptions:
    """A random convolution; grid None: a ring; rank None: matrices of full rank."""

    grid: tuple[int, int] | None = None
    features: int = 8
    taps: int = 5
    span: int = 2
    heads: int = 5
    rank: int | None = None


@dataclasses.dataclass(frozen=True)
class Training:
    """Adam with warmup and a cosine to 0; the loss is written every `interval_steps`."""

    steps: int = 1000
    batch_size: int = 128
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    clip_global_norm: float = 1.0
    interval_steps: int = 100


@dataclasses.dataclass(frozen=True)
class Run:
    """One run: its config.json, and the name and labels in its job.json."""

    name: str
    labels: dict[str, str]
    task: str
    length: int
    seed: int
    model: str = "attention"
    convolution: ConvolutionOptions = ConvolutionOptions()
    network: Shape = Shape()
    training: Training = Training()

    def config(self) -> dict[str, Any]:
        """Returns the content of config.json."""
        config = dataclasses.asdict(self)
        return {key: value for key, value in config.items() if key not in ("name", "labels")}


def list_runs(scale: str) -> list[Run]:
    """Returns the runs of a scale, "small" or "full"."""
    small = scale == "small"
    seeds = range(3 if small else 5)
    return [*_convolution_runs(small, seeds), *_sequence_runs(small, seeds)]


def _convolution_runs(small: bool, seeds: range) -> Iterator[Run]:
    """Yields runs on rings with five scattered taps and on a torus with a 3 x 3 kernel."""
    length, span, side = (32, 12, 8) if small else (128, 48, 16)
    all_heads = (1, 3, 5, 7) if small else (1, 2, 3, 4, 5, 6, 8, 10)
    # Logits must become large, and each step of Adam changes them by about this much.
    training = Training(steps=1000 if small else 10_000, learning_rate=0.03)
    for seed in seeds:
        for heads in all_heads:
            for kernel in ("full", "low") if heads == 5 else ("full",):
                labels = {
                    "model": "attention",
                    "dataset": "convolution",
                    "kernel": f"5 taps, {_KERNELS[kernel]}",
                }
                options = ConvolutionOptions(
                    span=span, heads=heads, rank=2 if kernel == "low" else None
                )
                name = f"convolution/ring/{kernel}_rank/{heads}_heads/seed{seed}"
                yield Run(
                    name,
                    labels,
                    "convolution",
                    length,
                    seed,
                    convolution=options,
                    training=training,
                )
        labels = {
            "model": "attention",
            "dataset": "convolution on a torus",
            "kernel": f"3 x 3 taps, {_KERNELS['low']}",
        }
        torus = ConvolutionOptions((side, side), span=1, taps=9, heads=9, rank=2)
        yield Run(
            f"convolution/torus/seed{seed}",
            labels,
            "convolution",
            side * side,
            seed,
            convolution=torus,
            training=training,
        )


def _sequence_runs(small: bool, seeds: range) -> Iterator[Run]:
    lengths = (8, 24, 48) if small else (8, 16, 32, 64, 128, 256, 512)
    network = Shape(layers=3) if small else Shape(layers=4, width=64, mlp_dim=128)
    training = Training(steps=800, batch_size=64) if small else Training(5000, 256)
    for task, model, length, seed in itertools.product(_TASKS, _MODELS, lengths, seeds):
        labels = {
            "model": _MODELS[model],
            "dataset": _TASKS[task],
            "tokens": f"{length} tokens",
            "longest": "yes" if length == lengths[-1] else "no",
        }
        name = f"{task}/{model}/{length}/seed{seed}"
        yield Run(name, labels, task, length, seed, model, network=network, training=training)


def build(run: Run) -> tuple[Any, Any]:
    """Returns the task and the model of a run."""
    rngs = nnx.Rngs(stream(run.seed, "init"))
    if run.task == "convolution":
        options = run.convolution
        grid, rank = options.grid or (1, run.length), options.rank or options.features
        task = tasks.Convolution.random(
            grid,
            features=options.features,
            taps=options.taps,
            span=options.span,
            rank=rank,
            seed=run.seed,
        )
        return task, OffsetAttention(grid, options.features, options.heads, rank, rngs=rngs)
    if run.task == "association":
        matrix = jax.random.orthogonal(stream(run.seed, "association"), 8)
        task = tasks.Association(matrix, run.length)
    else:
        task = tasks.DoubleIf(4, run.length)
    return task, SequenceModel(run.model, task.inputs, task.classes, run.network, rngs=rngs)


def train(
    model: nnx.Module,
    draw: Callable[[Array, int], Any],
    loss_fn: Callable[[Any, Any], Array],
    training: Training,
    seed: int,
) -> Iterator[tuple[int, float]]:
    """Trains a model in place.

    Args:
        model: whose parameters are trained.
        draw: (key, number of examples) -> batch.
        loss_fn: (model, batch) -> loss.
        training: steps, batch size, optimizer.
        seed: of the examples.

    Yields:
        (steps made, mean loss since the last time), every `interval_steps`.
    """
    rate = optax.warmup_cosine_decay_schedule(
        0.0, training.learning_rate, training.warmup_steps, training.steps
    )
    clip = optax.clip_by_global_norm(training.clip_global_norm)
    optimizer = optax.chain(clip, optax.adam(rate))
    graph, params = nnx.split(model, nnx.Param)

    def update(carry: tuple[Any, Any], step: Array) -> tuple[tuple[Any, Any], Array]:
        params, state = carry
        batch = draw(stream(seed, "examples", step), training.batch_size)
        loss, gradient = jax.value_and_grad(lambda p: loss_fn(nnx.merge(graph, p), batch))(params)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam mixes types.
            updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), loss

    @jax.jit
    def interval(carry: tuple[Any, Any], steps: Array) -> tuple[tuple[Any, Any], Array]:
        carry, losses = jax.lax.scan(update, carry, steps)
        return carry, losses.mean()

    carry = (params, optimizer.init(params))
    for start in range(0, training.steps, training.interval_steps):
        end = min(start + training.interval_steps, training.steps)
        carry, loss = interval(carry, jnp.arange(start, end))
        nnx.update(model, carry[0])
        yield end, float(loss)


def measure(run: Run, task: Any, model: Any) -> dict[str, float]:
    """Returns the figures of a model on test examples."""
    rows = min(_TEST_EXAMPLES, max(1, _MEASURED_TOKENS // run.length))
    numbers = jnp.arange(-(-_TEST_EXAMPLES // rows))
    graph, params = nnx.split(model, nnx.Param)

    @jax.jit
    def batch_means(params: Any, distance: Array, number: Array) -> Array:
        model = nnx.merge(graph, params)

        def one(place: tuple[Array, Array]) -> Array:
            key = jax.random.fold_in(stream(run.seed, "distance", place[1]), place[0])
            return tasks.accuracy(model, task.draw_at(key, rows, place[0]))

        return jax.lax.map(one, (distance, number))

    def mean(figure: Callable[[Any, Any], Array]) -> float:
        @jax.jit
        def batches(params: Any) -> Array:
            model = nnx.merge(graph, params)

            def one(number: Array) -> Array:
                return figure(model, task.draw(stream(run.seed, "test", number), rows))

            return jax.lax.map(one, numbers).mean()

        return float(batches(params))

    if run.task == "convolution":
        shape = tasks.recovery(np.asarray(jax.nn.softmax(model.bias[...])), task.taps)
        return {"eval/test/relative_error": mean(tasks.relative_error)} | {
            f"kernel/{name}": value for name, value in shape.items()
        }
    places = tasks.distances(run.length)
    found = batch_means(
        params, jnp.repeat(jnp.asarray(places), len(numbers)), jnp.tile(numbers, len(places))
    )
    means = np.asarray(found).reshape(len(places), -1).mean(1)
    return {
        _ACCURACY: mean(tasks.accuracy),
        **{f"distance/{d}/accuracy_top1": float(m) for d, m in zip(places, means, strict=True)},
        "reach": reach(run.model, run.network, run.length),
    }


def execute(run: Run, folder: Path) -> dict[str, Any]:
    """Trains and measures a run, writes its folder and returns its result."""
    begin = time.perf_counter()
    write_json(folder / "config.json", {"command": "synthetic", **run.config()})
    write_json(folder / "job.json", {"name": run.name, "labels": run.labels})
    write_json(folder / "env.json", environment())
    task, model = build(run)
    if run.task != "convolution":
        write_json(folder / "classes.json", {"names": [str(i) for i in range(task.classes)]})
    loss_fn = tasks.squared_error if run.task == "convolution" else tasks.cross_entropy
    with (folder / "metrics.jsonl").open("w") as file:

        def write(step: int, values: dict[str, float]) -> None:
            row = {"step": step, "time": time.time(), **values}
            if not all(map(math.isfinite, row.values())):
                raise SystemExit(f"{run.name}: step {step}: a figure is not finite: {values}")
            file.write(json.dumps(row) + "\n")

        for step, loss in train(model, task.draw, loss_fn, run.training, run.seed):
            write(step, {"train/loss": loss})
        figures = measure(run, task, model)
        write(run.training.steps, {key: value for key, value in figures.items() if "/" in key})
    if run.task == "convolution":
        title = f"attention, {run.convolution.heads} heads"
        draw_attention(task, np.asarray(jax.nn.softmax(model.bias[...])), folder / "report", title)
    result = {
        "step": run.training.steps,
        **figures,
        "parameters": count_parameters(model),
        "wall_time_s": time.perf_counter() - begin,
    }
    write_json(folder / "result.json", result)
    return result


def draw_attention(task: tasks.Convolution, weights: np.ndarray, folder: Path, title: str) -> None:
    """Writes attention.png and attention.csv: the attention of each head to each offset.

    Args:
        task: the convolution; its taps are marked.
        weights: [heads, offsets].
        folder: created if missing.
        title: of the picture.
    """
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    grid = np.array(task.grid)
    # Offsets reach at most halfway around the torus.
    half = (grid - 1) // 2
    offsets = (np.indices(task.grid).reshape(2, -1).T + half) % grid - half
    order = np.lexsort((offsets[:, 1], offsets[:, 0]))
    heads = np.argsort((offsets @ [1000, 1])[weights.argmax(1)], kind="stable")
    ordered = weights[heads][:, order].reshape(-1, *task.grid)
    top, left = offsets.min(0) - 0.5
    if task.grid[0] == 1:
        figure = Figure(
            figsize=(min(3 + 0.13 * grid[1], 10), 1.6 + 0.28 * len(heads)), layout="constrained"
        )
        panels = [figure.subplots()]
        ordered, shape = ordered.transpose(1, 0, 2), (len(heads) - 0.5, -0.5)
        panels[0].set(xlabel="offset, tokens (squares: taps of the kernel)", ylabel="head")
        marks = [(x, -0.5) for x in task.offsets[:, 1]]
    else:
        columns = min(len(heads), 5)
        rows = -(-len(heads) // columns)
        figure = Figure(figsize=(1.9 * columns, 1.9 * rows + 0.45), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flat
        shape = (top + grid[0], top)
        marks = [(x, y) for y, x in task.offsets]
    image: Any = None
    for panel, shown in itertools.zip_longest(panels, ordered):
        if shown is None:
            panel.remove()
            continue
        image = panel.imshow(
            shown,
            cmap="Blues",
            vmin=0,
            vmax=1,
            aspect="auto",
            extent=(left, left + grid[1], *shape),
        )
        panel.plot(
            *zip(*marks, strict=True),
            "s",
            markerfacecolor="none",
            markeredgecolor="#ab5200",
            clip_on=False,
        )
    figure.suptitle(f"{title} (squares: taps of the kernel)", fontweight="bold")
    figure.colorbar(image, ax=figure.axes, label="attention", shrink=0.8)
    figure.savefig(folder / "attention.png", dpi=160)
    with (folder / "attention.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["head", "rows", "columns", "in_kernel", "attention"])
        for (head, place), weight in np.ndenumerate(weights):
            writer.writerow([head, *offsets[place], place in task.taps, f"{weight:.6g}"])


def main() -> None:
    """Executes the runs that are not finished."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="folder of the runs")
    parser.add_argument("--scale", choices=("small", "full"), default="small")
    parser.add_argument("--only", default="*", help="pattern of run names")
    args = parser.parse_args()
    runs = list_runs(args.scale)
    sweep = f"experiments/synthetic_attention/run.py --scale={args.scale}"
    names = [run.name for run in runs]
    write_json(args.folder / "sweep.json", {"sweep": sweep, "jobs": names, "report": REPORT})
    runs = [run for run in runs if fnmatch.fnmatch(run.name, args.only)]
    for number, run in enumerate(runs, start=1):
        folder = args.folder / "jobs" / run.name
        if not (folder / "result.json").is_file():
            result = execute(run, folder)
            print(f"{number}/{len(runs)} {run.name}: {result['wall_time_s']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
