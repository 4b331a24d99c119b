"""Checkpoints in a bucket that are not complete."""

import pytest

from vit_jax.config.run import CheckpointConfig
from vit_jax.errors import CheckpointError, RunFolderError
from vit_jax.run.about import COMMIT_FILE, ORBAX_FILE, choose_checkpoint, incomplete_steps
from vit_jax.run.checkpoints import CheckpointFolder
from vit_jax.run.folder import RunFolder
from vit_jax.storage.paths import user_path


def write(folder, step, time_ns=1, in_bucket="true"):
    """Writes what Orbax leaves of a checkpoint on a disk, with one array."""
    for name, text in {
        "params/array": f"weights {step}",
        "about/metadata": f'{{"in_bucket": {in_bucket}}}',
        ORBAX_FILE: f'{{"commit_timestamp_nsecs": {time_ns}}}',
    }.items():
        path = folder / str(step) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_step_of_a_bucket_without_its_commit_file_is_not_read(gcs):
    folder = user_path(f"{gcs.url}/run/checkpoints")
    write(folder, 1)
    with pytest.raises(CheckpointError, match=f"{folder}/1 has no {COMMIT_FILE}"):
        choose_checkpoint(folder / "1")
    (folder / "1" / COMMIT_FILE).write_text("5000000001")
    assert choose_checkpoint(folder / "1") == folder / "1"


def test_what_a_save_or_a_deletion_has_left_is_deleted(gcs):
    folder = user_path(f"{gcs.url}/run/checkpoints")
    write(folder, 1)
    write(folder, 2)
    (folder / "2" / "about" / "metadata").unlink()
    write(folder, 3)
    (folder / "3" / ORBAX_FILE).unlink()
    assert incomplete_steps(folder) == [1, 2, 3]
    CheckpointFolder(folder, CheckpointConfig()).close()
    assert list(folder.glob("**/*")) == []


def test_a_checkpoint_that_was_copied_from_a_disk_is_an_error_and_kept(gcs):
    folder = user_path(f"{gcs.url}/run/checkpoints")
    write(folder, 1, in_bucket="false")
    with pytest.raises(CheckpointError) as caught:
        CheckpointFolder(folder, CheckpointConfig())
    assert caught.value.got == f"{folder}/1 has no {COMMIT_FILE}, but was complete elsewhere"
    assert (folder / "1" / "params" / "array").read_text() == "weights 1"


def test_a_run_folder_on_s3_is_refused():
    folder = user_path("s3://bucket/run")
    with pytest.raises(RunFolderError, match=r"a run folder on s3://bucket/run; expected gs://"):
        RunFolder(folder, CheckpointConfig())
    with pytest.raises(RunFolderError, match=r"data on s3:// can be read"):
        CheckpointFolder(folder / "checkpoints", CheckpointConfig())
