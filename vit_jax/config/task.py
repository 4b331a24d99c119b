"""The config of tasks: their sections, the options that they refuse, and the model they train.

A task defines `TASK = TaskConfig(...)` in `vit_jax/tasks/NAME/config.py`. That module must import
only `schema`, `errors` and config sections, because the root config imports it.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.config.data import AugmentConfig
from vit_jax.errors import ConfigError
from vit_jax.schema import Section
from vit_jax.tasks import TASKS

NO_ERASING = frozenset(AugmentConfig.model_fields) - {"erasing_probability"}
"""The keys of `data.augment` for tasks that do not erase a part of an image."""


def _no_check(config: Any) -> None:
    del config


def _no_class_counts(config: Any) -> None:
    del config


def _model_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config["model"]


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """Properties of a task that the config, checkpoints and weight files need.

    Attributes:
        sections: key in the root config -> section class, for the sections that this task adds.
        reads: keys of other tasks' sections that this task also reads. Sections that it does not
            read must keep their defaults.
        augments: keys of `data.augment` that it uses. The others must keep their defaults.
        check: function of the root config; raises ConfigError for options that the task does not
            support.
        own_parameters: regular expressions over whole names of parameters that only this task
            needs. Checkpoints have them, but they are not weights of the model.
        model_section: function from the root config as nested dicts to the model section that
            describes the weights in a run's checkpoints.
        class_counts_key: function of the root config; returns the key for which this task needs the
            number of training examples of each class, or None if it does not need them.
        accuracies: metrics of an evaluated split of which more is better; (): they are not listed.
        keeps_average: whether it keeps a moving average of the parameters itself, as its teacher.
    """

    sections: Mapping[str, type[Section]] = dataclasses.field(default_factory=dict)
    reads: tuple[str, ...] = ()
    augments: frozenset[str] = frozenset(AugmentConfig.model_fields)
    check: Callable[[Any], None] = _no_check
    own_parameters: tuple[str, ...] = ()
    model_section: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _model_section
    class_counts_key: Callable[[Any], str | None] = _no_class_counts
    accuracies: tuple[str, ...] = ()
    uses_labels: bool = True
    uses_captions: bool = False
    keeps_average: bool = False


@functools.cache
def task_config(name: str) -> TaskConfig:
    """Returns the `TaskConfig` of a task."""
    return importlib.import_module(f"vit_jax.tasks.{name}.config").TASK


def task_sections() -> dict[str, type[Section]]:
    """Returns the sections that tasks add to the root config, by key."""
    return {key: cls for name in TASKS for key, cls in task_config(name).sections.items()}


def check_task(config: Any) -> None:
    """Raises ConfigError if an option is set that the task of a root config does not support."""
    chosen = task_config(config.task)
    for key, cls in task_sections().items():
        if key in chosen.sections or key in chosen.reads:
            continue
        usual = cls().to_mapping()
        for name, value in getattr(config, key).to_mapping().items():
            if value != usual[name]:
                raise ConfigError(
                    f"is {value!r} with task {config.task}, which does not read it",
                    repr(usual[name]),
                    "leave it out, or choose another task",
                    key=f"{key}.{name}",
                )
    unused = sorted(AugmentConfig.model_fields.keys() - chosen.augments)
    keys = tuple(f"data.augment.{name}" for name in unused)
    check_defaults(config, keys, f"task {config.task}, which does not use it")
    if (config.data.captions.tokenizer is not None) != chosen.uses_captions:
        raise ConfigError(
            f"is {config.data.captions.tokenizer!r} with task {config.task}",
            "the vocabulary of the text tower" if chosen.uses_captions else "None",
            "set it to a file or folder" if chosen.uses_captions else "set task=image_text",
            key="data.captions.tokenizer",
        )
    chosen.check(config)


def check_defaults(config: Any, keys: tuple[str, ...], reason: str) -> None:
    """Raises ConfigError unless the options with these dotted keys keep their defaults.

    `reason` is the end of the error's sentence "'KEY' is VALUE with ...".
    """
    for key in keys:
        *path, leaf = key.split(".")
        section: Any = functools.reduce(getattr, path, config)
        value, usual = getattr(section, leaf), type(section).model_fields[leaf].default
        if value != usual and (value or usual):  # Earlier versions had False for none.
            raise ConfigError(f"is {value!r} with {reason}", repr(usual), "leave it out", key=key)


# Options for labels, or for a head on the whole image.
_ABOUT_LABELS = (
    "evaluation.by_class",
    "init.keep_head",
    "model.representation_size",
    "model.register_head",
    "model.norm_after_pooling",
)
_POOLINGS = ("token", "gap")


def check_without_labels(config: Any, task: str) -> None:
    """Checks the options of a task that trains the encoder of a ViT without labels."""
    if not hasattr(config.model, "position_embedding"):
        raise ConfigError(
            f"is {config.model.name!r}, {config.model.kind}, with task {task}",
            "a ViT or hybrid, whose patches are tokens",
            "use one of them",
            key="model.name",
        )
    check_defaults(config, _ABOUT_LABELS, f"task {task}, which does not use labels")
    if config.model.pooling not in _POOLINGS:
        raise ConfigError(
            f"is {config.model.pooling!r} with task {task}",
            " or ".join(map(repr, _POOLINGS)),
            "leave it out; fine-tuning can use another pooling",
            key="model.pooling",
        )
