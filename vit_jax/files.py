"""Local files: atomic writes, JSON, and a lock between processes."""

import contextlib
import json
import logging
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import filelock

from vit_jax.errors import FileError, LockedError, UserError

log = logging.getLogger(__name__)

T = TypeVar("T", dict, list)


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that readers, even after a crash, see either the old or the new content.

    Args:
        path: file to write; its folder is created if missing.
        text: the whole content.

    Raises:
        OSError: the file cannot be written; the old content is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may write the same file at the same time.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file atomically, indented by two spaces.

    Raises:
        OSError: the file cannot be written; the old content is still there.
    """
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def read_json(
    path: Path,
    kind: type[T] = dict,
    *,
    error: type[UserError] = FileError,
    fix: str = "check the path, or restore the file",
) -> T:
    """Reads a JSON file and checks the type of its top level.

    Args:
        path: file to read.
        kind: `dict` or `list`.
        error: class of the error to raise.
        fix: how to fix the problem, for the error.

    Raises:
        FileError: the file is missing, unreadable, not JSON, or its top level has another type.
            If `error` is given, that class is raised instead.
    """
    expected = {dict: "a JSON object", list: "a JSON array"}[kind]
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise error(f"no file {path}", expected, fix) from None
    except OSError as problem:
        raise error(f"cannot read {path}: {problem.strerror}", expected, fix) from None
    except ValueError as problem:  # Neither UTF-8 nor JSON.
        raise error(f"{path} is damaged: {problem}", expected, fix) from None
    if not isinstance(content, kind):
        raise error(f"{path} holds a {type(content).__name__}", expected, fix)
    return content


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Reads a file with one JSON object per line. Returns [] if the file is missing.

    Reading stops at the first line that is not JSON: a crash can cut off the last line.
    """
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


@contextlib.contextmanager
def locked(path: Path, timeout_s: float | None = 0) -> Iterator[None]:
    """Holds an exclusive lock on a file during the `with` block.

    The operating system releases the lock when the process dies. The lock file is not deleted; its
    existence has no meaning. The lock works between processes of one machine and, on NFS version
    4, between machines. On a mounted bucket it does not work between machines: two hosts can hold
    it at the same time. If the file system does not support locks, a warning is logged and the
    block runs without a lock.

    Args:
        path: lock file; it and its folder are created if missing.
        timeout_s: how long to wait while another process holds the lock; None: forever.

    Raises:
        LockedError: another process holds the lock.
        OSError: the lock file cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A lock taken by one thread may be released by another one.
    lock = filelock.FileLock(
        path, timeout=-1 if timeout_s is None else timeout_s, thread_local=False
    )
    with path.open("a"):  # An error here means that the file cannot be created.
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
    if not path.exists():
        return False
    try:
        with locked(path):
            return False
    except LockedError:
        return True
