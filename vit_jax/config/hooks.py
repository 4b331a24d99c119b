"""Functions of your own that a run calls after training steps."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from vit_jax.own_functions import (
    FromFunction,
    check_no_part_of,
    own_function,
    owner_of,
    section_of_function,
    with_keys,
)
from vit_jax.registry import Registry
from vit_jax.schema import Section, option

HOOKS: Registry["type[HookConfig]"] = Registry(kind="hook")
F = TypeVar("F", bound=Callable[..., Any])


class HookConfig(FromFunction, Section):
    """A hook that is on."""

    every_steps: int = option(1, at_least=1)
    """How often it is called, in steps."""


class HooksConfig(Section):
    """A key for each hook that is on."""

    @property
    def on(self) -> dict[str, HookConfig]:
        """Name -> hook of those that are on, sorted by name."""
        found = {name: getattr(self, name) for name in sorted(type(self).model_fields)}
        return {name: hook for name, hook in found.items() if hook is not None}


def register_hook(function: F) -> F:
    """Registers a function that a run calls after training steps; use it as a decorator.

    `hooks.NAME.every_steps=100` calls it every 100 steps, after the metrics of the step are logged.
    Its keyword-only parameters are other keys `hooks.NAME.KEY`, like those of a loss
    (`register_loss`). It cannot change the run: it gets copies of dicts, and arrays that cannot be
    written to. The next step frees the arrays: copy those that you keep. With several hosts, each
    calls it. The step waits for it.

    Args:
        function: (step, state, metrics, *, keys). `step` is the number of updates made, `state` a
            `vit_jax.train.state.TrainState` (`state.params`, `state.eval_params`), `metrics` maps
            names such as "train/loss" to numbers.

    Returns:
        The function, unchanged.

    Raises:
        PluginError: parameters that cannot be keys, or a name that another module has registered.

    >>> @register_hook  # doctest: +SKIP
    ... def show(step, state, metrics, *, digits: int = 3):
    ...     print(step, round(metrics["train/loss"], digits))
    """
    own = own_function("hook", function, ("step", "state", "metrics"))
    check_no_part_of(own, HooksConfig, "hooks")
    HOOKS.add(own.name, section_of_function(own, HookConfig), owner_of(function))
    return function


def hooks_class(values: Mapping[str, Any]) -> type[HooksConfig]:
    """Returns the class of the section `hooks`, with a key for each registered hook."""
    all(map(HOOKS.knows, values))  # Loads installed plugins if one is unknown.
    return with_keys(HooksConfig, tuple(HOOKS.items()))
