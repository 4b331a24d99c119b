"""Which code from outside the package a run uses."""

from typing import Any

from vit_jax.config.run import Config
from vit_jax.data.augment import STAGES
from vit_jax.models.registry import family_of
from vit_jax.registry import REGISTRIES


def own_code(config: Config) -> list[str]:
    """Returns the modules and recipes outside the package that registered what a run uses."""
    towers: list[Any] = [config.model, getattr(config.model, "image", None)]
    names = {
        "task": [config.task.name],
        "loss": [] if config.loss is None else [config.loss.name],
        "crop": [config.data.augment.crop.name],
        "augmentation": config.data.augment.operations(*STAGES),
        "optimizer": [config.optimizer.name],
        "model family": [family_of(model.name).name for model in towers if model is not None],
        "hook": config.hooks.on,
        "source": [config.data.source],
        "metric": config.evaluation.metrics,
    }
    owners = {
        REGISTRIES[kind].owner(name)
        for kind, few in names.items()
        if kind in REGISTRIES  # That of the optimizers is known once one was built.
        for name in few
    }
    return sorted(o for o in owners if o is not None and not f"{o}.".startswith("vit_jax."))
