"""The lock between processes: a file on a disk, a lease in a bucket."""

import contextlib
import fcntl
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from vit_jax.errors import LockedError
from vit_jax.storage import lock
from vit_jax.storage.lock import is_locked, locked
from vit_jax.storage.paths import user_path

PROCESSES = multiprocessing.get_context("spawn")


def lock_files(path):
    """Returns the leases of a lock, in ascending order."""
    return sorted(path.parent.glob(f"{path.name}-[0-9]*"))


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    """Times of a tenth, so that tests do not wait."""
    monkeypatch.setattr(lock, "STALE_S", 3.0)
    monkeypatch.setattr(lock, "RENEWAL_INTERVAL_S", 0.5)
    monkeypatch.setattr(lock, "_RENEWAL_TIMEOUT_S", 2.0)


@pytest.fixture
def path(bucket):
    return user_path(f"{bucket.url}/run #1/.lock")


def elsewhere(monkeypatch):
    """Makes this process the process of another machine, whose state cannot be asked for."""
    monkeypatch.setattr(lock, "_machine", lambda: "another machine")


def content(path):
    return json.loads(lock_files(path)[-1].read_text())


def abandon(path, **changes):
    """Leaves a lease as a process of another machine does that is killed."""
    lease = path.with_name(".lock-000007")
    owner = {"id": "1", "host": "other", "machine": "m", "pid": 12, "started": 0.0}
    lease.write_text(json.dumps(owner | changes))
    return lease


def test_a_live_lease_is_refused_and_its_owner_named(path, monkeypatch):
    with locked(path):
        assert is_locked(path)
        owner = content(path)
        with pytest.raises(LockedError) as caught, locked(path):
            pass
        assert f"is locked by process {owner['pid']} on host {owner['host']}" in str(caught.value)
        # A process of another machine waits until it sees that the lease is renewed.
        elsewhere(monkeypatch)
        with pytest.raises(LockedError, match=f"process {owner['pid']} on host"), locked(path):
            pass
    assert not is_locked(path)
    with locked(path):
        assert content(path)["machine"] == "another machine"
    assert [file.name for file in lock_files(path)] == [".lock-000002"]


@pytest.mark.slow
def test_a_process_waits_for_the_lease_as_long_as_it_was_told(path):
    released = threading.Event()

    def hold():
        with locked(path):
            time.sleep(2)
            released.set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        while not lock_files(path):
            time.sleep(0.05)
        with pytest.raises(LockedError), locked(path, timeout_s=0.2):
            pass
        with locked(path, timeout_s=None):
            assert released.is_set()


def test_a_lease_of_a_process_of_this_machine_that_has_ended_is_free_at_once(path, monkeypatch):
    monkeypatch.setattr(lock, "STALE_S", 60.0)
    process = PROCESSES.Process(target=int)
    process.start()
    process.join()
    abandon(path, machine=lock._machine(), pid=process.pid, started=time.time())
    begin = time.monotonic()
    with locked(path):
        assert time.monotonic() - begin < 30


def hold_alone(address, held, done):
    """Takes the lease in turn with others; returns by `done` how often another held it too."""
    lock.STALE_S, lock.RENEWAL_INTERVAL_S = 20.0, 1.0
    overlaps = 0
    for _ in range(3):
        with locked(user_path(address), timeout_s=None):
            with held.get_lock():
                held.value += 1
            time.sleep(0.05)
            overlaps += held.value != 1
            with held.get_lock():
                held.value -= 1
    done.put(overlaps)


@pytest.mark.slow
def test_of_racing_processes_one_holds_the_lease_at_a_time(path):
    held, done = PROCESSES.Value("i", 0), PROCESSES.Queue()
    processes = [
        PROCESSES.Process(target=hold_alone, args=(str(path), held, done)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    assert [done.get(timeout=100) for _ in processes] == [0] * 3
    for process in processes:
        process.join()
    assert len(lock_files(path)) == 1


@pytest.mark.slow
def test_of_racing_threads_one_takes_over_a_stale_lease(path):
    abandon(path)
    assert is_locked(path)
    begin, barrier, waited = time.monotonic(), threading.Barrier(4), []

    def take(number):
        barrier.wait()
        with contextlib.suppress(LockedError), locked(path):
            waited.append(time.monotonic() - begin)
            assert [file.name for file in lock_files(path)] == [".lock-000008"]
            time.sleep(4)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(take, range(4)))
    assert len(waited) == 1
    assert waited[0] > 2


def test_a_lease_that_another_process_took_over_is_noticed(path):
    lost = []
    with locked(path, on_lost=lost.append):
        abandon(path)
        while not lost:
            time.sleep(0.1)
    assert "was taken over by process 12 on host other" in lost[0]
    assert content(path)["host"] == "other"
    assert "released" not in content(path)


@pytest.mark.parametrize("fault", [{"read_only": True}, {"latency_s": 5}])
@pytest.mark.slow
def test_a_lease_that_cannot_be_renewed_is_given_up_before_it_is_stale(
    path, bucket, fault, monkeypatch
):
    lost, begin = [], time.monotonic()
    with locked(path, on_lost=lambda reason: lost.append((reason, time.monotonic() - begin))):
        bucket.server.faults(**fault, only="run #1")
        while not lost:
            time.sleep(0.05)
        bucket.server.faults()
    ((reason, seconds),) = lost
    assert reason.startswith(f"the lease of {path} cannot be renewed: ")
    assert seconds < lock.STALE_S + 1


def test_a_lease_whose_creation_was_not_answered_is_held_at_once(path, bucket, monkeypatch):
    monkeypatch.setattr(lock, "STALE_S", 60.0)
    bucket.server.faults(answer_lost=1, times=1, only=r"write .*lock-000001")
    begin = time.monotonic()
    with locked(path):
        assert time.monotonic() - begin < 30
        assert bucket.server.requests(what="faults") == 1


@pytest.mark.slow
def test_a_reader_without_the_right_to_write_sees_whether_a_lease_is_held(path, bucket):
    abandon(path)
    bucket.server.faults(read_only=True)
    assert is_locked(path)
    time.sleep(3.5)
    assert not is_locked(path)


@pytest.mark.slow
def test_a_lease_on_a_mounted_bucket_does_not_rely_on_clocks(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "is_bucket", lambda path: True)
    monkeypatch.setattr(lock, "_CACHED_S", 1.0)
    path = tmp_path / ".lock"
    lease = abandon(path)
    os.utime(lease, (time.time() - 300, time.time() - 300))  # Its owner's clock is wrong.
    assert is_locked(path)
    begin = time.monotonic()
    with locked(path):
        assert time.monotonic() - begin > 3
    lease = path.with_name(".lock-000009")
    lease.write_text("")  # A file that is being written is empty for others.
    assert is_locked(path)
    os.utime(lease, (time.time() - 3600, time.time() - 3600))
    assert not is_locked(path)


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
