"""Probes after pretraining without labels, at equal images and at equal time.

A ViT-Nano/4 is pretrained on nine tenths of CIFAR-10 by masked patches, a masked autoencoder, DINO
or with labels; beside them an untrained one. Each is probed on a part of the other tenth, and those
of equal time are fine-tuned on it.

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/no_labels/sweep.py
        --workdir=runs/no_labels
"""

from collections.abc import Iterator

from vit_jax.sweep import Job

_FOLDER = "experiments/no_labels"
SEEDS = (0, 1, 2)
STEPS = 100
# Steps that take about as long as 100 of DINO; the README has the measured seconds.
EQUAL_TIME_STEPS = {"supervised": 330, "masked_patches": 300, "mae": 800}
NAMES = {
    "supervised": "supervised",
    "masked_patches": "masked patches",
    "mae": "masked autoencoder",
    "dino": "DINO",
}
_UNTRAINED = "untrained"
_FINETUNE = {
    "data.train_split": "train[:10%]",
    "train_steps": 100,
    "checkpoint.interval_steps": 100,
    "evaluation.splits.test": "test[:25%]",
}

_SHARED = {
    "rows": "pretraining+budget",
    "columns": "dataset",
    "against": f"{_UNTRAINED} · equal images",
}
REPORT = {
    "title": "Pretraining without labels",
    "question": "What do the features of a small ViT know after pretraining without labels?",
    "tables": [
        {**_SHARED, "metric": "linear_probe/cifar10/accuracy_top1", "title": "Linear probe"},
        {**_SHARED, "metric": "knn/cifar10/accuracy_top1", "title": "Nearest neighbours"},
        {
            **_SHARED,
            "metric": "eval/test/accuracy_top1",
            "where": {"kind": "fine-tuned"},
            "title": "Fine-tuning",
        },
    ],
    "plots": [
        {
            "x": "pretraining",
            "y": "linear_probe/cifar10/accuracy_top1",
            "series": "budget",
            "title": "Linear probe",
        }
    ],
    "curves": [],
}


def get_sweep(arg: str = "") -> Iterator[Job]:
    """Returns the jobs; there is no ARG."""
    del arg
    for seed in SEEDS:
        yield from _jobs(seed)


def _jobs(seed: int) -> Iterator[Job]:
    for budget in ("equal images", "equal time"):
        for task, name in NAMES.items():
            steps = STEPS if budget == "equal images" else EQUAL_TIME_STEPS.get(task)
            if steps is None:
                continue  # DINO is the measure of time.
            changes = {"train_steps": steps, "seed": seed}
            tuned = budget == "equal time" or task == "dino"
            yield from _job(task, name, budget, changes, seed, tuned=tuned)
    # One step at a learning rate that changes nothing.
    changes = {
        "train_steps": 1,
        "optimizer.learning_rate": 1e-9,
        "optimizer.schedule.warmup_examples": 0,
        "seed": seed,
    }
    yield from _job("supervised", _UNTRAINED, "equal images", changes, seed, tuned=True)


def _job(
    task: str, name: str, budget: str, changes: dict, seed: int, *, tuned: bool
) -> Iterator[Job]:
    """Yields pretraining with its probes, and fine-tuning after it if asked for."""
    where = f"{budget.split()[1]}/{name.split()[-1].lower()}/seed{seed}"
    labels = {"pretraining": name, "budget": budget}
    yield Job(
        f"{_FOLDER}/pretrain.py:{task}",
        changes,
        name=f"pretrain/{where}",
        labels={**labels, "kind": "pretraining"},
    )
    if not tuned:
        return
    yield Job(
        "experiments/masked_patches/finetune.py:cifar10",
        {"init_from": f"job:pretrain/{where}", "seed": seed, **_FINETUNE},
        name=f"finetune/{where}",
        labels={**labels, "kind": "fine-tuned"},
        stage="final",
    )
