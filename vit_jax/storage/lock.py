"""Locks between processes: of the operating system on local disks, leases in buckets.

A lease is an object that names its owner. Its number counts up: the owner of the highest number
holds the lock. Each number is created with the store's if-not-exists precondition, so that one
process gets it. The owner writes the object again every few seconds. A lease that was not renewed
for `STALE_S` is stale, and the next number may be taken. Ages are differences of times that the
store has stamped; clocks of hosts do not count. An owner that could not renew its lease gives up
before it is stale.
"""

import contextlib
import errno
import json
import logging
import os
import platform
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import psutil

from vit_jax.errors import LockedError
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import json_text
from vit_jax.storage.paths import is_bucket

log = logging.getLogger(__name__)

# A lease that was not renewed for this many seconds can be taken over.
STALE_S = 60.0
RENEWAL_INTERVAL_S = 10.0
# Seconds after which the renewal of a lease counts as failed: before others may take it.
_RENEWAL_TIMEOUT_S = 45.0
# Mounted buckets show other hosts what they have cached for up to this many seconds, and times
# there are those of the hosts' clocks, which are right to this many seconds.
_CACHED_S = 90.0
_CLOCK_ERROR_S = 600.0


def _end_process(reason: str) -> None:
    """Ends this process at once: another process may write to the same place."""
    log.critical("%s", reason)
    os._exit(76)


@contextlib.contextmanager
def locked(
    path: Path, timeout_s: float | None = 0, on_lost: Callable[[str], None] = _end_process
) -> Iterator[None]:
    """Holds an exclusive lock during the `with` block, or raises LockedError.

    On a local disk it is a lock of the operating system on a file, which is released when the
    process dies and works between processes of one machine and, on NFS version 4, between machines.
    The file is not deleted; its existence has no meaning. If the file system does not support
    locks, a warning is logged and the block runs without a lock.

    In a bucket, also a mounted one, it is a lease. If another process holds it, this one waits
    until the lease is renewed, which shows that its owner lives, or stale.

    Args:
        path: lock file; it and its folder are created if missing. A lease adds "-NUMBER".
        timeout_s: how long to wait while another process is known to hold the lock; None: forever.
        on_lost: called with the reason, in another thread, when another process has taken the
            lease over or the store cannot be reached. By default it ends the process.
    """
    if is_bucket(path):
        with _Lease(path, on_lost).held(timeout_s):
            yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # A lock taken by one thread may be released by another one.
    lock = filelock.FileLock(
        path, timeout=-1 if timeout_s is None else timeout_s, thread_local=False
    )
    with path.open("a", encoding="utf-8"):  # An error here means that the file cannot be created.
        pass
    try:
        lock.acquire()
    except filelock.Timeout:
        raise LockedError(
            f"{path} is locked by another process", "one process at a time", "wait for it to end"
        ) from None
    except OSError as error:
        log.warning("no lock on %s: %s", path, error.strerror)
    try:
        yield
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of `locked`."""
    if is_bucket(path):
        return _Lease(path).is_held()
    if not path.exists():
        return False
    try:
        with locked(path):
            return False
    except LockedError:
        return True


class _Lease:
    """A lease PATH-NUMBER in a bucket."""

    def __init__(self, path: Path, on_lost: Callable[[str], None] = _end_process):
        self._path, self._on_lost = path, on_lost
        self._stale_s = STALE_S + (0 if isinstance(path, BucketPath) else _CACHED_S)
        self._content = {
            "id": uuid.uuid4().hex,
            "host": platform.node(),
            "machine": _machine(),
            "pid": os.getpid(),
            "started": psutil.Process().create_time(),
        }
        self._mine: Path | None = None
        self._renewed, self._problem = time.monotonic(), None
        self._closed = threading.Event()

    @contextlib.contextmanager
    def held(self, timeout_s: float | None) -> Iterator[None]:
        self._mine = self._acquire(timeout_s)
        self._renewed = time.monotonic()
        threads = [
            threading.Thread(target=target, name="lease", daemon=True)
            for target in (self._renew_often, self._watch)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._closed.set()
            for thread in threads:
                thread.join()
            with contextlib.suppress(OSError):
                if self._newest() == self._mine:
                    _write(self._mine, self._content | {"released": True})

    def is_held(self) -> bool:
        newest = self._newest()
        content = None if newest is None else _read(newest)
        return newest is not None and content is not None and not self._is_free(newest, content)

    def _acquire(self, timeout_s: float | None) -> Path:
        """Creates the next number and returns its path."""
        begin = changed = time.monotonic()
        seen: dict[str, Any] | None = None
        while True:
            newest = self._newest()
            content = {} if newest is None else _read(newest)
            now = time.monotonic()
            if content is None:  # The next owner has just deleted it.
                time.sleep(0.1)
                continue
            is_stale = seen == content and now - changed > self._stale_s
            if newest is None or is_stale or self._is_free(newest, content):
                mine = self._create_after(newest)
                if mine is not None:
                    return mine
                time.sleep(random.uniform(0.1, 0.5))
                continue
            lives = self._owner_lives(content) or (bool(seen) and content != seen)
            if lives and timeout_s is not None and now - begin >= timeout_s:
                raise LockedError(
                    f"{self._path} is locked by process {content.get('pid')} on host"
                    f" {content.get('host')}",
                    "one process at a time",
                    "wait for it to end",
                )
            if seen is None:
                log.info(
                    "%s is locked by process %s on host %s: waiting until it renews its lease"
                    " or %.0f s have passed",
                    self._path, content.get("pid"), content.get("host"), self._stale_s,
                )  # fmt: skip
            if content != seen:
                seen, changed = content, now
            time.sleep(1)

    def _newest(self) -> Path | None:
        numbered = _numbered(self._path)
        return numbered[-1] if numbered else None

    def _is_free(self, lease: Path, content: dict[str, Any]) -> bool:
        """Whether a lease was released, or its owner is dead or was not heard of for too long."""
        if content.get("released") or self._owner_lives(content) is False:
            return True
        # On a mounted bucket the owner's clock has stamped it.
        limit_s = STALE_S if isinstance(lease, BucketPath) else _CLOCK_ERROR_S + self._stale_s
        try:
            return self._store_time() - lease.stat().st_mtime > limit_s
        except FileNotFoundError:  # Deleted by the next owner.
            return False

    def _owner_lives(self, content: dict[str, Any]) -> bool | None:
        """Whether the owner is running; None: it is or was on another machine."""
        if content.get("machine") != _machine():
            return None
        try:
            started = psutil.Process(content["pid"]).create_time()
        except psutil.NoSuchProcess:
            return False
        return abs(started - content["started"]) <= 1

    def _store_time(self) -> float:
        """Returns the time of the store: when it stamps an object that is written now.

        Where this process may only read, it is the time of this host.
        """
        probe = self._path.with_name(f"{self._path.name}.{uuid.uuid4().hex[:8]}")
        try:
            probe.write_text("", encoding="utf-8")
        except PermissionError:
            return time.time()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def _create_after(self, newest: Path | None) -> Path | None:
        """Creates the number after `newest`; returns None if another process was faster."""
        number = 1 if newest is None else _number(newest) + 1
        mine = self._path.with_name(f"{self._path.name}-{number:06}")
        # If the answer to the request is lost, it is made again and finds this process's own lease.
        with contextlib.suppress(FileExistsError):
            _create(mine, self._content)
        # A process that was slow to create its number may find that the lock went on without it.
        if self._newest() != mine or (_read(mine) or {}).get("id") != self._content["id"]:
            return None
        for older in _numbered(self._path):
            if _number(older) < number:
                older.unlink(missing_ok=True)
        return mine

    def _renew_often(self) -> None:
        """Renews the lease until it is released or lost."""
        count = 0
        while not self._closed.wait(RENEWAL_INTERVAL_S):
            count += 1
            # The store stamps the lease at some time after this.
            now = time.monotonic()
            try:
                newest = self._newest()
                if newest != self._mine or newest is None:
                    owner = (None if newest is None else _read(newest)) or {}
                    self._lose(
                        f"{self._path} was taken over by process {owner.get('pid')} on host"
                        f" {owner.get('host')}: this process was not heard of for {STALE_S:.0f} s"
                    )
                    return
                _write(newest, self._content | {"renewals": count})
                self._renewed, self._problem = now, None
            except OSError as error:
                self._problem = error

    def _watch(self) -> None:
        """Gives the lease up before others may take it, even while a request hangs."""
        while not self._closed.wait(min(1, _RENEWAL_TIMEOUT_S / 10)):
            if time.monotonic() - self._renewed > _RENEWAL_TIMEOUT_S:
                reason = self._problem or "the store does not answer"
                self._lose(f"the lease of {self._path} cannot be renewed: {reason}")

    def _lose(self, reason: str) -> None:
        self._closed.set()
        self._on_lost(reason)


def _machine() -> str:
    """Returns what processes that see the same process ids have in common.

    Containers can have the name of their host and ids of their own.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # Not Linux.
        return platform.node()


def _numbered(path: Path) -> list[Path]:
    """Returns the leases of a lock, in ascending order."""
    return sorted(path.parent.glob(f"{path.name}-[0-9][0-9][0-9][0-9][0-9][0-9]"))


def _number(lease: Path) -> int:
    return int(lease.name.rpartition("-")[2])


def _create(path: Path, content: dict[str, Any]) -> None:
    """Writes a file that does not exist yet; raises FileExistsError if it does."""
    if isinstance(path, BucketPath):
        path.create(json_text(content, what="a lock").encode())
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(json_text(content, what="a lock"))
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        # gcsfuse: another host has created the file while it was open here.
        raise FileExistsError(errno.EEXIST, "Object exists", str(path)) from None


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json_text(content, what="a lock"), encoding="utf-8")


def _read(path: Path) -> dict[str, Any] | None:
    """Returns the content of a lease; {}: it is not yet written; None: it is gone."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except json.JSONDecodeError:  # On a mounted bucket a file is empty until it is closed.
        return {}
