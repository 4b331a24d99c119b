"""Fine-tuning after masked patch prediction, after supervised pretraining, and from scratch.

small   (default) ViT-Micro/4 pretrained on CIFAR-10 at 32 pixels for four epochs, to predict the
        colours of masked patches or the labels; fine-tuned on a tenth of CIFAR-10's labels and on
        clothing_small, three seeds each; and the same training from scratch
paper   arXiv:2010.11929, section 4.6: ViT-B/16 pretrained on JFT with masked patches (1M steps of
        batch size 4096), on JFT with labels (7 epochs), or on ImageNet with labels (300 epochs,
        "from scratch"); each fine-tuned on ImageNet at 384 pixels with a learning rate of Table 4
        selected on a dev split

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/masked_patches/sweep.py
        --workdir=runs/masked_patches --at_once=2
"""

from collections.abc import Iterator

from vit_jax.config.file import parse_arg
from vit_jax.config.transfer_protocols import search_space
from vit_jax.sweep import Job, Selection

_FOLDER = "experiments/masked_patches"
REPORT = {
    "title": "Masked patch prediction",
    "question": "Does pretraining by predicting the colours of masked patches help fine-tuning?",
    "tables": [
        {
            "metric": "eval/test/accuracy_top1",
            "rows": "pretraining",
            "columns": "dataset",
            "where": {"kind": "fine-tuned"},
            "title": "Accuracy on the test split after fine-tuning",
        }
    ],
    "plots": [
        {
            "x": "pretraining",
            "y": "eval/test/accuracy_top1",
            "series": "pretraining",
            "panel": "dataset",
            "where": {"kind": "fine-tuned"},
            "title": "Accuracy on the test split after fine-tuning",
        }
    ],
    # Accuracies of 512 colours and of 10 classes need separate axes.
    "curves": [
        {
            "series": "pretraining",
            "where": {"kind": "fine-tuned", "stage": "final"},
            "title": "Fine-tuning",
        },
        {
            "series": "pretraining",
            "panel": "dataset+task",
            "where": {"kind": "pretraining"},
            "title": "Pretraining",
        },
    ],
}

SEEDS = (0, 1, 2)
MODEL = "ViT-Micro/4"
MASKED, SUPERVISED, SCRATCH = "masked patches", "supervised", "none (from scratch)"
# From scratch on as many images as pretraining and fine-tuning see together: four epochs of 50,000
# images and 300 steps of 64.
SCRATCH_LONG, LONG_STEPS = "none (equal images)", 3_424


def get_sweep(arg: str = "") -> Iterator[Job | Selection]:
    """Returns the jobs; ARG is `small` (default) or `paper`."""
    scale = parse_arg(arg, scale=("small", "paper"))["scale"]
    return _small() if scale == "small" else _paper()


def _labels(pretraining: str, dataset: str, kind: str) -> dict[str, str]:
    return {"pretraining": pretraining, "dataset": dataset, "kind": kind}


def _small() -> Iterator[Job]:
    yield Job(
        "configs/masked_patches.py:small",
        name="pretrain/masked",
        labels=_labels(MASKED, "cifar10", "pretraining"),
    )
    # The same images and number of steps, with labels.
    yield Job(
        "configs/masked_patches.py:small",
        {"task.name": "classification"},
        name="pretrain/supervised",
        labels=_labels(SUPERVISED, "cifar10", "pretraining"),
    )
    starts = {
        MASKED: {"init_from": "job:pretrain/masked"},
        SUPERVISED: {"init_from": "job:pretrain/supervised"},
        SCRATCH: {"model.name": MODEL},
        SCRATCH_LONG: {
            "model.name": MODEL,
            "train_steps": LONG_STEPS,
            "optimizer.schedule.warmup_steps": LONG_STEPS // 10,
            "checkpoint.interval_steps": LONG_STEPS,
        },
    }
    for dataset in ("cifar10", "clothing_small"):
        for pretraining, start in starts.items():
            if pretraining == SUPERVISED and dataset == "cifar10":
                continue  # Pretraining has seen the labels that fine-tuning leaves out.
            for seed in SEEDS:
                short = "equal-images" if start.get("train_steps") else pretraining.split()[0]
                yield Job(
                    f"{_FOLDER}/finetune.py:{dataset}",
                    {**start, "seed": seed},
                    name=f"finetune/{dataset}/{short}/seed{seed}",
                    labels=_labels(pretraining, dataset, "fine-tuned"),
                    stage="final",
                )


def _paper() -> Iterator[Job | Selection]:
    pretrained = {
        MASKED: ("pretrain/masked", "configs/masked_patches.py:jft"),
        SUPERVISED: ("pretrain/supervised", "configs/pretrain.py:jft,B/16"),
        SCRATCH: ("pretrain/imagenet", "configs/pretrain.py:imagenet2012,B/16"),
    }
    for pretraining, (name, config) in pretrained.items():
        dataset = "imagenet2012" if pretraining == SCRATCH else "jft"
        yield Job(config, name=name, labels=_labels(pretraining, dataset, "pretraining"))
        yield Selection(
            f"imagenet2012/{pretraining.split()[0]}",
            [
                ("configs/transfer.py:imagenet2012", {"init_from": f"job:{name}", **settings})
                for settings in search_space("imagenet2012", "paper")
            ],
            "eval/dev/accuracy_top1",
            seeds=SEEDS,
            final_config="configs/transfer.py:imagenet2012,test",
            labels=_labels(pretraining, "imagenet2012", "fine-tuned"),
        )
