"""Pretrains, selects a learning rate on a dev split and repeats the best: about a minute."""

from pathlib import Path

from vit_jax.sweep import Job, Selection, product, vary

TINY = str(Path(__file__).parents[1] / "e2e" / "tiny.py")
SLURM = {"timeout_min": 20, "cpus_per_task": 1}


def get_sweep(data_dir):
    common = {
        "data.data_dir": data_dir,
        "checkpoint.interval_steps": 10,
        "logging.interval_steps": 1,
        "evaluation.interval_steps": None,
    }
    yield Job(TINY, {**common, "train_steps": 80}, name="pretrain", labels={"model": "tiny"})
    short = {**common, "train_steps": 20, "init_from": "job:pretrain", "model.name": "auto"}
    dev = {"data.train_split": "train[:80%]", "evaluation.splits": {"dev": "train[80%:]"}}
    yield Selection(
        "digits",
        [
            (TINY, o)
            for o in product([{**short, **dev}], vary("optimizer.learning_rate", [1e-3, 1e-2]))
        ],
        metric="eval/dev/accuracy_top1",
        seeds=(1,),
        final_overrides={"data.train_split": "train", "evaluation.splits": {"test": "test"}},
        labels={"dataset": "digits"},
    )
