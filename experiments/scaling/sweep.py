"""A scaling law on a laptop: loss by parameters and examples, for three families and three tasks.

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/scaling/sweep.py:SCALE,STAGE
        --workdir=runs/scaling --at_once=2

SCALE   small   (default) 3,000 to 48,000 examples, one seed; for two CPU cores
        gpu     48,000 to 768,000 examples, three seeds
STAGE   rates   (default) chooses the learning rate of each family and task at size Nano
        check   tries half, once and twice the carried rates at Pico and Micro
        main    all sizes and budgets with the rates of RATES, which `rates` chose

The rate of another size is the chosen one times the inverse ratio of the widths, as for hidden
matrices with Adam (arXiv:2203.03466, Table 8). Each budget is a run of its own with a cosine
schedule. At scale small a run sees an example once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from vit_jax.config.file import parse_arg
from vit_jax.sweep import Job, Selection, folder_name, vary

TASKS = {"same": "rendered:same", "mixture": "rendered:mixture@0.5", "cifar10": "cifar10"}
# Family -> (pattern of the model's name, size -> width of the first layer).
_VIT_WIDTHS = {"Pico": 16, "Nano": 32, "Micro": 64, "Mini": 128}
FAMILIES = {
    "ViT": ("ViT-{}/4", _VIT_WIDTHS),
    "hybrid": ("R+ViT-{}/4", _VIT_WIDTHS),
    "ResNet": ("BiT-R-{}", {"Pico": 3, "Nano": 6, "Micro": 12, "Mini": 32}),
}
BUDGETS = {
    "small": (3_000, 6_000, 12_000, 24_000, 48_000),
    "gpu": (48_000, 96_000, 192_000, 384_000, 768_000),
}
SEEDS = {"small": (0,), "gpu": (0, 1, 2)}
TRIED_RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
CHECKED_SIZES, CHECKED_FACTORS = ("Pico", "Micro"), (0.5, 1.0, 2.0)
# Scale -> task -> family -> the rate at size Nano that `rates` chose.
RATES: dict[str, dict[str, dict[str, float]]] = {"small": {}, "gpu": {}}
LOSS, ACCURACY = "eval/dev/loss", "eval/dev/accuracy_top1"


def get_sweep(arg: str = "") -> Iterator[Job | Selection]:
    """Returns the jobs; for ARG see above."""
    chosen = _parse(arg)
    scale = chosen["scale"]
    if chosen["stage"] == "rates":
        for task, family in _pairs():
            yield _search(scale, task, family, "Nano", TRIED_RATES)
    elif chosen["stage"] == "check":
        for task, family in _pairs():
            for size in CHECKED_SIZES:
                rate = carried_rate(RATES[scale][task][family], family, size)
                tried = [factor * rate for factor in CHECKED_FACTORS]
                yield _search(scale, task, family, size, tried)
    else:
        yield from _main(scale)


def get_report(arg: str = "") -> dict[str, Any]:
    """Returns the tables, plots and fits of the report; for ARG see above."""
    if _parse(arg)["stage"] != "main":
        return {"tables": [{"metric": LOSS, "rows": "model+rate", "columns": "task"}]}
    return {
        "title": "A scaling law on a laptop",
        "question": "How does the loss fall with parameters and examples, and for which family?",
        "tables": [
            {"metric": LOSS, "rows": "model+examples", "columns": "task", "title": "Loss"},
            {"metric": ACCURACY, "rows": "model+examples", "columns": "task", "title": "Accuracy"},
        ],
        "plots": [
            {"x": "examples_seen", "y": LOSS, "series": "model", "panel": "task", "log_x": True}
        ],
        "curves": [],
        "fits": [{"scaling": True, "metric": LOSS, "panel": "task", "against": "ResNet"}],
    }


def carried_rate(rate: float, family: str, size: str) -> float:
    """Returns the learning rate of a size for that of size Nano.

    >>> carried_rate(2e-3, "ViT", "Pico"), carried_rate(2e-3, "ResNet", "Micro")
    (0.004, 0.001)
    """
    _, widths = FAMILIES[family]
    return rate * widths["Nano"] / widths[size]


def _parse(arg: str) -> dict[str, Any]:
    return parse_arg(arg, scale=("small", "gpu"), stage=("rates", "check", "main"))


def _pairs() -> Iterator[tuple[str, str]]:
    return ((task, family) for task in TASKS for family in FAMILIES)


def _settings(task: str, examples: int) -> dict[str, Any]:
    rendered = TASKS[task].startswith("rendered:")
    return {
        "data.name": TASKS[task],
        "data.train_split": "train[:1000000]" if rendered else "train[:96%]",
        "data.augment.crop": "resize",
        "data.augment.flip": not rendered,
        "evaluation.splits": {"dev": "test[:2000]" if rendered else "train[96%:]"},
        "evaluation.interval_examples": examples,
        "checkpoint.interval_examples": examples,
        "optimizer.schedule.warmup_examples": examples // 10,
        "train_examples": examples,
    }


def _search(scale: str, task: str, family: str, size: str, rates: Sequence[float]) -> Selection:
    model = FAMILIES[family][0].format(size)
    settings = _settings(task, BUDGETS[scale][2])
    return Selection(
        f"{folder_name(task)}/{folder_name(model)}",
        [
            (f"configs/cifar10_small.py:{model}", {**settings, **rate})
            for rate in vary("optimizer.learning_rate", rates)
        ],
        LOSS,
        mode="min",
        seeds=(),
        labels={"family": family, "model": model, "task": task},
    )


def _main(scale: str) -> Iterator[Job]:
    for task, family in _pairs():
        name, widths = FAMILIES[family]
        for size in widths:
            model, rate = name.format(size), RATES[scale][task][family]
            for examples in BUDGETS[scale]:
                for seed in SEEDS[scale]:
                    yield Job(
                        f"configs/cifar10_small.py:{model}",
                        {
                            **_settings(task, examples),
                            "optimizer.learning_rate": carried_rate(rate, family, size),
                            "seed": seed,
                        },
                        name=f"{folder_name(task)}/{folder_name(model)}/{examples}/seed{seed}",
                        labels={"family": family, "model": model, "task": task,
                                "examples": str(examples)},
                        stage="final",
                    )  # fmt: skip
