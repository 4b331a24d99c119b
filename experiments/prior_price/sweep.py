"""How many more examples does a model need whose prior is wrong? On rendered images.

    python -m vit_jax sweep --sweep=experiments/prior_price/sweep.py:SCALE,STAGE
        --workdir=runs/prior_price --at_once=2

SCALE   small   (default) Nano models, 100,000 examples, five seeds; for two CPU cores
        gpu     Micro models, 10 million examples
STAGE   rates   (default) chooses a learning rate for each model and task with one seed
        main    the runs with the rates of RATES, which `rates` chose

Each example is a new image: a run sees it once, so the number of examples is also the length of
training, and one run shows the accuracy at every number of examples. The learning rate is constant
after the warmup, so that no point of the curve has a schedule of its own.

The tasks are those of `data.renderer`: a local texture anywhere (convolution's prior is right), two
distant glyphs that may be the same (attention's is), the place of a glyph (global pooling discards
it), and mixtures of the first two. price.py reads the runs.
"""

from collections.abc import Iterator
from typing import Any

from vit_jax.config.file import parse_arg
from vit_jax.sweep import Job, Selection, folder_name, vary

SHARES = (0.25, 0.5, 0.75)
"""Of textures in a mixture; in the other images two glyphs are compared."""
TASKS = {
    "texture": "rendered:texture",
    "same": "rendered:same",
    "place": "rendered:place",
    **{f"mixture-{share:g}": f"rendered:mixture@{share:g}" for share in SHARES},
}
MODELS = {
    "small": ("ViT-Nano/4", "R+ViT-Nano/4", "BiT-R-Nano"),
    "gpu": ("ViT-Micro/4", "R+ViT-Micro/4", "BiT-R-Micro"),
}
# Examples of a run, and examples between evaluations.
BUDGETS = {"small": (100_000, 4_000), "gpu": (10_000_000, 50_000)}
SEEDS = (0, 1, 2, 3, 4)
TRIED_RATES = (5e-4, 1e-3, 2e-3, 4e-3)
# Scale -> task -> model -> the rate that `rates` chose.
RATES: dict[str, dict[str, dict[str, float]]] = {"small": {}, "gpu": {}}
DEV = "eval/dev/accuracy_top1"


def get_sweep(arg: str = "") -> Iterator[Job | Selection]:
    """Returns the jobs; for ARG see above."""
    chosen = _parse(arg)
    make = _choose_rates if chosen["stage"] == "rates" else _main
    return make(chosen["scale"])


def get_report(arg: str = "") -> dict[str, Any]:
    """Returns the tables and plots of the report; for ARG see above."""
    del arg
    curve = {"series": "model", "panel": "task"}
    return {
        "title": "The data price of a missing prior",
        "question": "How many more examples does a model need whose prior is wrong?",
        "tables": [{"metric": DEV, "rows": "model", "columns": "task"}],
        "plots": [{"x": "task", "y": DEV, "series": "model", "title": "Accuracy at the end"}],
        "curves": [{**curve, "title": "Accuracy by examples"}],
    }


def _parse(arg: str) -> dict[str, Any]:
    return parse_arg(arg, scale=("small", "gpu"), stage=("rates", "main"))


def _settings(scale: str, task: str) -> dict[str, Any]:
    examples, interval = BUDGETS[scale]
    return {
        "data.name": TASKS[task],
        "data.train_split": f"train[:{examples}]",
        "data.augment.crop": "resize",
        "data.augment.flip": False,
        "optimizer.schedule.decay": "constant",
        "accumulation_steps": 1,
        "train_examples": examples,
        "evaluation.splits": {"dev": "test[:2000]"},
        "evaluation.interval_examples": interval,
        "checkpoint.interval_examples": examples,
    }


def _choose_rates(scale: str) -> Iterator[Selection]:
    for task in TASKS:
        for model in MODELS[scale]:
            yield Selection(
                f"{folder_name(task)}/{folder_name(model)}",
                [
                    (f"configs/cifar10_small.py:{model}", {**_settings(scale, task), **rate})
                    for rate in vary("optimizer.learning_rate", TRIED_RATES)
                ],
                DEV,
                seeds=(),
                labels={"model": model, "task": task},
            )


def _main(scale: str) -> Iterator[Job]:
    for task in TASKS:
        for model in MODELS[scale]:
            for seed in SEEDS:
                yield Job(
                    f"configs/cifar10_small.py:{model}",
                    {
                        **_settings(scale, task),
                        "optimizer.learning_rate": RATES[scale][task][model],
                        "seed": seed,
                    },
                    name=f"{folder_name(task)}/{folder_name(model)}/seed{seed}",
                    labels={"model": model, "task": task},
                    stage="final",
                )
