"""What attention can learn that convolution cannot: three tasks whose data are made.

small   (default) rings of 32 tokens and an 8 x 8 torus, sequences of 8, 24 and 48 tokens, three
        layers, three seeds; about 20 minutes on one CPU core
full    rings of 128 tokens, a 16 x 16 torus, sequences of 8 to 512 tokens, five seeds, more heads,
        steps and examples; for a GPU

    python -m vit_jax sweep --sweep=experiments/synthetic_attention/sweep.py
        --workdir=runs/synthetic --at_once=2
"""

import itertools
from collections.abc import Iterator
from typing import Any

from vit_jax.config.file import parse_arg
from vit_jax.sweep import Job

_ACCURACY = "eval/test/accuracy_top1"
_MODELS = {"attention": "attention", "cnn": "CNN", "dilated_cnn": "dilated CNN"}
_TASKS = {"association": "association", "double_if": "double if"}
_LENGTHS = {"small": (8, 24, 48), "full": (8, 16, 32, 64, 128, 256, 512)}
_SEEDS = {"small": range(3), "full": range(5)}
# Of a kernel with five taps.
_HEADS = {"small": (1, 3, 5, 7), "full": (1, 2, 3, 4, 5, 6, 8, 10)}
_KERNELS = {"full": "matrices of full rank", "low": "matrices of rank 2"}

REPORT = {
    "title": "What attention can learn that convolution cannot",
    "question": "Does a position bias recover a convolution? What do CNNs of equal size miss?",
    "tables": [
        {"metric": _ACCURACY, "rows": "model", "columns": "dataset+tokens",
         "title": "Accuracy on sequences of the length trained on"},
        {"metric": "eval/test/relative_error", "rows": "kernel", "columns": "convolution.heads",
         "title": "Error of a learned convolution, share of the output's variance, by heads"},
        {"metric": "kernel/attention_on_taps", "rows": "kernel", "columns": "convolution.heads",
         "title": "Share of the attention that lies on the kernel's taps, by heads"},
        {"metric": "kernel/taps_found", "rows": "kernel", "columns": "convolution.heads",
         "title": "Share of the offsets with the most attention that are taps, by heads"},
        {"metric": "kernel/heads_on_one_tap", "rows": "kernel", "columns": "convolution.heads",
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
         "where": {"dataset": "convolution"},
         "title": "Convolution of five taps: error against heads"},
    ],
    "curves": [
        *({"panel": "tokens", "where": {"dataset": task}, "title": task.capitalize()}
          for task in _TASKS.values()),
        {"series": "convolution.heads", "panel": "kernel", "where": {"tokens": ""},
         "title": "Convolution"},
    ],
}  # fmt: skip


def get_sweep(arg: str = "") -> Iterator[Job]:
    """Returns the jobs; ARG is `small` (default) or `full`."""
    scale = parse_arg(arg, scale=("small", "full"))["scale"]
    yield from _convolutions(scale)
    lengths = _LENGTHS[scale]
    network = {"small": {"network.layers": 3}, "full": {"network.layers": 4, "network.width": 64,
               "network.mlp_dim": 128}}[scale]  # fmt: skip
    steps = {"small": 800, "full": 5000}[scale]
    batch_size = {"small": 64, "full": 256}[scale]
    for task, model, length in itertools.product(_TASKS, _MODELS, lengths):
        labels = {
            "model": _MODELS[model],
            "dataset": _TASKS[task],
            "tokens": f"{length} tokens",
            "longest": "yes" if length == lengths[-1] else "no",
        }
        settings = network | {"training.steps": steps, "training.batch_size": batch_size}
        for seed in _SEEDS[scale]:
            name = f"{task}/{model}/{length}/seed{seed}"
            yield _job(name, task, labels, seed, settings, model=model, length=length)


def _convolutions(scale: str) -> Iterator[Job]:
    """Rings with five taps, scattered; one torus with all taps of a 3 x 3 kernel."""
    length, span = {"small": (32, 12), "full": (128, 48)}[scale]
    side = {"small": 8, "full": 16}[scale]
    training = {
        "training.steps": {"small": 1000, "full": 10000}[scale],
        # Logits have a long way to go, and Adam makes steps of this size.
        "training.learning_rate": 0.03,
    }
    ring = training | {"convolution.span": span}
    torus = training | {"convolution.grid": f"{side},{side}", "convolution.span": 1,
                        "convolution.taps": 9, "convolution.heads": 9,
                        "convolution.rank": 2}  # fmt: skip
    for seed in _SEEDS[scale]:
        for heads in _HEADS[scale]:
            for kernel in ("full", "low") if heads == 5 else ("full",):
                rank = {"convolution.rank": 2} if kernel == "low" else {}
                name = f"convolution/ring/{kernel}_rank/{heads}_heads/seed{seed}"
                labels = {"model": "attention", "dataset": "convolution",
                          "kernel": f"5 taps, {_KERNELS[kernel]}"}  # fmt: skip
                settings = ring | rank | {"convolution.heads": heads}
                yield _job(name, "convolution", labels, seed, settings, length=length)
        labels = {"model": "attention", "dataset": "convolution on a torus",
                  "kernel": f"3 x 3 taps, {_KERNELS['low']}"}  # fmt: skip
        name = f"convolution/torus/seed{seed}"
        yield _job(name, "convolution", labels, seed, torus, length=side * side)


def _job(
    name: str, task: str, labels: dict[str, str], seed: int, settings: dict[str, Any], **flags: Any
) -> Job:
    arguments = [f"--task={task}", f"--seed={seed}"]
    arguments += [f"--{key}={value}" for key, value in flags.items()]
    arguments += [f"--config.{key}={value}" for key, value in settings.items()]
    return Job(None, command="synthetic", arguments=tuple(arguments), name=name, labels=labels)
