"""A small sweep with every kind of entry."""

from pathlib import Path

from vit_jax.sweep import Job, Selection, vary

TINY = str(Path(__file__).parents[1] / "e2e" / "tiny.py")
DEV = {"data.train_split": "train[:80%]", "evaluation.splits": {"dev": "train[80%:]"}}
TEST = {"data.train_split": "train", "evaluation.splits": {"test": "test"}}


def get_sweep(which="all"):
    yield TINY, {"optimizer.learning_rate": 0.5}
    yield Job(TINY, {"optimizer.learning_rate": 0.1}, name="pretrain", labels={"model": "tiny"})
    if which == "two":
        return
    yield Selection(
        "pets",
        [
            Job(TINY, {**DEV, **o, "init_from": "job:pretrain"})
            for o in vary("optimizer.learning_rate", [0.001, 0.02, 0.03])
        ],
        metric="eval/dev/accuracy_top1",
        seeds=(0, 2),
        final_overrides=TEST,
    )
