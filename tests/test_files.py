"""Atomic writes, JSON files and the lock between processes."""

import fcntl
import os
import subprocess
import sys

import pytest

from vit_jax.errors import CheckpointError, FileError, LockedError
from vit_jax.files import (
    is_locked,
    locked,
    read_json,
    read_json_lines,
    write_atomically,
    write_json,
)

# Imports nothing but filelock, so that it starts at once.
HOLD = (
    "import filelock, sys\n"
    "with filelock.FileLock(sys.argv[1]):\n"
    "    print('held', flush=True)\n"
    "    sys.stdin.read()\n"
)


def test_a_write_creates_the_folder_and_leaves_no_temporary_file(tmp_path):
    write_atomically(tmp_path / "new" / "a.txt", "one")
    write_atomically(tmp_path / "new" / "a.txt", "two")
    assert (tmp_path / "new" / "a.txt").read_text() == "two"
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.txt"]


def test_a_full_disk_leaves_the_old_content(tmp_path, monkeypatch):
    write_atomically(tmp_path / "a.txt", "one")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "a.txt", "two")
    assert (tmp_path / "a.txt").read_text() == "one"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_written_json_can_be_read(tmp_path):
    write_json(tmp_path / "a.json", {"a": [1, None]})
    assert (tmp_path / "a.json").read_text() == '{\n  "a": [\n    1,\n    null\n  ]\n}\n'
    assert read_json(tmp_path / "a.json") == {"a": [1, None]}
    write_json(tmp_path / "b.json", [1])
    assert read_json(tmp_path / "b.json", list) == [1]


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (None, "no file {}; expected a JSON object; check the path"),
        (b"{", "{} is damaged: Expecting property name enclosed in double quotes"),
        (b"\xff", "{} is damaged: 'utf-8' codec can't decode byte 0xff"),
        (b"[]", "{} holds a list; expected a JSON object; check the path"),
    ],
)
def test_an_unusable_json_file_is_a_one_line_error(content, got, tmp_path):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        read_json(path)
    assert str(caught.value).startswith(got.format(path))
    with pytest.raises(CheckpointError, match=r"; use another step$"):
        read_json(path, error=CheckpointError, fix="use another step")


def test_a_folder_in_place_of_a_json_file_is_a_one_line_error(tmp_path):
    with pytest.raises(FileError, match=r"cannot read .*: Is a directory"):
        read_json(tmp_path)


def test_json_lines_end_at_a_line_that_a_crash_cut_off(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"a": 3')
    assert read_json_lines(tmp_path / "a.jsonl") == [{"a": 1}, {"a": 2}]
    assert read_json_lines(tmp_path / "missing.jsonl") == []


def test_a_lock_excludes_other_processes_until_they_die(tmp_path):
    path = tmp_path / "new" / "lock"
    with locked(path):
        pass
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(LockedError, match="lock is locked by another process"), locked(path):
        pass
    with pytest.raises(LockedError), locked(path, timeout_s=0.1):
        pass
    assert is_locked(path)
    holder.kill()
    holder.communicate()
    assert not is_locked(path)
    with locked(path, timeout_s=None):
        assert is_locked(path)


def test_a_file_system_without_locks_is_warned_about(tmp_path, monkeypatch, caplog):
    def refuse(descriptor, operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "lock"):
        pass
    assert f"no lock on {tmp_path / 'lock'}: No locks available" in caplog.text


def test_a_lock_file_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OSError, match="exists"),
        locked(tmp_path / "file/lock"),
    ):
        pass
