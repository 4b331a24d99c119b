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
