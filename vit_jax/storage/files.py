"""Atomic writes and JSON files, on local disks and in buckets."""

import contextlib
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any, TypeVar

from vit_jax.errors import FileError, UserError
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.paths import is_bucket

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
    if is_bucket(path):  # An object gets its new content when it is closed.
        path.write_text(text)
        return
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


def remove_tree(path: Path) -> None:
    """Deletes a folder and all that is in it; does nothing if it does not exist.

    Raises:
        OSError: something cannot be deleted.
    """
    if isinstance(path, BucketPath):
        path.remove_tree()
    elif path.exists():
        shutil.rmtree(path)
