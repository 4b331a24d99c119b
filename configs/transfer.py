"""Fine-tuning: any published file, or any run of yours, on any dataset.

Command:   python -m vit_jax train --config=configs/transfer.py:pets --workdir=runs/pets
           --config.init_from=WEIGHTS --config.data.data_dir=DATA
           (ARG: DATASET,RECIPE,STAGE and options, in any order:
           DATASET  imagenet2012 cifar10 cifar100 pets flowers; vtab_NAME, the 19 of VTAB-1k
                    (listed in `vit_jax/config/transfer_protocols.py`); tfds: any other TFDS
                    dataset, with --config.data.name=NAME; folder: your images,
                    as configs/folder.py takes them
           RECIPE   paper (default), augreg, bit (for ResNets)
           STAGE    dev (default): trained on "train" without its dev part, scored on that; test:
                    trained on all of "train", scored on "test" (ImageNet: "validation"; a
                    folder of yours: PHOTOS/{train,test}/CLASS)
           options  polyak: also averages the parameters (0.9999); head: trains the head alone;
                    0.65, 0.75, 0.85: each layer learns so much slower than the one above;
                    weighted: rare classes weigh more in the loss; balanced: they are drawn more)
           A folder or `tfds` counts as fewer than 20,000 images (500 steps): set train_steps.
Follows:   paper: arXiv:2010.11929, Table 4: SGD with momentum 0.9, cosine, no weight decay, clip
           1.0, batch 512, 384 px, a new head at zero; images as in the authors' code (inception
           crops, mirrored), of VTAB resized only. bit: arXiv:1912.11370, section 3.3. augreg:
           arXiv:2106.10270, section 3.3. Of each grid one setting is taken here; the whole grid,
           for a sweep: `vit_jax.config.transfer_protocols.search_space`.
Expected:  of the recipe, ImageNet-21k ViT-B/16 by its authors: CIFAR-10 99.0, CIFAR-100 92.1,
           ImageNet 84.5 % (vision_transformer's README); Table 5 of the paper for others. Not yet
           repeated with this code.
Hardware:  ViT-B/16 at 384 px: 6.5 h for ImageNet's 20,000 steps on the authors' A100s; 500 steps
           take minutes on one. CPU: --config.data.image_size=64 and a small model.
Data:      as TFDS prepares them, ArrayRecord; or a folder. The model is that of the weights
           (`model.name=auto`); `--config.model.dtype=bfloat16` suits accelerators.
"""

import ml_collections

from vit_jax.config import transfer_protocols as protocols
from vit_jax.config.file import parse_arg
from vit_jax.config.transfer_protocols import Task

# Datasets of your own: the last tenth of "train" is for choosing.
OWN = ("folder", "tfds")


def get_config(arg: str = "pets") -> ml_collections.ConfigDict:
    """Returns one setting; ARG as above, each part optional."""
    chosen = parse_arg(
        arg,
        dataset=("pets", *(name for name in protocols.TASKS if name != "pets"), *OWN),
        recipe=protocols.RECIPES,
        stage=protocols.STAGES,
        average=("plain", "polyak"),
        trained=("all", "head"),
        layer_decay=(1.0, 0.65, 0.75, 0.85),
        balance=("natural", "weighted", "balanced"),
    )
    name, recipe = chosen["dataset"], chosen["recipe"]
    task = protocols.TASKS.get(name)
    splits = protocols.percent_splits(10) if task is None else task.splits
    train, scored, split = splits[chosen["stage"]]
    schedule = protocols.schedules(name, recipe)[0]
    rates = protocols.learning_rates(name, recipe)
    config = ml_collections.ConfigDict(
        {
            "model": {"name": "auto"},
            "data": {
                "name": name if task is None else task.data,
                "source": "folder" if name == "folder" else "tfds",
                "train_split": train,
                "image_size": protocols.IMAGE_SIZE,
                "global_batch_size": protocols.BATCH_SIZE,
                "augment": _augment(task),
                "eval_crop": "resize",
            },
            "optimizer": {
                "name": "sgd",
                "options": {"momentum": 0.9},
                # The second largest of the grid: ours, for a single run.
                "learning_rate": rates[max(len(rates) - 2, 0)],
                "weight_decay": 0.0,
                "clip_global_norm": 1.0,
                "layer_decay": chosen["layer_decay"],
                "schedule": {"decay": "cosine", "warmup_steps": schedule.warmup_steps},
            },
            "train_steps": schedule.steps,
            "evaluation": {
                "splits": {scored: split},
                "interval_steps": schedule.steps // 5,
            },
            "checkpoint": {"interval_steps": schedule.steps // 5, "keep_last": 1},
            "logging": {"interval_steps": schedule.steps // 50},
        }
    )
    if recipe == "bit":
        config.update(_bit(task))
    if recipe == "augreg":
        config.update({"optimizer": {"state_dtype": "bfloat16"}})
    config.update(_labels(task))
    if chosen["average"] == "polyak":
        config.update({"ema_decay": protocols.POLYAK_DECAY})
    if chosen["trained"] == "head":
        config.update({"optimizer": {"freeze": ("(?!head/).*",)}})
    if chosen["balance"] == "weighted":
        config.update({"loss": {"class_weights": "balanced"}})
    if chosen["balance"] == "balanced":
        config.update({"data": {"sampling": "balanced"}})
    return config


def _augment(task: Task | None) -> dict:
    if task is not None and task.group:
        return {"crop": "resize", "flip": False}
    return {"crop": "inception", "min_area": 0.05, "flip": True}


def _bit(task: Task | None) -> dict:
    """Steps, sizes and mixup by the dataset, as BiT's rule has them."""
    resized, side = protocols.BIT_SIDES[task is not None and task.small_images]
    return {
        "data": {
            "image_size": side,
            "augment": {
                "crop": "random" if task is None or task.crop else "resize",
                "random_fraction": side / resized,
                "flip": task is None or task.flip,
            },
        },
        "mixing": {"mixup_alpha": protocols.bit_rule(task.train_examples if task else 0)[1]},
        "optimizer": {
            "clip_global_norm": None,
            "schedule": {"decay": "step", "step_at": protocols.BIT_STEPS_AT, "step_factor": 0.1},
        },
    }


def _labels(task: Task | None) -> dict:
    """Where the classes come from; of your own data also what is confused with what."""
    if task is None:
        return {"evaluation": {"by_class": True}}
    named = {"label_key": task.label_key, "label_rule": task.label_rule}
    return {"data": {key: value for key, value in named.items() if value}}
