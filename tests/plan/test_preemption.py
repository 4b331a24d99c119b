"""The simulator of preempted runs, against closed forms and runs computed by hand."""

import dataclasses
import math

import numpy as np
import pytest

from vit_jax.plan.preemption import RunCosts, along_trace, at_rate, simulate

pytestmark = pytest.mark.slow

COSTS = RunCosts(
    steps=1000, step_s=0.5, save_s=0.2, write_s=3.0, start_s=10.0, compile_s=20.0, restore_s=4.0
)


def never(runs=1):
    return at_rate(0.0, 0.0, runs, np.random.default_rng(0))


def trace(*up_s, down_s=0.0):
    up = np.array(up_s, float)
    return along_trace(up, np.full(len(up), down_s), np.zeros(1))


def only(outcome):
    """The figures of the only run."""
    return {f.name: getattr(outcome, f.name).item() for f in dataclasses.fields(outcome)}


@pytest.mark.parametrize(
    ("interval", "saves"), [(1, 999), (7, 142), (100, 9), (333, 3), (999, 1), (1000, 0), (5000, 0)]
)
def test_without_preemptions_a_run_takes_its_start_its_steps_and_its_saves(interval, saves):
    costs = dataclasses.replace(COSTS, write_s=0.2)
    found = only(simulate(costs, interval, never()))
    assert found["total_s"] == pytest.approx(30 + 500 + (saves + 1) * 0.2)
    assert found["saving_s"] == pytest.approx((saves + 1) * 0.2)
    assert found["restart_s"] == 30
    assert found["lost_s"] == found["idle_s"] == found["preemptions"] == 0


def test_a_save_waits_until_the_last_one_is_complete():
    # Every step is saved, and a save is complete after 3 s: a cycle takes 3 s instead of 0.7.
    found = only(simulate(COSTS, 1, never()))
    assert found["total_s"] == pytest.approx(30 + 0.5 + 999 * 3 + 3)
    assert found["lost_s"] == 0


def test_a_run_along_a_trace_computed_by_hand():
    # The first machine lasts 100 s: 30 s of start, then 70 s for cycles of 50 + 0.2 s. The save of
    # step 100 begins at 80 s and is complete at 83 s. 17 s minus the save's 0.2 s are lost.
    # The second lasts 40 s: 34 s of start, 6 s are lost. The third finishes: 34 s, 900 steps, 8
    # saves and 3 s until the last is complete.
    found = only(simulate(COSTS, 100, trace(100, 40, 1e6, down_s=60)))
    assert found["preemptions"] == 2
    assert found["idle_s"] == 120
    assert found["restart_s"] == 30 + 34 + 34
    assert found["lost_s"] == pytest.approx(100 - 30 - 50 - 0.2 + 6)
    assert found["saving_s"] == pytest.approx(0.2 + 8 * 0.2 + 3)
    assert found["total_s"] == pytest.approx(100 + 60 + 40 + 60 + 34 + 450 + 8 * 0.2 + 3)


def test_a_kill_during_a_write_falls_back_to_the_checkpoint_before():
    costs = dataclasses.replace(COSTS, steps=300, start_s=0.0, compile_s=0.0, restore_s=0.0)
    # The save of step 100 begins at 50 s, that of step 200 at 100.2 s.
    just_complete = only(simulate(costs, 100, trace(103.3, 1e6)))
    not_complete = only(simulate(costs, 100, trace(103.1, 1e6)))
    assert just_complete["lost_s"] == pytest.approx(103.3 - 100 - 2 * 0.2)
    assert not_complete["lost_s"] == pytest.approx(103.1 - 50 - 0.2)


def test_nothing_is_lost_if_the_notice_is_long_enough_to_save():
    # The signal comes at 91.3 s, after 122.2 steps; the run finishes its step, and saves it.
    found = only(simulate(COSTS, 100, trace(91.3, 1e6), notice_s=30))
    assert found["lost_s"] == 0
    assert found["preemptions"] == 1
    assert found["total_s"] == pytest.approx(91.3 + 0.5 + 3 + 34 + 877 * 0.5 + 8 * 0.2 + 3)
    too_short = only(simulate(COSTS, 100, trace(91.3, 1e6), notice_s=3))
    assert too_short["lost_s"] == pytest.approx(91.3 + 3 - 30 - 50 - 0.2)


@pytest.mark.parametrize("between_s", [150.0, 600.0, 5000.0])
@pytest.mark.parametrize("interval", [50, 125])
def test_exponential_failures_take_the_expected_time_of_dalys_formula(between_s, interval):
    """Source: J. T. Daly, FGCS 22(3), 2006, equation 13: M e^(R/M) (e^((t + d)/M) - 1) a segment.

    It is exact for saves that block until they are complete. The first session has a start, too:
    M (e^(R/M) - 1) more.
    """
    restart_s, save_s = 30.0, 2.0
    costs = RunCosts(1000, 0.5, save_s, save_s, 10.0, 20.0, 0.0)
    rng = np.random.default_rng(0)
    found = simulate(costs, interval, at_rate(3600 / between_s, 0.0, 4000, rng)).total_s
    grow = math.exp(restart_s / between_s)
    segment_s = interval * 0.5 + save_s
    expected = between_s * grow * math.expm1(segment_s / between_s) * 1000 / interval
    expected += between_s * (grow - 1)
    error = found.std() / math.sqrt(len(found))
    assert error < 0.02 * expected
    assert found.mean() == pytest.approx(expected, abs=4 * error)


def test_the_parts_add_up_and_runs_do_not_affect_each_other():
    up = np.array([40.0, 300, 90, 35, 700])
    begin = np.linspace(0, up.sum(), 50, endpoint=False)
    down = np.array([5.0, 50, 500, 60, 7])
    many = simulate(COSTS, 60, along_trace(up, down, begin), notice_s=2)
    parts = many.lost_s + many.restart_s + many.saving_s + many.idle_s + COSTS.steps * COSTS.step_s
    np.testing.assert_allclose(many.total_s, parts)
    np.testing.assert_allclose(many.machine_s, many.total_s - many.idle_s)
    for i in (0, 17, 49):
        one = simulate(COSTS, 60, along_trace(up, down, begin[i : i + 1]), notice_s=2)
        assert one.total_s.item() == many.total_s[i]


def test_a_run_that_cannot_end_takes_forever():
    assert only(simulate(COSTS, 100, trace(60.0)))["total_s"] == math.inf
    assert only(simulate(COSTS, 20, trace(60.0)))["total_s"] < 5000


def test_a_trace_starts_where_it_is_told_to_and_wraps_around():
    sessions = along_trace(np.array([10.0, 20.0]), np.array([1.0, 2.0]), np.array([0.0, 4.0, 10.0]))
    ups, downs = zip(*(next(sessions) for _ in range(3)), strict=True)
    assert np.array(ups).T.tolist() == [[10, 20, 10], [6, 20, 10], [20, 10, 20]]
    assert np.array(downs).T.tolist() == [[1, 2, 1], [1, 2, 1], [2, 1, 2]]
