"""Does a small ViT learn more from a ResNet teacher than from labels alone?

A BiT-R-Nano learns CIFAR-10 from labels. ViT-Nano/4 students then learn from labels, with DeiT's
distillation token (arXiv:2012.12877), or as a "patient" student that only imitates the teacher on
mixed images (arXiv:2106.05237). Three seeds of each student, one teacher. Students see 25,600
images, or 76,800 with the argument `long`.

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/distillation/sweep.py
        --workdir=runs/distillation --at_once=2
"""

from collections.abc import Iterator
from typing import Any

from vit_jax.config.file import parse_arg
from vit_jax.sweep import Job

TEACHER, STUDENT = "BiT-R-Nano", "ViT-Nano/4"
# Images that a student sees.
LENGTHS = {"short": 25_600, "long": 76_800}
SEEDS = (0, 1, 2)
_DISTILL = {"task": "distillation", "distillation.teacher": "job:teacher"}
_MIXUP = {"mixing.mixup_alpha": 1.0}
KINDS: dict[str, dict[str, Any]] = {
    "labels": {},
    "labels and mixup": _MIXUP,
    "DeiT token": {**_DISTILL, "distillation.targets": "hard", "distillation.token": True},
    "patient": {**_DISTILL, **_MIXUP, "distillation.targets": "soft", "distillation.alpha": 1.0},
}
_TEST = "eval/test/accuracy_top1"


def get_sweep(arg: str = "") -> Iterator[Job]:
    """Returns the jobs; ARG is `short` (default) or `long`."""
    length = LENGTHS[parse_arg(arg, length=tuple(LENGTHS))["length"]]
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
                {"train_examples": length, "seed": seed, **settings},
                name=f"{kind.replace(' ', '-')}/{length}/seed{seed}",
                labels={"kind": "student", "student": kind, "images seen": f"{length:,}"},
                stage="final",
            )


def get_report(arg: str = "") -> dict[str, Any]:
    """Returns the tables and plots of the report."""
    del arg
    students = {"where": {"kind": "student"}}
    return {
        "title": "Distillation",
        "question": "Does a small ViT learn more from a teacher than from labels alone?",
        "tables": [
            {
                "metric": _TEST,
                "rows": "student",
                "columns": "images seen",
                "against": "labels",
                "title": "Test accuracy of the students",
                **students,
            },
            {"metric": _TEST, "rows": "student", "columns": "dataset",
             "where": {"kind": "teacher"}, "title": "Test accuracy of the teacher"},
        ],
        "plots": [],
        "curves": [{"series": "student", **students}],
    }  # fmt: skip
