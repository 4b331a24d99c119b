"""Durations in a config, given in steps, epochs or examples."""

from vit_jax.errors import ConfigError
from vit_jax.schema import Section, check_at_most_one

DURATION_UNITS = ("steps", "epochs", "examples")


def is_same_duration(key: str, other: str) -> bool:
    """Whether two keys are one duration in different units.

    >>> is_same_duration("train_steps", "train_epochs"), is_same_duration("warmup_steps", "a_steps")
    (True, False)
    """
    (one, _, unit), (two, _, other_unit) = key.rpartition("_"), other.rpartition("_")
    return key != other and one == two and {unit, other_unit} <= {*DURATION_UNITS}


def check_duration(holder: Section, prefix: str, *, required: bool) -> None:
    """Raises ConfigError unless exactly one (or, if not required, at most one) unit is given."""
    keys = [f"{prefix}_{unit}" for unit in DURATION_UNITS]
    if not check_at_most_one(holder, *keys) and required:
        one = f"exactly one of {', '.join(keys)}"
        raise ConfigError(f"no duration '{prefix}_...'", one, f"set e.g. {keys[0]}=1000")


def duration_in_steps(
    holder: Section, prefix: str, *, batch_size: int, num_examples: int
) -> int | None:
    """Converts a duration of a section to steps, rounded to the nearest; None if it is not given.

    The prefix is "train", "warmup", "cooldown" or "interval". The batch size is over all hosts, and
    the examples are per epoch.
    """
    steps = getattr(holder, f"{prefix}_steps")
    epochs = getattr(holder, f"{prefix}_epochs")
    examples = getattr(holder, f"{prefix}_examples")
    if epochs is not None:
        examples = epochs * num_examples
    if examples is not None:
        steps = max(round(examples / batch_size), 1 if examples else 0)
    return steps


def is_due(step: int, interval: int | None) -> bool:
    """Returns whether something that happens every `interval` steps is due after this step.

    >>> is_due(20, 10), is_due(25, 10), is_due(20, None)
    (True, False, False)
    """
    return interval is not None and step % interval == 0


def next_due(step: int, interval: int | None) -> int | None:
    """Returns the first step after this one at which it is due; None: it never is.

    >>> next_due(20, 10), next_due(25, 10), next_due(20, None)
    (30, 30, None)
    """
    return None if interval is None else (step // interval + 1) * interval
