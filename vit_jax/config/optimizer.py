"""Config sections of the optimizer and its learning rate."""

from typing import Any, Literal

from vit_jax.config.durations import check_duration
from vit_jax.errors import ConfigError
from vit_jax.schema import Section, check_patterns, option, section


class ScheduleConfig(Section):
    """Learning rate over time: linear warmup from 0, decay, optional linear cooldown to 0."""

    decay: Literal["cosine", "linear", "rsqrt", "step", "constant"] = option("cosine")
    warmup_steps: int | None = option(None, at_least=0)
    warmup_epochs: float | None = option(None, at_least=0)
    warmup_examples: int | None = option(None, at_least=0)
    cooldown_steps: int | None = option(None, at_least=0)
    cooldown_epochs: float | None = option(None, at_least=0)
    cooldown_examples: int | None = option(None, at_least=0)
    end_learning_rate: float = option(0.0, at_least=0)
    """Where cosine and linear decay end, in units of the learning rate itself."""
    timescale_steps: int = option(10_000, at_least=1)
    """rsqrt: learning_rate / sqrt(1 + steps since warmup / timescale) (arXiv:2106.04560)."""
    step_at: tuple[float, ...] = option((0.3, 0.6, 0.9))
    """step: at these shares of the run the learning rate is multiplied by `step_factor`
    (arXiv:1912.11370).
    """
    step_factor: float = option(0.1, above=0, at_most=1)

    def check(self) -> None:
        if not all(0 < share < 1 for share in self.step_at):
            raise ConfigError(
                f"is {self.step_at}",
                "shares of the run between 0 and 1",
                "correct it",
                key="step_at",
            )
        check_duration(self, "warmup", required=False)
        check_duration(self, "cooldown", required=False)


class OptimizerConfig(Section):
    """The optax chain: clip, optimizer, decoupled weight decay, per-layer scale, schedule."""

    name: str = option("adamw")
    """adamw, adam, sgd, adafactor, or any optimizer function of optax by its name there."""
    learning_rate: float = option(above=0)
    schedule: ScheduleConfig = section(ScheduleConfig)
    options: dict[str, Any] = option({})
    """Keyword arguments of that optax function, e.g. {"b2": 0.99}."""
    weight_decay: float = option(0.0, at_least=0)
    """Decoupled: a step adds -lr(t) * weight_decay * parameter."""
    weight_decay_mask: tuple[tuple[str, bool], ...] = option(((".*/kernel", True), (".*", False)))
    """(regular expression, decayed?) pairs; the first that matches the whole name counts, and
    every parameter must match one.
    """
    layer_decay: float = option(1.0, above=0, at_most=1)
    """Layer-wise decay (arXiv:2106.08254): a layer k below the head learns at layer_decay**k."""
    freeze: tuple[str, ...] = option(())
    """Parameters that do not learn, as regular expressions over the whole name."""
    clip_global_norm: float | None = option(None, above=0)
    """Largest global norm of the gradient; None: no clipping."""
    state_dtype: Literal["float32", "bfloat16"] = option("float32")
    """Type of the first moment (momentum)."""

    def check(self) -> None:
        check_patterns(self.freeze, "freeze")
        check_patterns([pattern for pattern, _ in self.weight_decay_mask], "weight_decay_mask")
        if self.schedule.end_learning_rate > self.learning_rate:
            raise ConfigError(
                f"is {self.schedule.end_learning_rate:g}",
                f"at most learning_rate = {self.learning_rate:g}",
                "lower it",
                key="schedule.end_learning_rate",
            )
