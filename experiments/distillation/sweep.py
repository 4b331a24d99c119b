"""Does a small ViT learn more from a ResNet teacher than from labels alone?

A BiT-R-Nano learns CIFAR-10 from labels. ViT-Nano/4 students then learn from labels, with DeiT's
distillation token (arXiv:2012.12877), or as a "patient" student that only imitates the teacher on
mixed images (arXiv:2106.05237). Three seeds of each student, one teacher.

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/distillation/sweep.py
        --workdir=runs/distillation --at_once=2
"""

from collections.abc import Iterator
from typing import Any

from vit_jax.sweep import Job

TEACHER, STUDENT = "BiT-R-Nano", "ViT-Nano/4"
# Images that a student sees.
LENGTH = 25_600
SEEDS = (0, 1, 2)
_DISTILL = {"task.name": "distillation", "task.teacher": "job:teacher"}
_MIXUP = {"data.augment.mix.mixup_alpha": 1.0}
KINDS: dict[str, dict[str, Any]] = {
    "labels": {},
    "labels and mixup": _MIXUP,
    "DeiT token": {**_DISTILL, "task.targets": "hard", "task.token": True},
    "patient": {**_DISTILL, **_MIXUP, "task.targets": "soft", "task.alpha": 1.0},
}
_TEST = "eval/test/accuracy_top1"


def get_sweep() -> Iterator[Job]:
    """Returns the jobs."""
    yield Job(
        f"configs/cifar10_small.py:{TEACHER}",
        {"train_examples": 76_800, "optimizer.learning_rate": 4e-3},
        name="teacher",
        labels={"kind": "teacher", "student": TEACHER},
    )
    for seed in SEEDS:
        for kind, settings in KINDS.items():
            yield Job(
                f"configs/cifar10_small.py:{STUDENT}",
                {"train_examples": LENGTH, "seed": seed, **settings},
                name=f"{kind.replace(' ', '-')}/{LENGTH}/seed{seed}",
                labels={"kind": "student", "student": kind, "images seen": f"{LENGTH:,}"},
                stage="final",
            )


_STUDENTS = {"where": {"kind": "student"}}
REPORT = {
    "title": "Distillation",
    "question": "Does a small ViT learn more from a teacher than from labels alone?",
    "tables": [
        {
            "metric": _TEST,
            "rows": "student",
            "columns": "images seen",
            "against": "labels",
            "title": "Test accuracy of the students",
            **_STUDENTS,
        },
        {
            "metric": _TEST,
            "rows": "student",
            "columns": "dataset",
            "where": {"kind": "teacher"},
            "title": "Test accuracy of the teacher",
        },
    ],
    "plots": [{"x": "student", "y": _TEST, "title": "Test accuracy of the students", **_STUDENTS}],
    "curves": [],
}
