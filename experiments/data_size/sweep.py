"""How much data do a ViT, a hybrid and a ResNet need? arXiv:2010.11929, section 4.3.

    python -m vit_jax sweep --sweep=experiments/data_size/sweep.py:SCALE,REGULARISATION
        --workdir=DIR

SCALE           small     (default) 500 to 48,000 images of CIFAR-10, models of a million
                          multiply-accumulates, three seeds; head and learning rate are chosen for
                          each model and size. TFDS_DATA_DIR holds cifar10. 2.5 hours of two cores
                imagenet  1, 3, 10, 30 and 100 % of ImageNet, models of 3.5 to 4.4 billion
                          multiply-accumulates
                paper     the paper's runs on JFT: Figure 4, or Figure 3 with `tuned`
REGULARISATION  same      (default) the same weight decay, dropout and label smoothing for all
                          sizes, as in Figure 4
                tuned     selected on held-out examples for each size, as in Figure 3; not of small

Every run keeps the weights with the best score on held-out examples, except for those of Figure 3.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from vit_jax.config.file import parse_arg
from vit_jax.config.transfer_protocols import search_space
from vit_jax.errors import ConfigError
from vit_jax.sweep import Job, Selection, folder_name, product, vary

# Family -> (model, heads). The first head is the usual one, that of the paper.
SMALL_MODELS = {
    "ViT": ("ViT-Pico/4", ("token", "gap", "flatten")),
    "hybrid": ("R+ViT-Pico/4", ("token", "flatten")),
    "ResNet": ("BiT-R-Pico", ("gap", "flatten")),
}
SMALL_SIZES = (500, 2_000, 8_000, 48_000)
SMALL_SEEDS = (0, 1, 2)
SMALL_RATES = (1e-3, 2.5e-3, 6e-3, 1.5e-2)
SHARED_RATE = 2.5e-3
"""Of the runs with usual heads, whose distance is compared with that of the chosen settings."""
# Images seen; settings are chosen at a quarter of it.
SMALL_LENGTH = 256_000
PERCENT = (1, 3, 10, 30, 100)
JFT_SIZES = ("jft_9m", "jft_30m", "jft_90m", "jft_303m")
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
    if chosen["scale"] == "imagenet":
        return _imagenet(tuned)
    if tuned:
        raise ConfigError(
            "scale small with tuned regularisation",
            "imagenet,tuned or paper,tuned",
            "small chooses head and rate instead: leave out `tuned`",
        )
    return _small()


def get_report(arg: str = "") -> dict[str, Any]:
    """Returns the tables and plots of the report; for ARG see above."""
    chosen = _parse(arg)
    fewshot = {"x": "train_examples", "y": "fewshot/{evaluated}/{shots}_shot/accuracy_top1"}
    fine_tuned = {"x": "pretrain_examples", "y": "eval/test/accuracy_top1"}
    # (axes, which runs, title)
    wanted: list[tuple[dict[str, str], dict[str, str], str]]
    if chosen == {"scale": "paper", "regularisation": "tuned"}:
        # Three whole datasets; only final runs.
        where = {"dataset": "imagenet2012", "stage": "final"}
        wanted = [
            (fine_tuned, where, "Fine-tuned on ImageNet, by the size of the pretraining data")
        ]
    elif chosen["scale"] == "paper":
        wanted = [(fewshot, {}, "Few-shot on frozen features, by the size of the pretraining data")]
    elif chosen["scale"] == "imagenet":
        own = {"x": "train_examples", "y": "eval/validation/accuracy_top1"}
        panels = {**fewshot, "panel": "evaluated+shots"}
        wanted = [
            (own, {"dataset": "imagenet2012"}, "Accuracy on ImageNet, by the number of its images"),
            (panels, {"dataset": "imagenet2012"}, "Few-shot on frozen features"),
            (fine_tuned, {"dataset": "pets"}, "Fine-tuned on pets"),
        ]
    else:
        own = {"x": "train_examples", "y": "eval/test/accuracy_top1"}
        title = "CIFAR-10 test accuracy, by the number of training images"
        wanted = [(own, {"settings": "chosen", "stage": "final"}, title)]
    plots, tables = [], []
    for plot, where, title in wanted:
        shared = {"where": where, "title": title}
        rows = "+".join(filter(None, ("model", plot.get("panel"))))
        plots.append({**plot, **shared, "log_x": True})
        tables.append({"metric": plot["y"], "rows": rows, "columns": plot["x"], **shared})
    axes, where, _ = wanted[0]
    return {
        "title": "How much data?",
        "question": "Which is best at a given amount of training data: a ViT, a hybrid or a ResNet"
        " of equal cost?",
        "tables": tables,
        "plots": plots,
        "curves": [{"panel": f"dataset+{axes['x']}", "where": where, "title": "Training"}],
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


def _small() -> Iterator[Job | Selection]:
    """Selects head and rate for each model and size; also runs usual heads at one rate."""
    for size, (family, (model, heads)) in itertools.product(SMALL_SIZES, SMALL_MODELS.items()):
        config = f"configs/cifar10_small.py:{model}"
        tried = product(vary("model.pooling", heads), vary("optimizer.learning_rate", SMALL_RATES))
        labels = {"family": family, "dataset": "cifar10", "settings": "chosen"}
        yield Selection(
            f"{size}/{family}",
            [(config, {**small_settings(size, SMALL_LENGTH // 4), **one}) for one in tried],
            "eval/dev/accuracy_top1",
            seeds=SMALL_SEEDS,
            final_overrides=small_settings(size, SMALL_LENGTH),
            labels=labels,
        )
    for seed, size, family in itertools.product(SMALL_SEEDS, SMALL_SIZES, ("ViT", "ResNet")):
        model, (usual, *_) = SMALL_MODELS[family]
        same = {"model.pooling": usual, "optimizer.learning_rate": SHARED_RATE, "seed": seed}
        yield Job(
            f"configs/cifar10_small.py:{model}",
            {**small_settings(size, SMALL_LENGTH), **same},
            name=f"shared/{size}/{family}/seed{seed}",
            labels={"family": family, "dataset": "cifar10", "settings": "shared"},
            stage="final",
        )


def small_settings(size: int, length: int) -> dict[str, Any]:
    """Returns the overrides of runs that see `length` images, of `size` different ones."""
    return {
        "data.train_split": "train[:96%]",
        "data.subset.examples": size,
        "train_examples": length,
        "optimizer.schedule.warmup_examples": length // 10,
        "evaluation.splits": {"dev": "train[96%:]"},
        "evaluation.final_splits": {"test": "test"},
        "evaluation.interval_examples": length // 8,
        "early_stopping.metric": "eval/dev/accuracy_top1",
        "checkpoint.interval_examples": length // 2,
        "logging.interval_steps": 100,
    }


def _imagenet(tuned: bool) -> Iterator[Job | Selection]:
    settings = {
        "train_epochs": None,
        "train_examples": IMAGENET_EPOCHS * 1_281_167,
        "evaluation.splits": {"dev": "train[99%:]"},
        "evaluation.final_splits": {"validation": "validation"},
        "evaluation.interval_epochs": None,
        "evaluation.interval_steps": 1_000,
        "fewshot.datasets": {"pets": {"name": "oxford_iiit_pet"}, "cifar100": {"name": "cifar100"}},
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
