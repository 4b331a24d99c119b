"""Checkpoints that are damaged, not complete, or in a bucket."""

import math
import os
from pathlib import Path

import jax.numpy as jnp
import pytest

from vit_jax.config.run import CheckpointConfig
from vit_jax.errors import CheckpointError, NonFiniteError, RunFolderError
from vit_jax.run.about import COMMIT_FILE, choose_checkpoint, incomplete_steps
from vit_jax.run.checkpoints import CheckpointFolder
from vit_jax.run.folder import RunFolder
from vit_jax.run.verify import verify_checkpoint
from vit_jax.storage.paths import user_path
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


@pytest.mark.parametrize("mounted", [False, True])
def test_folders_are_renamed_on_a_disk_but_not_on_a_mounted_bucket(
    mounted, state, tmp_path, monkeypatch
):
    renamed, rename = [], os.rename
    monkeypatch.setattr("vit_jax.run.checkpoints.is_bucket", lambda path: mounted)
    monkeypatch.setattr(os, "rename", lambda a, b: renamed.append(Path(b).name) or rename(a, b))
    with CheckpointFolder(tmp_path, CheckpointConfig()) as folder:
        folder.save(1, state, data={"step": 1}, config=CONFIG)
    items = {"params", "optimizer", "data", "config", "about"}
    assert set(renamed) == (set() if mounted else items | {"1"})
    for name in (".", *items):
        assert (tmp_path / "1" / name / COMMIT_FILE).is_file()
    assert choose_checkpoint(tmp_path) == tmp_path / "1"


def write(folder, step):
    """Writes an array of a checkpoint that is not complete."""
    path = folder / str(step) / "params" / "array"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"weights {step}")


def test_a_step_without_its_commit_file_is_not_read(gcs, tmp_path):
    for folder in (tmp_path, user_path(f"{gcs.url}/run/checkpoints")):
        write(folder, 1)
        with pytest.raises(CheckpointError, match=f"{folder}/1 has no {COMMIT_FILE}"):
            choose_checkpoint(folder / "1")
        (folder / "1" / COMMIT_FILE).write_text("5000000001")
        assert choose_checkpoint(folder / "1") == folder / "1"


def test_what_a_save_or_a_deletion_has_left_is_deleted(gcs):
    folder = user_path(f"{gcs.url}/run/checkpoints")
    write(folder, 1)
    write(folder, 2)
    assert incomplete_steps(folder) == [1, 2]
    CheckpointFolder(folder, CheckpointConfig()).close()
    assert list(folder.glob("**/*")) == []


def test_a_checkpoint_that_was_copied_from_a_disk_is_complete_in_a_bucket(state, gcs, tmp_path):
    with CheckpointFolder(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.save(1, state, data={"step": 1}, config=CONFIG)
    folder = user_path(f"{gcs.url}/run/checkpoints")
    for path in tmp_path.rglob("*"):
        if path.is_file():
            (folder / path.relative_to(tmp_path)).write_bytes(path.read_bytes())
    with CheckpointFolder(folder, CheckpointConfig()) as checkpoints:
        assert checkpoints.steps() == [1]
        assert checkpoints.read_config() == CONFIG
    assert verify_checkpoint(folder / "1", print) == []


def test_a_run_folder_on_s3_is_refused():
    folder = user_path("s3://bucket/run")
    with pytest.raises(RunFolderError, match=r"a run folder on s3://bucket/run; expected gs://"):
        RunFolder(folder, CheckpointConfig())
    with pytest.raises(RunFolderError, match=r"data on s3:// can be read"):
        CheckpointFolder(folder / "checkpoints", CheckpointConfig())
