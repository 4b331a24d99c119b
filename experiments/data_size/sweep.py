"""How much data do a ViT, a hybrid and a ResNet need? arXiv:2010.11929, section 4.3.

    python -m vit_jax sweep --sweep=experiments/data_size/sweep.py:SCALE,REGULARISATION
        --workdir=DIR

SCALE           small     (default) 1, 3, 10, 30 and 100 % of CIFAR-10, models of 20 million
                          multiply-accumulates, two seeds; TFDS_DATA_DIR holds cifar10 and
                          sign_language_digits
                imagenet  the same fractions of ImageNet, models of 3.5 to 4.4 billion
                          multiply-accumulates
                paper     the paper's runs on JFT: Figure 4, or Figure 3 with `tuned`
REGULARISATION  same      (default) the same hyperparameters for all sizes, as in Figure 4
                tuned     weight decay, dropout and label smoothing selected on held-out examples
                          for each size, as in Figure 3

Except for Figure 3, every pretraining run keeps the weights with the best score on held-out
examples (early stopping).
"""

import itertools
from collections.abc import Iterator
from typing import Any

from vit_jax.config.file import parse_arg
from vit_jax.config.transfer_protocols import search_space
from vit_jax.sweep import Job, Selection, folder_name, product, vary

PERCENT = (1, 3, 10, 30, 100)
JFT_SIZES = ("jft_9m", "jft_30m", "jft_90m", "jft_303m")
SMALL_MODELS = ("ViT-Micro/4", "R+ViT-Micro/4", "BiT-R-Micro")
SMALL_SEEDS = (0, 1)
IMAGENET_MODELS = ("ViT-B/32", "R26+ViT-S/32", "BiT-R50x1")
IMAGENET_EPOCHS = 300
# Figure 4: model -> (row of Table 3, what differs). b/32 is B/32 with all hidden sizes halved.
PAPER_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT-L/16": ("L/16,7", {}),
    "ViT-L/32": ("L/32", {}),
    "ViT-B/32": ("B/32", {}),
    "ViT-b/32": (
        "B/32",
        {"model.width": 384, "model.mlp_dim": 1536, "model.representation_size": 384},
    ),
    "BiT-R50x1": ("R50x1", {}),
    "BiT-R152x2": ("R152x2", {}),
}
JFT_EXAMPLES = 303_000_000
# Figure 3: pretraining dataset -> models; some have no row in Table 3.
FIGURE_3 = {
    "imagenet2012": ("B/32", "B/16", "L/32", "L/16"),
    "imagenet21k": ("B/32", "B/16", "L/32", "L/16"),
    "jft": ("B/32", "B/16", "L/32", "L/16", "H/14", "R50x1", "R152x2"),
}
# The paper does not say which values it tried: these are ours.
WEIGHT_DECAYS, DROPOUTS, SMOOTHINGS = (0.03, 0.1, 0.3), (0.0, 0.1), (0.0, 0.1)


def get_sweep(arg: str = "") -> Iterator[Job | Selection]:
    """Returns the jobs; for ARG see above."""
    chosen = _parse(arg)
    tuned = chosen["regularisation"] == "tuned"
    if chosen["scale"] == "paper":
        return _figure_3() if tuned else _figure_4()
    return _imagenet(tuned) if chosen["scale"] == "imagenet" else _small(tuned)


def get_report(arg: str = "") -> dict[str, Any]:
    """Returns the tables and plots of the report; for ARG see above."""
    chosen = _parse(arg)
    fewshot = {"x": "train_examples", "y": "fewshot/{evaluated}/{shots}_shot/accuracy_top1"}
    fine_tuned = {"x": "pretrain_examples", "y": "eval/test/accuracy_top1"}
    titled = {
        "pretrained": "Accuracy on {}, by the number of its images in pretraining",
        "few-shot": "Few-shot on frozen features, by the size of the pretraining data",
        "fine-tuned": "Fine-tuned on {}, by the size of the pretraining data",
    }
    if chosen == {"scale": "paper", "regularisation": "tuned"}:
        # Three whole datasets; only final runs.
        wanted = [(fine_tuned, {"dataset": "imagenet2012", "stage": "final"}, "fine-tuned")]
    elif chosen["scale"] == "paper":
        wanted = [(fewshot, {}, "few-shot")]
    else:
        own, other = {
            "small": ("cifar10", "sign_language_digits"),
            "imagenet": ("imagenet2012", "pets"),
        }[chosen["scale"]]
        split = "test" if own == "cifar10" else "validation"
        on_own = {"x": "train_examples", "y": f"eval/{split}/accuracy_top1"}
        wanted = [
            (on_own, {"dataset": own}, "pretrained"),
            ({**fewshot, "panel": "evaluated+shots"}, {"dataset": own}, "few-shot"),
            (fine_tuned, {"dataset": other}, "fine-tuned"),
        ]
    plots, tables, curves = [], [], {}
    for plot, where, what in wanted:
        shared = {"where": where, "title": titled[what].format(where.get("dataset"))}
        rows = "+".join(filter(None, ("model", plot.get("panel"))))
        plots.append({**plot, **shared, "log_x": True})
        tables.append({"metric": plot["y"], "rows": rows, "columns": plot["x"], **shared})
        kind = "Fine-tuning" if what == "fine-tuned" else "Pretraining"
        asked = {"panel": f"dataset+{plot['x']}", "where": where, "title": kind}
        curves.setdefault(kind, asked)
    return {
        "title": "How much data?",
        "question": "Which of a ViT, a hybrid and a ResNet of equal cost is best, by the size of"
        " the data it was pretrained on?",
        "tables": tables,
        "plots": plots,
        "curves": list(curves.values()),
    }


def _parse(arg: str) -> dict[str, Any]:
    return parse_arg(arg, scale=("small", "imagenet", "paper"), regularisation=("same", "tuned"))


def _stopping(patience: int) -> dict[str, Any]:
    return {
        "early_stopping.metric": "eval/dev/accuracy_top1",
        "early_stopping.patience_evaluations": patience,
    }


def _regularisations(model: str) -> list[dict[str, Any]]:
    """Returns the settings to try for a model; ResNets have no dropout."""
    dropouts = [{}] if model.startswith("BiT") else vary("model.dropout", DROPOUTS)
    decays = vary("optimizer.weight_decay", WEIGHT_DECAYS)
    return product(decays, dropouts, vary("loss.label_smoothing", SMOOTHINGS))


def _pretraining(
    config: str,
    name: str,
    settings: dict[str, Any],
    labels: dict[str, str],
    *,
    seeds: tuple[int, ...],
    tuned: bool,
    final: dict[str, Any] | None = None,
) -> tuple[list[Job | Selection], dict[int, str]]:
    """Returns the jobs that pretrain a model on one dataset size, and seed -> name of the job.

    Args:
        config: config file and argument.
        name: of model and size, for the names of the jobs.
        settings: overrides.
        labels: for reports.
        seeds: one final run each.
        tuned: whether to select the regularisation first.
        final: overrides of the final runs after such a selection.
    """
    if not tuned:
        jobs = {seed: f"pretrain/{name}/seed{seed}" for seed in seeds}
        return [
            Job(config, {**settings, "seed": seed}, name=job, labels=labels, stage="final")
            for seed, job in jobs.items()
        ], jobs
    candidates = [(config, {**settings, **more}) for more in _regularisations(labels["model"])]
    choice = Selection(
        f"pretrain/{name}",
        candidates,
        "eval/dev/accuracy_top1",
        seeds=seeds,
        final_overrides=final or {},
        labels=labels,
    )
    return [choice], {seed: f"final/pretrain/{name}/seed{seed}" for seed in seeds}


def _small(tuned: bool) -> Iterator[Job | Selection]:
    settings = {
        "data.train_split": "train[:96%]",
        "train_examples": 76_800,
        "evaluation.splits": {"dev": "train[96%:]"},
        "evaluation.final_splits": {"test": "test"},
        "evaluation.interval_examples": 6_400,
        "fewshot.datasets": {
            "sign_language_digits": {"name": "sign_language_digits", "crop": "resize"}
        },
        "fewshot.shots": (5, 25),
        **_stopping(4),
    }
    # One seed after the other, so that an unfinished sweep has all sizes.
    groups = [SMALL_SEEDS] if tuned else [(seed,) for seed in SMALL_SEEDS]
    for seeds, percent, model in itertools.product(groups, PERCENT, SMALL_MODELS):
        name = f"{percent}_percent/{folder_name(model)}"
        jobs, names = _pretraining(
            f"configs/cifar10_small.py:{model}",
            name,
            {**settings, "data.subset.preset": f"{percent}_percent"},
            {"model": model, "dataset": "cifar10"},
            seeds=seeds,
            tuned=tuned,
        )
        yield from jobs
        for seed in seeds:
            yield _small_transfer(model, name, names[seed], seed)


def _small_transfer(model: str, name: str, pretrained: str, seed: int) -> Job:
    """Returns a fine-tuning job at 32 pixels with the paper's recipe.

    The learning rate is fixed. It is the one that experiments/transfer selected for the ViT and
    the hybrid; for the ResNet it selected 0.1.
    """
    settings = {
        "seed": seed,
        "init_from": f"job:{pretrained}",
        "data.name": "sign_language_digits",
        "data.image_size": 32,
        "data.global_batch_size": 64,
        "accumulation_steps": 2,
        "optimizer.learning_rate": 0.03,
        "optimizer.schedule.warmup_steps": 12,
        "train_steps": 120,
        "evaluation.interval_steps": None,
        "checkpoint.interval_steps": 120,
        "logging.interval_steps": 10,
    }
    labels = {"model": model, "dataset": "sign_language_digits"}
    return Job(
        "configs/transfer.py:tfds,test",
        settings,
        name=f"transfer/{name}/seed{seed}",
        labels=labels,
        stage="final",
    )


def _imagenet(tuned: bool) -> Iterator[Job | Selection]:
    settings = {
        "train_epochs": None,
        "train_examples": IMAGENET_EPOCHS * 1_281_167,
        "evaluation.splits": {"dev": "train[99%:]"},
        "evaluation.final_splits": {"validation": "validation"},
        "evaluation.interval_epochs": None,
        "evaluation.interval_steps": 1_000,
        "fewshot.datasets": {
            "pets": {"name": "oxford_iiit_pet"},
            "cifar100": {"name": "cifar100"},
        },
        **_stopping(20),
    }
    for percent, model in ((p, m) for p in PERCENT for m in IMAGENET_MODELS):
        name = f"{percent}_percent/{folder_name(model)}"
        own: dict[str, Any] = {"model.name": model, "data.subset.preset": f"{percent}_percent"}
        labels = {"model": model, "dataset": "imagenet2012"}
        jobs, names = _pretraining(
            "configs/pretrain.py:imagenet2012,B/32",
            name,
            {**settings, **own, "model.representation_size": None},
            labels,
            seeds=(0, 1, 2),
            tuned=tuned,
        )
        yield from jobs
        yield _transfer("pets", f"{percent}_percent", model, names[0])


def _transfer(dataset: str, size: str, model: str, pretrained: str) -> Selection:
    """Returns fine-tuning by Table 4: learning rate selected on dev, three seeds on test."""
    recipes = ("paper", "bit") if model.startswith("BiT") else ("paper",)
    candidates = [
        (f"configs/transfer.py:{dataset},{recipe}", {"init_from": f"job:{pretrained}", **setting})
        for recipe in recipes
        for setting in search_space(dataset, recipe)
    ]
    return Selection(
        f"{dataset}/{size}/{folder_name(model)}",
        candidates,
        "eval/dev/accuracy_top1",
        final_overrides=_on_test(dataset),
        labels={"model": model, "dataset": dataset},
    )


def _on_test(dataset: str) -> dict[str, Any]:
    """Returns overrides for the test stage; they keep the recipe of the selected candidate."""
    split = "validation" if dataset == "imagenet2012" else "test"
    return {"data.train_split": "train", "evaluation.splits": {"test": split}}


def _figure_4() -> Iterator[Job | Selection]:
    """Random subsets of JFT, the same settings, early stopping, linear 5-shot on ImageNet."""
    settings = {
        "train_epochs": None,
        "train_examples": 7 * JFT_EXAMPLES,
        "evaluation.splits": {"dev": "validation"},
        "evaluation.interval_steps": 5_000,
        "fewshot.datasets": {
            "imagenet": {"name": "imagenet2012", "train_split": "train[:65000]",
                         "test_split": "validation"},
        },
        "fewshot.shots": (5,),
        "fewshot.l2": 1024.0,
        **_stopping(20),
    }  # fmt: skip
    for size in JFT_SIZES:
        for model, (row, own) in PAPER_MODELS.items():
            yield Job(
                f"configs/pretrain.py:jft,{row}",
                {**settings, **own, "data.subset.preset": size},
                name=f"pretrain/{size}/{folder_name(model)}",
                labels={"model": model, "dataset": "jft"},
                stage="final",
            )


def _figure_3() -> Iterator[Job | Selection]:
    """Pretraining on three datasets, fine-tuning on ImageNet.

    The regularisation is selected on ImageNet and ImageNet-21k, but not on JFT.
    """
    for dataset, rows in FIGURE_3.items():
        for row in rows:
            model = f"BiT-{row}" if "/" not in row else f"ViT-{row}"
            config = f"configs/pretrain.py:{dataset},{row}"
            labels = {"model": model, "dataset": dataset}
            name, tuned = f"{dataset}/{folder_name(model)}", dataset != "jft"
            split = {"imagenet2012": "train[99%:]"}.get(dataset, "validation")
            settings = {
                "evaluation.splits": {"dev": split},
                "evaluation.interval_epochs": None,
                "evaluation.interval_steps": 5_000,
            }
            jobs, names = _pretraining(
                config,
                name,
                settings,
                labels,
                seeds=(0,),
                tuned=tuned,
                final={"evaluation.splits": {}},
            )
            yield from jobs
            yield _transfer("imagenet2012", dataset, model, names[0])
