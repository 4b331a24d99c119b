"""Config sections of the optimizer and the learning rate."""

from typing import Any, Literal

from vit_jax.config.durations import check_duration
from vit_jax.errors import ConfigError
from vit_jax.schema import Section, check_patterns, option, section

SCHEDULE_FREE = "schedule_free_adamw"
"""The optimizer that averages the parameters itself. The average is evaluated."""


class ScheduleConfig(Section):
    """Learning rate over time: linear warmup from 0, decay, optional linear cooldown to 0."""

    read_by = {
        "end_learning_rate": ("decay", ("cosine", "linear")),
        "timescale_steps": ("decay", ("rsqrt",)),
        "step_at": ("decay", ("step",)),
        "step_factor": ("decay", ("step",)),
    }

    decay: Literal["cosine", "linear", "rsqrt", "step", "constant"] = option("cosine")
    """Shape of the learning rate after the warmup. cosine: arXiv:1608.03983. step: constant,
    multiplied at `step_at`.
    """
    warmup_steps: int | None = option(None, at_least=0)
    """Length of the linear warmup from 0. None: no warmup."""
    warmup_epochs: float | None = option(None, at_least=0)
    """The same in epochs."""
    warmup_examples: int | None = option(None, at_least=0)
    """The same in examples."""
    cooldown_steps: int | None = option(None, at_least=0)
    """Length of the linear decay to 0 at the end of the run. None: none."""
    cooldown_epochs: float | None = option(None, at_least=0)
    """The same in epochs."""
    cooldown_examples: int | None = option(None, at_least=0)
    """The same in examples."""
    end_learning_rate: float = option(0.0, at_least=0)
    """Learning rate at the end of cosine and linear decay."""
    timescale_steps: int = option(10_000, at_least=1)
    """For rsqrt decay: learning_rate / sqrt(1 + steps since warmup / timescale_steps)
    (arXiv:2106.04560).
    """
    step_at: tuple[float, ...] = option((0.3, 0.6, 0.9))
    """For step decay: fractions of the run at which the learning rate is multiplied by
    `step_factor` (arXiv:1912.11370).
    """
    step_factor: float = option(0.1, above=0, at_most=1)
    """For step decay: factor at each of `step_at`."""

    def check(self) -> None:
        if not all(0 < fraction < 1 for fraction in self.step_at):
            raise ConfigError(
                f"is {self.step_at}",
                "fractions of the run between 0 and 1",
                "correct it",
                key="step_at",
            )
        check_duration(self, "warmup", required=False)
        check_duration(self, "cooldown", required=False)


class OptimizerConfig(Section):
    """The optax chain: clip, optimizer, decoupled weight decay, per-layer scale, schedule."""

    name: str = option("adamw")
    """Name of an optimizer of optax: adamw, sgd, adafactor, lamb, lars, lion, muon,
    schedule_free_adamw, ...; an unknown name prints the list.
    """
    learning_rate: float = option(above=0)
    """Peak of the schedule."""
    schedule: ScheduleConfig = section(ScheduleConfig)
    options: dict[str, Any] = option({})
    """Keyword arguments of the optax function, e.g. {"b2": 0.99}."""
    weight_decay: float = option(0.0, at_least=0)
    """Decoupled weight decay (arXiv:1711.05101): a step at learning rate lr adds
    -lr * weight_decay * parameter, as in PyTorch and optax. big_vision's `wd` is the decay of a
    step at the peak rate: divide it by the peak rate.
    """
    end_weight_decay: float | None = option(None, at_least=0)
    """Weight decay at the end of the run; it changes from `weight_decay` along half a cosine
    (arXiv:2104.14294). None: it is constant.
    """
    weight_decay_mask: tuple[tuple[str, bool], ...] = option(((".*/kernel", True), (".*", False)))
    """(regular expression, whether to decay) pairs. The first that matches the whole parameter
    name is used; every parameter must match one.
    """
    layer_decay: float = option(1.0, above=0, at_most=1)
    """Layer-wise learning-rate decay: the rate of a layer k below the head is multiplied by
    layer_decay**k (arXiv:2106.08254).
    """
    freeze: tuple[str, ...] = option(())
    """Parameters that are not trained, as regular expressions over whole names."""
    freeze_steps: int | None = option(None, at_least=1)
    """How long `freeze` holds at the start of the run; without a duration, for all of it. After it
    the optimizer starts for these parameters with empty moments. Their gradient is clipped
    separately.
    """
    freeze_epochs: float | None = option(None, above=0)
    """The same in epochs."""
    freeze_examples: int | None = option(None, at_least=1)
    """The same in examples."""
    clip_global_norm: float | None = option(None, above=0)
    """Largest global norm of the gradient; None: no clipping."""
    clip_each_parameter: bool = option(False)
    """Apply the limit `clip_global_norm` to the gradient of each parameter of each layer by itself,
    instead of to the whole gradient (arXiv:2104.14294).
    """
    state_dtype: Literal["float32", "bfloat16"] = option("float32")
    """Type of the first moment (momentum)."""

    @property
    def decay_per_step(self) -> float:
        """The fraction by which a step at the peak rate shrinks decayed parameters."""
        return self.learning_rate * self.weight_decay

    @property
    def freezes_for_a_while(self) -> bool:
        """Whether frozen parameters are trained later in the run."""
        durations = (self.freeze_steps, self.freeze_epochs, self.freeze_examples)
        return any(duration is not None for duration in durations)

    @property
    def averages_parameters(self) -> bool:
        return self.name == SCHEDULE_FREE

    def check(self) -> None:
        check_patterns(self.freeze, "freeze")
        self._check_freeze()
        check_patterns([pattern for pattern, _ in self.weight_decay_mask], "weight_decay_mask")
        if self.schedule.end_learning_rate > self.learning_rate:
            raise ConfigError(
                f"is {self.schedule.end_learning_rate:g}",
                f"at most learning_rate = {self.learning_rate:g}",
                "lower it",
                key="schedule.end_learning_rate",
            )

    def _check_freeze(self) -> None:
        check_duration(self, "freeze", required=False)
        keys = ("freeze_steps", "freeze_epochs", "freeze_examples")
        for key in (key for key in keys if getattr(self, key) is not None):
            if not self.freeze:
                raise ConfigError(
                    f"is {getattr(self, key)} without 'freeze'",
                    "the parameters to freeze",
                    "set optimizer.freeze, or leave it out",
                    key=key,
                )
            if self.averages_parameters:
                raise ConfigError(
                    f"is {getattr(self, key)} with {self.name}",
                    "an optimizer that does not average the parameters itself",
                    "leave it out, or choose another optimizer",
                    key=key,
                )
