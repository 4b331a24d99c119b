"""Atomic writes and JSON files, on local disks and in buckets."""

import contextlib
import json
import math
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from vit_jax.errors import FileError, NonFiniteError, UserError
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.paths import is_bucket

T = TypeVar("T", dict, list)

# Bound of single images that users give.
LARGEST_IMAGE_BYTES = 1 << 30
# Bounds of the JSON files that users give. The largest that this package writes have megabytes.
_JSON_BYTES = 1 << 28
_JSON_DEPTH = 100
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file so that readers, even after a crash, see either the old or the new content.

    Text is written in UTF-8; bytes of file names that are not UTF-8 become a question mark. The
    file's folder is created if missing.
    """
    if isinstance(content, str):
        named = content.encode(errors="surrogateescape")  # Bytes of names in an ASCII locale.
        content = named.decode(errors="replace").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_bucket(path):  # An object gets its new content when it is closed.
        path.write_bytes(content)
        return
    # Several processes may write the same file at the same time.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file atomically, indented by two spaces."""
    write_atomically(path, json_text(content, what=str(path), indent=2) + "\n")


def json_text(content: Any, *, what: str, indent: int | None = None) -> str:
    """Returns JSON that every parser reads: NaN and Infinity are an error, which names `what`."""
    try:
        return json.dumps(content, indent=indent, allow_nan=False)
    except ValueError:
        found = _non_finite(content)
        if found is None:  # It contains itself.
            raise
        raise NonFiniteError(
            f"{found} in {what}",
            "finite numbers",
            "look for the cause in metrics.jsonl, or for damaged weights",
        ) from None


def _non_finite(content: Any, name: str = "") -> str | None:
    """Returns "NAME = VALUE" of the first number that is not finite."""
    if isinstance(content, float):
        return None if math.isfinite(content) else f"{name} = {content}".removeprefix(" = ")
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(content, Mapping):
        parts = content.items()
    elif isinstance(content, list | tuple):
        parts = enumerate(content)
    found = (_non_finite(v, f"{name}.{key}" if name else str(key)) for key, v in parts)
    return next((text for text in found if text), None)


def check_regular(path: Path, most_bytes: int | None = None) -> None:
    """Raises FileError unless it is a file, and not too large: a device or pipe may never end."""
    if isinstance(path, BucketPath):
        size = path.stat().st_size
    else:
        status = path.stat()
        size = status.st_size
        kind = next((name for test, name in _KINDS if test(status.st_mode)), None)
        if kind is not None:
            raise FileError(f"{path} is {kind}", "a file", "give the path of a file")
    if most_bytes is not None and size > most_bytes:
        raise FileError(
            f"{path} has {size:,} bytes", f"at most {most_bytes:,}", "give another file"
        )


LFS_POINTER = "a Git LFS pointer in place of the file"
LFS_FIX = "download the file: git lfs pull"


def is_lfs_pointer(start: bytes) -> bool:
    """Whether a file begins like the pointer that a clone without Git LFS has in its place."""
    return start.startswith(b"version https://git-lfs.github.com/spec/")


def read_file(path: Path, most_bytes: int) -> bytes:
    """Reads a file whose size is checked first."""
    check_regular(path, most_bytes)
    if isinstance(path, BucketPath):  # It tries again if the connection breaks.
        content = path.read_bytes()
    else:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)  # Files of /proc have the size 0.
    if len(content) > most_bytes:
        raise FileError(f"{path} is growing", f"at most {most_bytes:,} bytes", "give another file")
    if is_lfs_pointer(content):
        raise FileError(f"{path} is {LFS_POINTER}", "the file", LFS_FIX)
    return content


def parse_json(
    text: str | bytes, make_object: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Returns the content of a JSON text; `make_object` is the `object_pairs_hook` of `json.loads`.

    Raises ValueError if it is nested deeper than anything that this package reads.
    """
    deep = ValueError(f"nested deeper than {_JSON_DEPTH} levels")
    try:
        content = json.loads(text, object_pairs_hook=make_object)
    except RecursionError:
        raise deep from None
    level = _nested([content])
    for _ in range(_JSON_DEPTH):
        level = _nested(
            inner for one in level for inner in (one.values() if isinstance(one, dict) else one)
        )
    if level:
        raise deep
    return content


def _nested(values: Iterable[Any]) -> list[Any]:
    """Returns the objects and arrays among some JSON values."""
    return [value for value in values if isinstance(value, dict | list)]


def read_json(
    path: Path,
    kind: type[T] = dict,
    *,
    error: type[UserError] = FileError,
    fix: str = "check the path, or restore the file",
) -> T:
    """Reads a JSON file and checks the type of its top level.

    A file that is missing, unreadable, not JSON or of another type raises `error`, with the `fix`.
    """
    expected = {dict: "a JSON object", list: "a JSON array"}[kind]
    try:
        content = parse_json(read_file(path, _JSON_BYTES))
    except FileError as problem:
        fix = LFS_FIX if problem.fix == LFS_FIX else fix
        raise error(problem.got, expected, fix) from None
    except FileNotFoundError:
        raise error(f"no file {path}", expected, fix) from None
    except OSError as problem:
        raise error(f"cannot read {path}: {problem.strerror}", expected, fix) from None
    except ValueError as problem:  # Neither UTF-8 nor JSON.
        raise error(f"{path} is damaged: {problem}", expected, fix) from None
    if not isinstance(content, kind):
        article = "an" if isinstance(content, int) else "a"
        raise error(f"{path} holds {article} {type(content).__name__}", expected, fix)
    return content


def append_text(path: Path, text: str) -> None:
    """Appends text to a file. Objects in a bucket are written again, by one process at a time."""
    if is_bucket(path):
        write_atomically(path, (path.read_text(encoding="utf-8") if path.exists() else "") + text)
        return
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write(text)


@contextlib.contextmanager
def local_copy(path: Path) -> Iterator[Path]:
    """Yields a file or folder on a local disk, for libraries that cannot read from a bucket.

    One in a bucket is copied to a temporary folder, which is deleted after the block. A local path
    is yielded as it is.
    """
    if not isinstance(path, BucketPath):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="vit_jax-") as folder:
        target = Path(folder) / path.name
        path.download(target)
        yield target


@contextlib.contextmanager
def write_through(path: Path) -> Iterator[Path]:
    """Yields a path on a local disk where a library can write a file or a folder.

    If `path` is in a bucket, what the block has written to a temporary folder is copied there if
    the block succeeds. A local path is yielded as it is.
    """
    if not is_bucket(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="vit_jax-") as folder:
        source = Path(folder) / path.name
        yield source
        if isinstance(path, BucketPath):
            path.upload(source)
        elif source.is_dir():
            shutil.copytree(source, path, dirs_exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)


def files_below(folder: Path) -> list[Path]:
    """Returns all files at any depth below a folder, sorted by name."""
    if isinstance(folder, BucketPath):  # One listing, where `is_file` would ask for each.
        return [path for path, _ in folder.find()]
    return sorted(path for path in folder.rglob("*") if path.is_file())


def copy_file(source: Path, target: Path) -> None:
    """Copies a file from and to a disk or a bucket, where it appears whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, BucketPath):
        if isinstance(target, BucketPath):
            target.write_bytes(source.read_bytes())
        else:
            source.download(target)
    elif isinstance(target, BucketPath):
        target.upload(source)
    else:
        shutil.copyfile(source, target)


def move_tree(source: Path, target: Path, last: str) -> None:
    """Moves a folder. In a bucket its objects are moved one by one, and the file `last` last."""
    if not isinstance(source, BucketPath):
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
        return
    for path, _ in sorted(source.find(), key=lambda found: found[0] == source / last):
        path.replace(target / path.relative_to(source).as_posix())


def remove_tree(path: Path) -> None:
    """Deletes a folder and all that is in it; does nothing if it does not exist."""
    if isinstance(path, BucketPath):
        path.remove_tree()
    elif path.exists():
        shutil.rmtree(path)
