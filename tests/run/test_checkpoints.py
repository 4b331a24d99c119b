"""Which checkpoints of a run are kept, and what is in them."""

import math

import jax.numpy as jnp
import pytest

from vit_jax.config.run import CheckpointConfig
from vit_jax.errors import CheckpointError, NonFiniteError
from vit_jax.run.checkpoints import CheckpointFolder
from vit_jax.run.verify import verify_checkpoint
from vit_jax.train.state import TrainState

CONFIG = {"seed": 3, "optimizer": {"name": "sgd"}}


@pytest.fixture
def state():
    return TrainState(jnp.zeros((), jnp.int32), {"a": jnp.ones(3)}, {"m": jnp.ones(3)}, None)


def test_json_that_is_not_strict_is_an_error_of_the_save(state, tmp_path):
    checkpoints = CheckpointFolder(tmp_path, CheckpointConfig())
    data = {"step": 1, "seconds": {"step": math.nan}}
    checkpoints.save(1, state, data=data, config=CONFIG)
    with pytest.raises(NonFiniteError, match=r"seconds\.step = nan in the JSON of a checkpoint"):
        checkpoints.wait()
    assert checkpoints.steps() == []


@pytest.mark.parametrize("damaged", ["[" * 100_000, "3", '{"init_timestamp_nsecs": "x"}'])
def test_a_damaged_file_of_orbax_is_one_error(state, damaged, tmp_path):
    with CheckpointFolder(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.save(1, state, data={"step": 1}, config=CONFIG)
    (path,) = tmp_path.glob("1/_CHECKPOINT_METADATA")
    path.write_text(damaged)
    with pytest.raises(CheckpointError, match=r"_CHECKPOINT_METADATA in .*delete the files"):
        CheckpointFolder(tmp_path, CheckpointConfig(), read_only=True)
    path.unlink()
    with CheckpointFolder(tmp_path, CheckpointConfig(), read_only=True) as checkpoints:
        assert checkpoints.steps() == [1]


@pytest.mark.parametrize("content", ["{}", '{"arrays": 3, "environment": {}}', "[]"])
def test_a_description_without_its_arrays_is_damage_that_verify_finds(state, content, tmp_path):
    with CheckpointFolder(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.save(1, state, data={"step": 1}, config=CONFIG)
    at = tmp_path / "1"
    assert verify_checkpoint(at, print) == []
    (at / "about" / "metadata").write_text(content)
    (damage,) = verify_checkpoint(at, print)
    assert "about/metadata" in damage
