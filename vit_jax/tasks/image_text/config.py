"""Config section of learning from pairs of images and texts, and options it does not support."""

from typing import Any, Literal

from vit_jax.config.data import SourceKind
from vit_jax.config.run import Config
from vit_jax.config.task import TASKS, TaskConfig, TaskName, check_values
from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option

# Values of options for labels, for sequences of patches, or for metrics that it does not have.
_UNUSED = {
    "data.sequence_length": (None,),
    "early_stopping.metric": (None,),
    "evaluation.by_class": (None, False),
    "init.keep_head": (False,),
}


class ZeroShotDatasetConfig(Section):
    """One dataset. Fields with the same name as in `DataConfig` have the same meaning."""

    name: str = option()
    source: SourceKind = option("tfds")
    data_dir: str | None = option(None, changes_result=False)
    """None: `data.data_dir` of the run."""
    split: str = option("test")
    prompts: tuple[str, ...] = option(("a photo of a {}.",))
    """Captions of the classes, with {} for the name: texts, names of published lists (see
    `evaluation.prompts`), or files with one text a line. The embeddings of all are averaged.
    """
    class_names: str | None = option(None)
    """File with a name a line, in the order of the labels; None: the names of the dataset."""
    image_key: str | None = option(None)
    label_key: str | None = option(None)


@TASKS.register
class ImageTextConfig(TaskConfig):
    """Learning which text belongs to which image, with a pair of towers.

    LiT locks the image tower: optimizer.freeze=["image/.*"]. A locked tower is not run backward and
    has no optimizer state.

    Source: arXiv:2103.00020 (CLIP), 2303.15343 (SigLIP), 2111.07991 (LiT).
    """

    name: TaskName = option("image_text")
    """Pairs of images and texts: the model learns which text belongs to which image."""
    loss: Literal["softmax", "sigmoid"] = option("softmax")
    """softmax: find the text of each image, and the image of each text, in the batch, as in CLIP
    and LiT. sigmoid: decide for each image and each text whether they are a pair, as in SigLIP.
    """
    max_temperature: float | None = option(None, above=0)
    """Largest factor of the similarities; CLIP: 100. None: no limit."""
    zeroshot: dict[str, ZeroShotDatasetConfig] = option({})
    """Name in the metrics -> dataset with classes, e.g. {"pets": {"name": "oxford_iiit_pet"}}. The
    zero-shot accuracy is measured whenever `evaluation.splits` are evaluated.
    """

    uses_labels = False
    uses_captions = True

    @property
    def evaluates_datasets(self) -> bool:
        return bool(self.zeroshot)

    def check_run(self, config: Config) -> None:
        super().check_run(config)
        model: Any = config.model
        if not hasattr(model, "text"):
            raise ConfigError(
                f"is {model.name!r}, {model.kind}, with task image_text",
                "a pair of towers, e.g. 'LiT-ViT-B/16'",
                "use one of them; init_from fills its image tower from an image model",
                key="model.name",
            )
        check_values(config, _UNUSED, "task image_text")
        if self.loss == "softmax" and model.bias_init is not None:
            raise ConfigError(
                f"is {model.bias_init:g} with task.loss=softmax, in which a bias cancels",
                "None",
                "set model.bias_init=none, or task.loss=sigmoid",
                key="model.bias_init",
            )
        first, largest = model.temperature_init, self.max_temperature
        if largest is not None and first > largest:
            raise ConfigError(
                f"is {first:g} with task.max_temperature={largest:g}",
                f"at most {largest:g}",
                "change one of the two",
                key="model.temperature_init",
            )
