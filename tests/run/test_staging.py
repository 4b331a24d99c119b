"""Checkpoints in a bucket: the local copy of those on s3://, and what is not complete."""

import threading

import pytest

from vit_jax.config.run import CheckpointConfig
from vit_jax.errors import CheckpointError
from vit_jax.run.about import COMMIT_FILE, ORBAX_FILE, incomplete_steps, saved_steps
from vit_jax.run.checkpoints import CheckpointFolder
from vit_jax.run.staging import StagedFolder
from vit_jax.storage.paths import user_path


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
    for path in sorted((staged.local / "1").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (staged.local / "1").rmdir()
    staged.push()
    assert saved_steps(staged.remote) == [2]
    assert list((staged.remote / "1").glob("**/*")) == []


def test_another_machine_gets_whole_checkpoints(staged, tmp_path, monkeypatch):
    write(staged.local, 1)
    staged.push()
    write(staged.remote, 2)  # Without its commit file.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    other = StagedFolder(staged.remote)
    other.pull()
    assert other.local != staged.local
    assert saved_steps(other.local) == [1]
    assert (other.local / "1" / "params" / "array").read_text() == "weights 1"


def test_a_copy_of_another_run_is_replaced(staged):
    """Another machine has run again in the same folder, after somebody emptied it."""
    write(staged.local, 1, time_ns=1)
    staged.push()
    write(staged.remote, 1, time_ns=2)
    (staged.remote / "1" / "params" / "array").write_text("other weights")
    staged.pull()
    assert (staged.local / "1" / "params" / "array").read_text() == "other weights"


@pytest.mark.parametrize("name", ["params/array", ORBAX_FILE])
def test_an_object_that_was_deleted_is_uploaded_again(staged, name, caplog):
    write(staged.local, 1)
    staged.push()
    (staged.remote / "1" / name).unlink()
    staged.pull()
    assert caplog.messages == [f"{staged.remote}/1 lacks {name}: uploaded again"]
    assert (staged.remote / "1" / name).read_bytes() == (staged.local / "1" / name).read_bytes()


def test_checkpoints_that_are_being_uploaded_are_needed(staged, monkeypatch):
    write(staged.local, 1)
    assert staged.uploading() == []
    go_on = threading.Event()
    upload = staged._upload
    monkeypatch.setattr(staged, "_upload", lambda step: (go_on.wait(60), upload(step)))
    staged.push_behind()
    write(staged.local, 2)
    staged.push_behind()  # Does not wait for the first one.
    assert staged.uploading() == [1]
    go_on.set()
    staged.push()
    assert staged.uploading() == []
    assert saved_steps(staged.remote) == [1, 2]


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
