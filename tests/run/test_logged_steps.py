import pytest

from vit_jax.run.logged_steps import LoggedSteps, missing_steps


@pytest.mark.parametrize(
    ("intervals", "step", "logged"),
    [
        ([[0, 5]], 4, []),
        ([[0, 5]], 17, [5, 10, 15]),
        ([[0, 5]], 22, [5, 10, 15, 20, 22]),  # The last step of the run.
        ([[0, 11]], 22, [11, 22]),
        ([[0, 50]], 22, [22]),
        ([[0, 10], [12, 3]], 20, [10, 15, 18]),
        ([[0, 3], [12, 10]], 22, [3, 6, 9, 12, 20, 22]),
        ([[10, 5]], 20, [15, 20]),  # An earlier version saved step 10.
        ([[22, 5]], 22, []),
    ],
)
def test_lines_are_expected_at_the_interval_that_held(intervals, step, logged):
    steps = LoggedSteps(22, tuple((after, every) for after, every in intervals))
    assert steps.up_to(step) == logged


def test_only_a_new_interval_is_added():
    first = LoggedSteps.resumed(40, [], 0, 10)
    assert first.intervals == ((0, 10),)
    assert LoggedSteps.resumed(40, [[0, 10]], 20, 10) == first
    changed = LoggedSteps.resumed(40, [[0, 10]], 20, 7)
    assert changed.intervals == ((0, 10), (20, 7))
    assert [step for step in range(21, 41) if step in changed] == [21, 28, 35, 40]


def test_missing_steps_are_joined_to_ranges_of_logged_steps():
    assert missing_steps([5, 10, 15], {5, 10, 15}) == ""
    assert missing_steps([5, 10, 15], {5, 15}) == "step 10"
    assert missing_steps([500, 1000, 1500], {}) == "steps 500 to 1,500"
    assert missing_steps(range(1, 20), range(2, 20, 2)) == "steps 1, 3, 5, 7, 9 and 5 more"
