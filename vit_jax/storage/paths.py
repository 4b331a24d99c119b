"""The one door from what a user writes to a path: a local path, `gs://...` or `s3://...`.

No other module makes a path from a user's string; `tests/storage/test_paths.py` checks this.
"""

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from vit_jax.errors import FileError, RunFolderError, nearest
from vit_jax.storage.bucket_path import PACKAGES, BucketPath, configure_clients, is_installed

# Limits of Linux, in bytes. Files in a folder of the user need some of the length.
LONGEST_NAME = 255
_LONGEST_PATH = 3800

# Types of mounted buckets in /proc/self/mountinfo. They show a file to other hosts when it is
# closed, lock files for one host only, and cannot rename a folder at once.
_MOUNTED_BUCKETS = (
    "fuse.gcsfuse",
    "fuse.geesefs",
    "fuse.goofys",
    "fuse.mountpoint-s3",
    "fuse.rclone",
    "fuse.s3fs",
)


def user_path(text: str | os.PathLike[str]) -> Path:
    """Returns the path that a user means. Nothing is opened or created.

    `text` is a local path, where "~" is the home folder; or `gs://BUCKET/...` or `s3://BUCKET/...`,
    which give a `BucketPath`. For S3-compatible stores set AWS_ENDPOINT_URL.
    """
    if isinstance(text, BucketPath):
        return text
    text = os.fspath(text)
    if not text.strip():
        raise FileError("the path is empty", "a path", "check the shell variable that it came from")
    _check_text(text)
    scheme, separator, rest = text.partition("://")
    if not separator:
        first, slash, rest = text.partition(":/")
        if slash and first in PACKAGES:
            raise FileError(f"the path {text!r}", "two slashes", f"write {first}://{rest}")
        try:
            return Path(text).expanduser()
        except RuntimeError as error:
            raise FileError(
                f"the path {text!r}: {error}", "a known user after ~", "correct it"
            ) from None
    if scheme not in PACKAGES:
        near, letters = nearest(scheme.lower(), PACKAGES), set(scheme.lower())
        raise FileError(
            f"the address {text!r}",
            "a local path, gs://BUCKET/... or s3://BUCKET/...",
            f"did you mean {near}://{rest}?" if letters & set(near) else "use one of these",
        )
    if not rest.strip("/"):
        raise FileError(f"the address {text!r}", f"{scheme}://BUCKET/...", "add the bucket")
    if not is_installed(scheme):
        raise FileError(
            f"{text} cannot be opened: {PACKAGES[scheme]} is not installed",
            f"the package {PACKAGES[scheme]}",
            f"run: pip install {PACKAGES[scheme]}",
        )
    configure_clients()
    return BucketPath(text)


def _check_text(text: str) -> None:
    """Raises FileError for a text that cannot be a path, or not one in JSON and log files."""
    try:
        parts = [part.encode() for part in text.split("/")]
    except UnicodeEncodeError:
        encoded = text.encode(errors="surrogateescape")
        shown, fix = encoded.decode(errors="backslashreplace"), "rename it"
        with contextlib.suppress(UnicodeDecodeError):
            encoded.decode()
            fix = "set LC_ALL=C.UTF-8: the locale is not UTF-8"
        raise FileError(f"the path {shown!r} is not UTF-8", "a path in UTF-8", fix) from None
    if "\0" in text:
        raise FileError(f"the path {text!r} has a zero byte", "a path without one", "correct it")
    longest = max(parts, key=len)
    if len(longest) > LONGEST_NAME:
        raise FileError(
            f"the path {text[:40]}... has a name of {len(longest)} bytes",
            f"names of at most {LONGEST_NAME} bytes",
            "shorten it",
        )
    if len(text.encode()) > _LONGEST_PATH:
        raise FileError(
            f"the path {text[:40]}... has {len(text.encode()):,} bytes",
            f"at most {_LONGEST_PATH:,}",
            "shorten it",
        )


def check_output_folder(path: Path, inside: Sequence[str] = ()) -> None:
    """Checks that a folder, and those `inside`, can be written to or made, before work begins.

    Nothing is created.
    """
    if isinstance(path, BucketPath):
        return
    path = path.absolute()
    for folder in (path, *(path / name for name in inside)):
        there = next(p for p in (folder, *folder.parents) if p.exists() or p.is_symlink())
        if not there.is_dir():
            what = "a link that leads nowhere" if there.is_symlink() else "a file"
            raise RunFolderError(
                f"{there} is {what}", "a folder, or a new path", "move it, or choose another path"
            )
        if not os.access(there, os.W_OK | os.X_OK):
            raise RunFolderError(
                f"{there} is not writable", "a writable folder", "change its permissions"
            )


def local_path(text: str | os.PathLike[str], what: str) -> Path:
    """Returns a local path that a user means; `what` names it in errors, e.g. "a config file"."""
    path = user_path(text)
    if isinstance(path, BucketPath):
        raise FileError(
            f"{what} at {path}", "a local path", "copy it to this machine, or choose one there"
        )
    return path


def is_bucket(path: Path) -> bool:
    """Whether a path is in a bucket: by its address, or on a mounted bucket (gcsfuse and others).

    Files there are visible to other hosts once they are closed; they cannot be appended to, and
    locks of the operating system do not hold between hosts.
    """
    return isinstance(path, BucketPath) or _mount_type(path) in _MOUNTED_BUCKETS


def _mount_type(path: Path) -> str:
    """Returns the type of the file system that holds a local path; "" if it is not known."""
    try:
        path = path.resolve()
    except (OSError, RuntimeError):  # A link that leads to itself.
        return ""
    # If several are mounted at one place, the last one is visible.
    inside = [mount for mount in _mounts() if path.is_relative_to(mount[0])]
    return max(enumerate(inside), key=lambda m: (len(m[1][0]), m[0]))[1][1] if inside else ""


def _mounts() -> list[tuple[str, str]]:
    """Returns (mount point, type of file system) of all mounts, in the order of mounting."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # Not Linux.
        return []
    fields = [line.split(" - ", 1) for line in lines]
    return [(_decoded(before.split()[4]), after.split()[0]) for before, after in fields]


def _decoded(mount_point: str) -> str:
    """Returns a mount point with the octal codes of spaces and other characters replaced."""
    return re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), mount_point)


def cache_dir() -> Path:
    """Returns the user's cache folder of this project; what is in it can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vit_jax"
