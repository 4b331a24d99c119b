"""Builds the learning-rate schedule from optax's schedules."""

import logging

import jax.numpy as jnp
import optax

from vit_jax.config.durations import duration_in_steps
from vit_jax.config.optimizer import OptimizerConfig, ScheduleConfig

log = logging.getLogger(__name__)


def build_schedule(
    config: ScheduleConfig,
    learning_rate: float,
    *,
    total_steps: int,
    batch_size: int,
    num_examples: int,
) -> optax.Schedule:
    """Returns step -> learning rate: warmup, decay, cooldown.

    Warmup rises linearly from 0 to `learning_rate`. Cooldown falls linearly to 0 from the rate at
    the end of the decay; cosine and linear decay end when the cooldown starts. A warmup or cooldown
    that is longer than half of the run is cut to half of it, and a warning is logged.

    Source: arXiv:2010.11929, Table 3 (linear, cosine); arXiv:2106.04560, section 2.3 (rsqrt,
    cooldown); arXiv:1912.11370, section 3.3 (step).
    """
    sizes = {"batch_size": batch_size, "num_examples": num_examples}
    lengths = {
        name: duration_in_steps(config, name, **sizes) or 0 for name in ("warmup", "cooldown")
    }
    for name, steps in lengths.items():
        if steps > total_steps / 2:
            lengths[name] = total_steps // 2
            words = "%s of %d steps is longer than half of the run, %d steps: using %d"
            log.warning(words, name, steps, total_steps, lengths[name])
    warmup, cooldown = lengths.values()
    decay = _decay(config, learning_rate, total_steps, warmup, cooldown)
    pieces = [optax.linear_schedule(0, learning_rate, warmup), decay]
    boundaries = [warmup]
    if cooldown:
        last = float(jnp.asarray(decay(total_steps - warmup - cooldown)))
        pieces.append(optax.linear_schedule(last, 0, cooldown))
        boundaries.append(total_steps - cooldown)
    return optax.join_schedules(pieces, boundaries)


def _decay(
    config: ScheduleConfig, peak: float, total_steps: int, warmup: int, cooldown: int
) -> optax.Schedule:
    """Returns the decay as a schedule that starts at the end of warmup."""
    steps = max(total_steps - warmup - cooldown, 1)
    if config.decay == "cosine":
        return optax.cosine_decay_schedule(peak, steps, alpha=config.end_learning_rate / peak)
    if config.decay == "linear":
        return optax.linear_schedule(peak, config.end_learning_rate, steps)
    if config.decay == "rsqrt":
        return lambda step: peak / jnp.sqrt(1 + step / config.timescale_steps)
    if config.decay == "step":
        # Drops during warmup are moved to its end.
        boundaries = [
            max(round(share * total_steps) - warmup, 0) for share in sorted(config.step_at)
        ]
        pieces = [
            optax.constant_schedule(peak * config.step_factor**i)
            for i in range(len(boundaries) + 1)
        ]
        return optax.join_schedules(pieces, boundaries)
    return optax.constant_schedule(peak)


def build_weight_decay(config: OptimizerConfig, total_steps: int) -> optax.Schedule | None:
    """Returns step -> weight decay, half a cosine; None: the weight decay is constant."""
    last = config.end_weight_decay
    if last is None:
        return None
    # It may rise: the difference is then negative.
    difference = optax.cosine_decay_schedule(config.weight_decay - last, total_steps)
    return lambda step: last + difference(step)
