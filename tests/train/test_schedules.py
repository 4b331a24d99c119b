import numpy as np
import pytest

from vit_jax.config.optimizer import ScheduleConfig
from vit_jax.errors import ConfigError
from vit_jax.train.schedules import build_schedule


def rates(steps, total=100, learning_rate=1.0, **options):
    sizes = {"total_steps": total, "batch_size": 10, "num_examples": 100}
    schedule = build_schedule(ScheduleConfig(**options), learning_rate, **sizes)
    return [float(schedule(s)) for s in steps]


def test_warmup_is_linear_from_zero_and_cosine_reaches_the_end_rate():
    got = rates([0, 5, 10, 55, 100], warmup_steps=10, end_learning_rate=0.2)
    np.testing.assert_allclose(got, [0, 0.5, 1, 0.6, 0.2], rtol=1e-6)


def test_linear_decay_reaches_the_end_rate():
    got = rates([0, 10, 55, 100], warmup_steps=10, decay="linear", end_learning_rate=0.1)
    np.testing.assert_allclose(got, [0, 1, 0.55, 0.1], rtol=1e-6)


def test_rsqrt_halves_after_three_timescales_and_cools_down_to_zero():
    options = {"decay": "rsqrt", "timescale_steps": 10, "warmup_steps": 10, "cooldown_steps": 20}
    got = rates([10, 40, 80, 90, 100], **options)
    at_80 = 1 / np.sqrt(8)
    np.testing.assert_allclose(got, [1, 0.5, at_80, at_80 / 2, 0], rtol=1e-6, atol=1e-7)


def test_a_constant_schedule_may_end_with_a_cooldown():
    got = rates([0, 50, 75, 100], decay="constant", cooldown_steps=50)
    np.testing.assert_allclose(got, [1, 1, 0.5, 0], atol=1e-6)


def test_durations_may_be_in_epochs_and_examples():
    """100 examples per epoch, 10 per step: one epoch is 10 steps, 50 examples are 5."""
    assert rates([5], warmup_epochs=1) == pytest.approx([0.5])
    assert rates([1], warmup_examples=50) == pytest.approx([0.2])


def test_a_warmup_longer_than_the_run_shrinks_to_half_of_it_with_a_warning(caplog):
    got = rates([0, 5, 10], total=20, warmup_steps=10_000, decay="constant")
    np.testing.assert_allclose(got, [0, 0.5, 1])
    assert "warmup of 10000 steps is longer than half of the run, 20 steps: using 10" in caplog.text
    caplog.clear()
    assert rates([0, 5, 10], total=20, warmup_steps=10, decay="constant") == got
    assert not caplog.text


def test_a_warmup_and_a_cooldown_have_at_most_half_of_the_run_each(caplog):
    options = {"warmup_steps": 15, "cooldown_steps": 40, "decay": "constant"}
    np.testing.assert_allclose(rates([0, 5, 10, 15, 20], total=20, **options), [0, 0.5, 1, 0.5, 0])
    assert "cooldown of 40 steps is longer than half of the run, 20 steps: using 10" in caplog.text


def test_step_decay_equals_that_of_bit():
    """500 warmup steps, then a tenth of the rate at 30, 60 and 90% of 10,000 steps."""
    got = rates(
        [0, 250, 500, 2999, 3000, 5999, 6000, 8999, 9000, 9999],
        total=10_000,
        learning_rate=0.003,
        decay="step",
        warmup_steps=500,
    )
    wanted = [0, 0.0015, 0.003, 0.003, 3e-4, 3e-4, 3e-5, 3e-5, 3e-6, 3e-6]
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_step_at_and_step_factor_are_used():
    got = rates([0, 49, 50, 99], decay="step", step_at=(0.5,), step_factor=0.5)
    np.testing.assert_allclose(got, [1, 1, 0.5, 0.5])
    with pytest.raises(ConfigError, match="fractions of the run between 0 and 1"):
        ScheduleConfig(decay="step", step_at=(30.0,))
