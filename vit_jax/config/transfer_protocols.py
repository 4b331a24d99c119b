"""Fine-tuning protocols as tables: datasets, splits, steps, learning rates.

Settings are selected in the `dev` stage: it trains on the training split without its dev part and
evaluates on that part. Results come from the `test` stage: it trains on the whole training split
and evaluates on the test split. `search_space` returns the settings of a recipe's grid as overrides
for a sweep.
"""

import csv
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

Recipe = Literal["paper", "bit", "augreg"]
Stage = Literal["dev", "test"]
RECIPES: tuple[Recipe, ...] = ("paper", "bit", "augreg")
STAGES: tuple[Stage, ...] = ("dev", "test")

# In pixels. Source: arXiv:2010.11929, Table 4 and section 4.1 (all datasets, including VTAB).
IMAGE_SIZE = 384
BATCH_SIZE = 512
# Decay of Polyak averaging for the best ImageNet results. Source: arXiv:2010.11929, Table 2.
POLYAK_DECAY = 0.9999


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Length of a run and of its linear warmup, in steps."""

    steps: int
    warmup_steps: int


@dataclasses.dataclass(frozen=True)
class Task:
    """A dataset to fine-tune on. Steps and learning rates are from arXiv:2010.11929, Table 4."""

    data: str  # TFDS name with its config, without a version
    num_classes: int
    train_examples: int
    # Stage -> (training split, name of the evaluated split, that split).
    splits: Mapping[Stage, tuple[str, str, str]]
    steps: int
    learning_rates: tuple[float, ...]
    group: str  # of VTAB: "natural", "specialized" or "structured"; "" for other datasets
    label_key: str | None  # feature that holds the class, if there are several
    label_rule: str | None  # see `data.sources.label_rules`
    small_images: bool  # smaller than 96 x 96 pixels
    flip: bool  # a mirrored image keeps its class
    crop: bool  # a crop of the image keeps its class


_SMALL_GRID = (0.001, 0.003, 0.01, 0.03)


def percent_splits(percent: int) -> dict[Stage, tuple[str, str, str]]:
    """Returns the splits of both stages; dev is the last `percent` percent of "train".

    >>> percent_splits(2)["dev"]
    ('train[:98%]', 'dev', 'train[98%:]')
    """
    dev = (f"train[:{100 - percent}%]", "dev", f"train[{100 - percent}%:]")
    return {"dev": dev, "test": ("train", "test", "test")}


# Source: arXiv:2010.11929, Table 4; sizes: the TFDS catalogue. ImageNet is reported on its
# validation split. VTAB-1k, in the order of Table 9, selects with 800 training and 200 dev
# examples, then trains on all 1,000. Source: arXiv:1910.04867, section 2.2 and appendix A; TFDS
# configs as in github.com/google-research/task_adaptation. Labels of structured tasks are
# positions, counts and angles, which a flip or crop would change.
TABLE = Path(__file__).with_name("transfer_tasks.csv")


def _read_tasks() -> dict[str, Task]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row["name"]: _task(row) for row in csv.DictReader(file)}


def _task(row: Mapping[str, str]) -> Task:
    return Task(
        row["data"],
        int(row["num_classes"]),
        int(row["train_examples"]),
        {
            "dev": (row["dev_train"], "dev", row["dev"]),
            "test": (row["test_train"], "test", row["test"]),
        },
        int(row["steps"]),
        tuple(map(float, row["learning_rates"].split())),
        row["group"],
        row["label_key"] or None,
        row["label_rule"] or None,
        *(row[name] == "yes" for name in ("small_images", "flip", "crop")),
    )


TASKS = _read_tasks()
VTAB = {name: task for name, task in TASKS.items() if task.group}

# BiT-HyperRule: (applies below this number of training examples, schedule, mixup alpha). Source:
# arXiv:1912.11370, section 3.3; warmup: github.com/google-research/big_transfer.
_BIT_ROWS = (
    (20_000, Schedule(500, 100), 0.0),
    (500_000, Schedule(10_000, 500), 0.1),
    (float("inf"), Schedule(20_000, 500), 0.1),
)
BIT_LEARNING_RATE = 0.003
# Fractions of a run after which the learning rate falls to a tenth.
BIT_STEPS_AT = (0.3, 0.6, 0.9)
# Whether images are small -> side in pixels after resizing, side of the random crop.
BIT_SIDES = {True: (160, 128), False: (448, 384)}

# Source: arXiv:2106.10270, section 3.3 and appendix. CIFAR-10 and Flowers are not in the paper and
# use the settings of CIFAR-100 and Pets, which have a similar size.
_AUGREG_SMALL = ((0.001, 0.003, 0.01), (Schedule(500, 100), Schedule(2_500, 200)))
_AUGREG_MIDDLE = ((0.001, 0.003, 0.01), (Schedule(2_500, 200), Schedule(10_000, 500)))
_AUGREG: dict[str, tuple[tuple[float, ...], tuple[Schedule, ...]]] = {
    "imagenet2012": ((0.01, 0.03), (Schedule(20_000, 500),)),
    "cifar10": _AUGREG_MIDDLE,
    "cifar100": _AUGREG_MIDDLE,
    "pets": _AUGREG_SMALL,
    "flowers": _AUGREG_SMALL,
}
# Four learning rates and two lengths. The paper does not give the rates: these are from Table 4 of
# arXiv:2010.11929.
_AUGREG_VTAB = (_SMALL_GRID, (Schedule(500, 100), Schedule(2_500, 200)))

# Steps -> warmup steps. Source: arXiv:2106.10270 and its code. For other lengths, a tenth of the
# steps is used (ours).
_WARMUPS = {500: 100, 2_500: 200, 10_000: 500, 20_000: 500}


def warmup_of(steps: int) -> int:
    """Returns the warmup steps of a run with the paper's recipe.

    >>> warmup_of(10_000), warmup_of(1_000)
    (500, 100)
    """
    return _WARMUPS.get(steps, min(500, max(1, steps // 10)))


def bit_rule(train_examples: int) -> tuple[Schedule, float]:
    """Returns schedule and mixup alpha of BiT-HyperRule.

    >>> bit_rule(3_680)
    (Schedule(steps=500, warmup_steps=100), 0.0)
    """
    return next((s, mixup) for below, s, mixup in _BIT_ROWS if train_examples < below)


def learning_rates(name: str, recipe: Recipe) -> tuple[float, ...]:
    """Returns the learning rates of a recipe's grid for a task.

    >>> learning_rates("imagenet2012", "paper")
    (0.003, 0.01, 0.03, 0.06)
    """
    if recipe == "bit":
        return (BIT_LEARNING_RATE,)
    if recipe == "augreg":
        return _augreg(name)[0]
    return TASKS[name].learning_rates if name in TASKS else _SMALL_GRID


def schedules(name: str, recipe: Recipe, train_examples: int = 0) -> tuple[Schedule, ...]:
    """Returns the schedules of a recipe's grid for a task.

    For a dataset that is not in TASKS, `train_examples` is the size of its training split.
    """
    task = TASKS.get(name)
    if recipe == "bit":
        return (bit_rule(train_examples if task is None else task.train_examples)[0],)
    if recipe == "augreg":
        return _augreg(name)[1]
    steps = 500 if task is None else task.steps
    return (Schedule(steps, warmup_of(steps)),)


def _augreg(name: str) -> tuple[tuple[float, ...], tuple[Schedule, ...]]:
    return _AUGREG_VTAB if name in VTAB else _AUGREG.get(name, _AUGREG_SMALL)


def search_space(name: str, recipe: Recipe, train_examples: int = 0) -> list[dict[str, Any]]:
    """Returns the grid of a recipe for a task, as overrides of `configs/transfer.py`.

    >>> search_space("pets", "bit")[0]["optimizer.learning_rate"]
    0.003
    """
    return [
        {
            "optimizer.learning_rate": rate,
            "train_steps": schedule.steps,
            "optimizer.schedule.warmup_steps": schedule.warmup_steps,
        }
        for schedule in schedules(name, recipe, train_examples)
        for rate in learning_rates(name, recipe)
    ]
