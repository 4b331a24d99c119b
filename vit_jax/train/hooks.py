"""Calls the functions of `hooks` after training steps."""

from collections.abc import Mapping
from typing import Any

import jax

from vit_jax.config.hooks import HooksConfig
from vit_jax.train.state import TrainState


class Hooks:
    """The hooks of a run. They get copies, so that they cannot change the run."""

    def __init__(self, config: HooksConfig):
        self._hooks = config.on

    def are_due(self, step: int) -> bool:
        return any(step % hook.every_steps == 0 for hook in self._hooks.values())

    def run(self, step: int, state: TrainState, metrics: Mapping[str, Any]) -> None:
        """Calls the hooks of a step, in the order of their names.

        Raises:
            PluginError: one has failed.
        """
        numbers = {name: float(value) for name, value in jax.device_get(dict(metrics)).items()}
        for hook in self._hooks.values():
            if step % hook.every_steps == 0:
                # New dicts around the same arrays, which cannot be written to.
                hook.call(step, jax.tree.map(lambda leaf: leaf, state), dict(numbers))
