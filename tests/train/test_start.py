"""What a run checks before it restores a checkpoint."""

import pytest

from vit_jax.errors import CheckpointError
from vit_jax.train import start


def test_processes_that_see_different_checkpoints_are_an_error(monkeypatch):
    start._check_same_steps([10, 20])
    monkeypatch.setattr(start, "gather", lambda name, steps: [[10, 20], [10, 20], [10]])
    with pytest.raises(CheckpointError) as caught:
        start._check_same_steps([10, 20])
    assert caught.value.got == "process 2 sees checkpoints of steps [10], process 0 of [10, 20]"


POSITION = {"step": 4, "seed": 0, "examples_seen": 512, "dataset": "digits", "fingerprint": "ab"}


@pytest.mark.parametrize(
    "damage", [{"step": 5}, {"seed": None}, {"dataset": 3}, {"examples_seen": "512"}]
)
def test_a_damaged_data_position_is_not_taken_for_another_dataset(damage):
    with pytest.raises(CheckpointError) as caught:
        start._check_position(POSITION | damage, POSITION, 4)
    assert caught.value.got.startswith("the data position of the checkpoint of step 4 is damaged")
    assert caught.value.fix == "remove the folder checkpoints/4 to go back to the one before"
