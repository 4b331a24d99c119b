"""Checkpoints in a bucket: the local copy of those on s3://, and what is not complete."""

import shutil
import threading

import pytest

from vit_jax.config.run import CheckpointConfig
from vit_jax.errors import CheckpointError
from vit_jax.run import staging
from vit_jax.run.about import (
    COMMIT_FILE,
    ORBAX_FILE,
    choose_checkpoint,
    incomplete_steps,
    saved_steps,
)
from vit_jax.run.checkpoints import CheckpointFolder
from vit_jax.run.staging import StagedFolder
from vit_jax.storage.files import files_below
from vit_jax.storage.paths import user_path

pytestmark = pytest.mark.slow


@pytest.fixture
def staged(s3, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = StagedFolder(user_path(f"{s3.url}/run/checkpoints"))
    folder.pull()
    yield folder
    folder.close()


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


def test_new_checkpoints_are_uploaded_and_old_ones_deleted(staged):
    write(staged.local, 1)
    write(staged.local, 2)
    staged.push()
    assert saved_steps(staged.remote) == [1, 2]
    assert (staged.remote / "2" / "params" / "array").read_text() == "weights 2"
    shutil.rmtree(staged.local / "1")
    staged.push()
    assert saved_steps(staged.remote) == [2]
    assert list((staged.remote / "1").glob("**/*")) == []


def test_each_process_has_its_own_copy_of_whole_checkpoints(staged):
    write(staged.local, 1)
    staged.push()
    write(staged.remote, 2)  # Without its commit file.
    other = StagedFolder(staged.remote)
    other.pull()
    assert other.local != staged.local
    assert saved_steps(other.local) == [1]
    assert (other.local / "1" / "params" / "array").read_text() == "weights 1"
    other.close()
    assert not other.local.parent.exists()
    assert saved_steps(staged.local) == [1]


def test_the_copy_of_a_killed_process_is_deleted(staged):
    left = staged.local.parents[1] / "left"
    write(left / "steps", 1)
    StagedFolder(staged.remote).close()
    assert not left.exists()
    assert staged.local.exists()


def test_checkpoints_stay_in_the_bucket_if_the_copy_is_lost(staged):
    write(staged.local, 1)
    staged.push()
    shutil.rmtree(staged.local / "1")
    staged.push()
    assert saved_steps(staged.remote) == [1]


def test_a_checkpoint_that_loses_a_file_gets_no_commit_file(staged, monkeypatch):
    write(staged.local, 1)
    monkeypatch.setattr(staging, "files_below", lambda at: [*files_below(at), at / "gone"])
    with pytest.raises(FileNotFoundError, match=r"No such file to upload: .*/1/gone"):
        staged.push()
    assert saved_steps(staged.remote) == []


def test_a_checkpoint_that_is_deleted_during_its_upload_is_uploaded(staged, monkeypatch):
    write(staged.local, 1)
    go_on = threading.Event()
    upload = staged._upload
    monkeypatch.setattr(staged, "_upload", lambda step: (go_on.wait(60), upload(step)))
    staged.push_behind()
    shutil.rmtree(staged.local / "1")
    write(staged.local, 2)
    staged.push_behind()  # Does not wait for the first one.
    go_on.set()
    staged._push.result()
    assert saved_steps(staged.remote) == [1]
    assert (staged.remote / "1" / "params" / "array").read_text() == "weights 1"
    staged.push()
    assert saved_steps(staged.remote) == [2]


def test_a_step_of_a_bucket_without_its_commit_file_is_not_read(bucket):
    folder = user_path(f"{bucket.url}/run/checkpoints")
    write(folder, 1)
    with pytest.raises(CheckpointError, match=f"{folder}/1 has no {COMMIT_FILE}"):
        choose_checkpoint(folder / "1")
    (folder / "1" / COMMIT_FILE).write_text("5000000001")
    assert choose_checkpoint(folder / "1") == folder / "1"


def test_what_a_save_or_a_deletion_has_left_is_deleted(bucket):
    folder = user_path(f"{bucket.url}/run/checkpoints")
    write(folder, 1)
    write(folder, 2)
    (folder / "2" / "about" / "metadata").unlink()
    write(folder, 3)
    (folder / "3" / ORBAX_FILE).unlink()
    assert incomplete_steps(folder) == [1, 2, 3]
    CheckpointFolder(folder, CheckpointConfig()).close()
    assert list(folder.glob("**/*")) == []


def test_a_checkpoint_that_was_copied_from_a_disk_is_an_error_and_kept(bucket):
    folder = user_path(f"{bucket.url}/run/checkpoints")
    write(folder, 1, in_bucket="false")
    with pytest.raises(CheckpointError) as caught:
        CheckpointFolder(folder, CheckpointConfig())
    assert caught.value.got == f"{folder}/1 has no {COMMIT_FILE}, but was complete elsewhere"
    assert (folder / "1" / "params" / "array").read_text() == "weights 1"
