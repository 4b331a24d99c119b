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
            check_defaults(config, ("evaluation.metrics",), reason)
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


def check_defaults(config: Any, keys: tuple[str, ...], reason: str) -> None:
    """Raises ConfigError unless the options with these dotted keys keep their defaults.

    `reason` is the end of the error's sentence "'KEY' is VALUE with ...".
    """
    for key in keys:
        *path, leaf = key.split(".")
        section: Any = functools.reduce(getattr, path, config)
        value, usual = getattr(section, leaf), type(section).model_fields[leaf].default
        if value != usual and (value or usual):  # False is none, too.
            raise ConfigError(f"is {value!r} with {reason}", repr(usual), "leave it out", key=key)


class LabelledConfig(TaskConfig):
    """A task that learns the labels of images."""

    reads_loss = True
    stages = ("host", "uint8", "device", "mix")
    accuracies = ("accuracy_top1", "accuracy_top5", "accuracy_per_class_mean", "roc_auc")


# Options for labels, or for a head on the whole image.
_ABOUT_LABELS = (
    "evaluation.by_class",
    "init.keep_head",
    "model.representation_size",
    "model.register_head",
    "model.norm_after_pooling",
)
_POOLINGS = ("token", "gap")


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
        check_defaults(config, _ABOUT_LABELS, f"task {self.name}, which does not use labels")
        if model.pooling not in _POOLINGS:
            raise ConfigError(
                f"is {model.pooling!r} with task {self.name}",
                " or ".join(map(repr, _POOLINGS)),
                "leave it out; fine-tuning can use another pooling",
                key="model.pooling",
            )
