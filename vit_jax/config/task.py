"""The task of a run: what all tasks share of their config sections.

A task's section is a subclass of `TaskConfig` in `vit_jax/tasks/NAME/config.py`. That module must
import only `schema`, `errors` and config sections, so that the config can be read without JAX.
"""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from vit_jax.data.augment import STAGES, Operation, Stage
from vit_jax.errors import ConfigError
from vit_jax.registry import NameIn, Registry
from vit_jax.schema import Section, option

TASKS: Registry["type[TaskConfig]"] = Registry("vit_jax.tasks", "task", file="config")
if TYPE_CHECKING:
    from vit_jax.config.run import Config

    TaskName = str
else:
    TaskName = Annotated[str, NameIn(TASKS)]


class TaskConfig(Section):
    """What a run learns. Each task adds its own keys.

    Attributes:
        reads_loss: whether it has the section `loss`.
        stages: stages of the operations of `data.augment` that it applies.
        own_parameters: regular expressions over whole names of parameters that only this task
            needs. Checkpoints have them, but they are not weights of the model.
        accuracies: metrics of an evaluated split of which more is better; (): they are not listed.
        uses_labels, uses_captions: what it reads of the examples beside the images.
        keeps_average: whether it keeps a moving average of the parameters itself, as its teacher.
    """

    name: TaskName = option("classification")
    """What the model learns; `vit_jax/tasks` has a folder for each."""

    reads_loss: ClassVar[bool] = False
    stages: ClassVar[tuple[Stage, ...]] = ("host", "uint8", "device")
    own_parameters: ClassVar[tuple[str, ...]] = ()
    accuracies: ClassVar[tuple[str, ...]] = ()
    uses_labels: ClassVar[bool] = True
    uses_captions: ClassVar[bool] = False
    keeps_average: ClassVar[bool] = False

    @property
    def evaluates_datasets(self) -> bool:
        """Whether it evaluates other datasets beside the splits of the run's."""
        return False

    def check_run(self, config: "Config") -> None:
        """Raises ConfigError for options of a run that the task does not support."""
        for name, operation in config.data.augment.operations(*STAGES).items():
            reason = self.why_not(name, operation, config)
            if reason is not None:
                key = f"data.augment.{name}"
                raise ConfigError(f"is on with {reason}", "false", f"set {key}=false", key=key)
        if not self.reads_loss:
            reason = f"task {self.name}, which does not predict labels"
            check_values(config, {"evaluation.metrics": ((),)}, reason)
        if (config.data.captions.tokenizer is not None) != self.uses_captions:
            raise ConfigError(
                f"is {config.data.captions.tokenizer!r} with task {self.name}",
                "the vocabulary of the text tower" if self.uses_captions else "None",
                "set it to a file or folder" if self.uses_captions else "set task.name=image_text",
                key="data.captions.tokenizer",
            )

    def why_not(self, name: str, operation: Operation, config: "Config") -> str | None:
        """Returns why a run does not apply an operation; None: it does."""
        del name, config
        if operation.stage not in self.stages:
            return f"task {self.name}, which has no augmentation of the kind {operation.stage!r}"
        return None

    @classmethod
    def model_section(cls, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the model section that describes the weights in a run's checkpoints.

        Args:
            config: the config of the run as nested dicts.
        """
        return config["model"]

    def class_counts_key(self, config: "Config") -> str | None:
        """Returns the key that needs the number of examples of each class; None: there is none."""
        del config

    @classmethod
    def named_classes(cls) -> Mapping[str, type[Section]]:
        return TASKS


def task_class(section: Any) -> type[TaskConfig]:
    """Returns the class of a task's section, which may be a mapping; None: the default task."""
    if isinstance(section, TaskConfig):
        return type(section)
    if isinstance(section, str):
        raise ConfigError(f"is {section!r}", "a section", f"set task.name={section}", key="")
    return TASKS.class_of(TaskConfig, section if isinstance(section, Mapping) else {})


def check_values(config: Any, allowed: Mapping[str, tuple[Any, ...]], reason: str) -> None:
    """Raises ConfigError unless the options with these dotted keys have one of these values.

    `reason` is the end of the error's sentence "'KEY' is VALUE with ...".
    """
    for key, values in allowed.items():
        *path, leaf = key.split(".")
        section: Any = functools.reduce(getattr, path, config)
        value, usual = getattr(section, leaf), type(section).model_fields[leaf].default
        if value not in values:
            expected = " or ".join(map(repr, values))
            fix = "leave it out" if usual in values else f"set {key}={values[0]}".lower()
            raise ConfigError(f"is {value!r} with {reason}", expected, fix, key=key)


class LabelledConfig(TaskConfig):
    """A task that learns the labels of images."""

    reads_loss = True
    stages = ("host", "uint8", "device", "mix")
    accuracies = ("accuracy_top1", "accuracy_top5", "accuracy_per_class_mean", "roc_auc")


# Values of options for labels, or for a head on the whole image, in a run without labels.
_WITHOUT_LABELS = {
    "evaluation.by_class": (None, False),
    "init.keep_head": (False,),
    "model.representation_size": (None,),
    "model.register_head": (False,),
    "model.norm_after_pooling": (False,),
    "model.pooling": ("token", "gap"),
}


class UnlabelledConfig(TaskConfig):
    """A task that trains the encoder of a ViT without labels."""

    uses_labels = False

    def check_run(self, config: "Config") -> None:
        super().check_run(config)
        model: Any = config.model
        if not hasattr(model, "position_embedding"):
            raise ConfigError(
                f"is {model.name!r}, {model.kind}, with task {self.name}",
                "a ViT or hybrid, whose patches are tokens",
                "use one of them",
                key="model.name",
            )
        check_values(config, _WITHOUT_LABELS, f"task {self.name}, which does not use labels")
