"""The lock between processes."""

import fcntl
import subprocess
import sys

import pytest

from vit_jax.errors import LockedError
from vit_jax.storage.lock import is_locked, locked

# Imports nothing but filelock, so that it starts at once.
HOLD = (
    "import filelock, sys\n"
    "with filelock.FileLock(sys.argv[1]):\n"
    "    print('held', flush=True)\n"
    "    sys.stdin.read()\n"
)


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
    with pytest.raises(OSError, match="exists"), locked(tmp_path / "file/lock"):
        pass
