"""`BucketPath`: a path in a bucket that is used like a `pathlib.Path`.

fsspec's file systems (gcsfs, s3fs) do the work, retries of throttled and broken requests included.
This class adds what code that was written for local paths relies on: the interface of pathlib,
errors that are OSErrors and name the object, and listings that are never out of date.
"""

import contextlib
import errno
import fnmatch
import functools
import hashlib
import importlib.util
import io
import logging
import os
import pathlib
import random
import stat
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

PACKAGES = {"gs": "gcsfs", "s3": "s3fs"}
"""Scheme -> package that speaks it. The extra of `vit_jax` is "gcs" or "s3"."""

# Listings must show what other hosts have just written. botocore's standard retries wait with
# jitter; those of gcsfs always do.
_OPTIONS: dict[str, dict[str, Any]] = {
    "gcs": {"use_listings_cache": False},
    "s3": {
        "use_listings_cache": False,
        "config_kwargs": {
            "retries": {"mode": "standard", "max_attempts": 8},
            "max_pool_connections": 64,
        },
    },
}
log = logging.getLogger(__name__)

# gcsfs repeats a read that was throttled or cut for about 30 s, with jitter. For s3://, botocore
# repeats throttled requests in this way, but s3fs repeats cut reads for 1 s only, without jitter.
_READ_ATTEMPTS = {"gs": 1, "s3": 5}


@functools.cache
def configure_clients() -> None:
    """Sets the options of fsspec's clients, also for libraries that use them by themselves."""
    import fsspec.config

    for protocol, options in _OPTIONS.items():
        fsspec.config.conf[protocol] = options | fsspec.config.conf.get(protocol, {})
    # gcsfs would ask for the kind of each bucket by another API, which needs more rights.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    # Orbax and TFDS open files by etils.epath, which would use TensorFlow where it is installed.
    os.environ.setdefault("EPATH_USE_TF", "false")
    # These log tracebacks of errors that are raised too.
    for name in ("gcsfs", "s3fs"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def file_system(scheme: str) -> Any:
    """Returns the fsspec file system of a scheme, one for each process and thread."""
    import fsspec

    configure_clients()
    return fsspec.filesystem(scheme)


def is_installed(scheme: str) -> bool:
    """Whether the package that speaks a scheme is installed."""
    return importlib.util.find_spec(PACKAGES[scheme]) is not None


@contextlib.contextmanager
def as_os_error(path: object) -> Iterator[None]:
    """Converts errors of a storage client to OSErrors that name the object."""
    try:
        yield
    except (ImportError, NotImplementedError):
        raise
    except (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        number = errno.EEXIST if isinstance(error, FileExistsError) else errno.ENOENT
        raise type(error)(error.errno or number, reason_of(error), str(path)) from None
    except Exception as error:  # Each client has its own error classes.
        kind = PermissionError if _is_refusal(error) else OSError
        number = errno.EACCES if kind is PermissionError else getattr(error, "errno", None)
        raise kind(number or errno.EIO, reason_of(error), str(path)) from error


def _is_refusal(error: Exception) -> bool:
    """Whether the store refuses access: no or expired credentials, or missing rights."""
    name, text = type(error).__name__, str(error)
    code = str(getattr(error, "code", ""))
    return (
        isinstance(error, PermissionError)
        or code in ("401", "403")
        or text.startswith(("Forbidden", "Access Denied"))
        or name in ("NoCredentialsError", "DefaultCredentialsError", "RefreshError")
        or "ExpiredToken" in text
        or text.endswith("Bad Request")  # S3 answers a HEAD with an expired token so.
    )


def reason_of(error: Exception) -> str:
    """Returns one line on what went wrong in a store."""
    known = {FileNotFoundError: "No such object", FileExistsError: "Object exists"}
    if type(error) in known:
        return known[type(error)]
    text = getattr(error, "strerror", None) or str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    text = ": ".join(lines[:2]) or type(error).__name__
    return (f"access was refused: {text}" if _is_refusal(error) else text)[:200]


def _translated(method: F) -> F:
    """Makes a method of `BucketPath` raise OSErrors that name the object."""

    @functools.wraps(method)
    def wrapper(self: "BucketPath", *args: Any, **kwargs: Any) -> Any:
        with as_os_error(self):
            return method(self, *args, **kwargs)

    return wrapper  # pyright: ignore[reportReturnType]


class StoredObject(NamedTuple):
    """An object as a listing describes it."""

    path: "BucketPath"
    size: int  # in bytes
    # Hash of address, size and the store's generation or entity tag; changes with the content.
    key: str


class BucketPath(pathlib.PosixPath):
    """A path `gs://BUCKET/...` or `s3://BUCKET/...`.

    Buckets have no folders: `mkdir` does nothing, and a folder exists while an object is below it.
    Files cannot be appended to. A file that is written appears whole, when it is closed. Methods of
    `pathlib.Path` that have no meaning for objects raise NotImplementedError.

    >>> path = BucketPath("gs://bucket/run") / "config.json"
    >>> str(path), path.scheme, path.key
    ('gs://bucket/run/config.json', 'gs', 'bucket/run/config.json')
    """

    @property
    def scheme(self) -> str:
        return self.parts[0].removesuffix(":")

    @property
    def key(self) -> str:
        """Bucket and name of the object: "BUCKET/NAME"."""
        return "/".join(self.parts[1:])

    @property
    def fs(self) -> Any:
        return file_system(self.scheme)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.key}"

    def __fspath__(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"BucketPath({str(self)!r})"

    def __reduce__(self):
        return BucketPath, (str(self),)

    def as_posix(self) -> str:
        return str(self)

    def as_uri(self) -> str:
        return str(self)

    @property
    def parent(self) -> "BucketPath":
        """The folder that holds it; of a bucket, itself."""
        return self if len(self.parts) <= 2 else BucketPath(*self.parts[:-1])

    @property
    def parents(self) -> tuple["BucketPath", ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The folders that hold it, from the innermost to the bucket."""
        return tuple(BucketPath(*self.parts[:n]) for n in range(len(self.parts) - 1, 1, -1))

    def joinpath(self, *others: Any) -> Any:
        """Returns this path with others appended; an absolute path takes its place."""
        path: Any = self
        for other in others:
            path = path / other
        return path

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, str | pathlib.PurePath) and pathlib.PurePath(other).is_absolute():
            return pathlib.Path(other)
        if isinstance(other, BucketPath):
            return other
        if not isinstance(other, str | os.PathLike):
            return NotImplemented
        return BucketPath(*self.parts, other)

    def __rtruediv__(self, other: Any) -> "BucketPath":
        return self

    def relative_to(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *other: Any, **kwargs: Any
    ) -> pathlib.PurePosixPath:
        """Returns the path from another path in the same bucket to this one."""
        start = pathlib.PurePosixPath(*BucketPath(*other).parts)
        return pathlib.PurePosixPath(*self.parts).relative_to(start, **kwargs)

    def is_relative_to(self, *other: Any) -> bool:
        try:
            self.relative_to(*other)
        except ValueError:
            return False
        return True

    def match(self, path_pattern: Any, **kwargs: Any) -> bool:
        return pathlib.PurePosixPath(*self.parts).match(path_pattern, **kwargs)

    def is_absolute(self) -> bool:
        return True

    def absolute(self) -> "BucketPath":
        return self

    def expanduser(self) -> "BucketPath":
        return self

    def resolve(self, strict: bool = False) -> "BucketPath":
        """Returns the path without "." and ".." parts."""
        return BucketPath(f"{self.scheme}://{os.path.normpath(self.key)}")

    def is_symlink(self) -> bool:
        return False

    def samefile(self, other_path: Any) -> bool:
        """Whether the other path is the same address."""
        other = BucketPath(other_path)
        return "://" in str(other_path) and self.resolve() == other.resolve()

    @_translated
    def _info(self) -> dict[str, Any] | None:
        try:
            return self.fs.info(self.key)
        except FileNotFoundError:
            return None

    def exists(self, **kwargs: Any) -> bool:
        """Whether there is such an object, or an object below this path."""
        return self._info() is not None

    def is_file(self, **kwargs: Any) -> bool:
        """Whether there is such an object."""
        info = self._info()
        return info is not None and info["type"] == "file"

    def is_dir(self, **kwargs: Any) -> bool:
        """Whether there is an object below this path."""
        info = self._info()
        return info is not None and info["type"] == "directory"

    def stat(self, **kwargs: Any) -> os.stat_result:
        """Returns type, size in bytes and time of the last change; other fields are 0."""
        info = self._info()
        if info is None:
            raise FileNotFoundError(errno.ENOENT, "No such object", str(self))
        kind = stat.S_IFDIR if info["type"] == "directory" else stat.S_IFREG
        changed = info.get("mtime") or info.get("LastModified")
        seconds = changed.timestamp() if changed else 0
        size = int(info.get("size") or 0)
        return os.stat_result((kind, 0, 0, 0, 0, 0, size, seconds, seconds, seconds))

    def iterdir(self) -> Generator["BucketPath", None, None]:
        """Yields the objects and folders directly below this path, sorted by name."""
        with as_os_error(self):
            names = [name.rstrip("/") for name in self.fs.ls(self.key, detail=False)]
            if names == [self.key] and self.is_file():
                raise NotADirectoryError(errno.ENOTDIR, "Not a folder", str(self))
        inside = {name.removeprefix(f"{self.key}/") for name in names if name != self.key}
        yield from (self / name for name in sorted(inside) if name)

    def glob(self, pattern: str, **kwargs: Any) -> Generator["BucketPath", None, None]:
        """Yields what is below this path and matches a pattern, sorted by name.

        With "**" in the pattern, all objects below this path are listed; otherwise only the folders
        that match its first parts.
        """
        # The glob of fsspec would also read patterns into the name of this folder, and gcsfs lists
        # all objects below it.
        parts = pathlib.PurePosixPath(pattern).parts
        if "**" in parts:
            tree = self._tree()
            found = [path for path in tree if _matches(path.relative_to(self).parts, parts)]
        else:
            found = [self]
            for part in parts:
                found = [inner for path in found for inner in path._named(part)]
        yield from sorted(found)

    def rglob(self, pattern: str, **kwargs: Any) -> Generator["BucketPath", None, None]:
        """Yields what is at any depth below this path and matches a pattern, sorted by name."""
        yield from self.glob(f"**/{pattern}")

    def _named(self, pattern: str) -> list["BucketPath"]:
        """Returns what is directly below this path and has such a name."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return [path for path in self.iterdir() if fnmatch.fnmatchcase(path.name, pattern)]
        return []

    def _tree(self) -> list["BucketPath"]:
        """Returns all objects and folders below this path."""
        depth = len(self.parts)
        paths = {path for path, _ in self.find() if path != self}
        folders = {inner for path in paths for inner in path.parents if len(inner.parts) > depth}
        return list(paths | folders)

    def find(self) -> list[tuple["BucketPath", int]]:
        """Returns all objects below this path with their sizes in bytes, sorted by name."""
        return [(found.path, found.size) for found in self.list_objects()]

    @_translated
    def list_objects(self) -> list[StoredObject]:
        """Returns all objects below this path, or the object itself, sorted by name.

        Objects whose names a path cannot have, such as a//b, are left out with a warning.
        """
        objects = []
        for name, info in sorted(self.fs.find(self.key, detail=True).items()):
            if not name.endswith("/"):
                path, size = BucketPath(f"{self.scheme}://{name}"), int(info.get("size") or 0)
                if path.key != name:
                    log.warning(
                        "the object %s://%s is left out: no path has its name", self.scheme, name
                    )
                    continue
                version = info.get("generation") or info.get("ETag") or info.get("mtime")
                described = f"{path}\0{size}\0{version}".encode(errors="surrogateescape")
                key = hashlib.blake2b(described, digest_size=16).hexdigest()
                objects.append(StoredObject(path, size, key))
        return objects

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing, because buckets have no folders."""
        if not exist_ok and self.exists():
            raise FileExistsError(errno.EEXIST, "Object exists", str(self))

    def rmdir(self) -> None:
        """Does nothing, unless an object is below this path, which is an error."""
        if self.is_dir():
            raise OSError(errno.ENOTEMPTY, "Folder not empty", str(self))

    @_translated
    def unlink(self, missing_ok: bool = False) -> None:
        # S3 does not say whether there was an object.
        if not missing_ok and self.scheme == "s3" and not self.is_file():
            raise FileNotFoundError(errno.ENOENT, "No such object", str(self))
        try:
            self.fs.rm_file(self.key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    @_translated
    def remove_tree(self) -> None:
        """Deletes all objects below this path; raises OSError if one is still there."""
        keys = [path.key for path, _ in self.find()]
        # `rm` deletes many with one request, but takes names with these characters for patterns.
        plain = [key for key in keys if not set("*?[") & set(key)]
        if plain:
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm(plain)
        for key in set(keys) - set(plain):
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(key)
        if keys and (left := self.find()):  # S3 names no error of a single object.
            raise PermissionError(errno.EACCES, "Object was not deleted", str(left[0][0]))

    @_translated
    def replace(self, target: Any) -> "BucketPath":
        """Copies the object to a path in the same store, then deletes it."""
        target = self._beside(target)
        if target != self:
            self.fs.cp_file(self.key, target.key)
            self.fs.rm_file(self.key)
        return target

    def rename(self, target: Any) -> "BucketPath":
        """Like `replace`. Objects below a path cannot be renamed at once."""
        return self.replace(target)

    def _beside(self, target: Any) -> "BucketPath":
        target = BucketPath(target)
        if target.scheme != self.scheme:
            raise NotImplementedError(f"cannot rename {self} to {target}: not the same store")
        return target

    @_translated
    def read_bytes(self) -> bytes:
        """Returns the content, in one request."""
        # By default s3fs asks for the size first.
        return self.fs.cat_file(self.key, **({"max_concurrency": 1} if self.scheme == "s3" else {}))

    def read_range(self, start: int, end: int) -> bytes:
        """Returns bytes `start` to `end` (not included), in one request.

        Throttled, failed and cut requests are repeated after a random pause.
        """
        for attempt in range(1, _READ_ATTEMPTS[self.scheme] + 1):
            try:
                with as_os_error(self):
                    content = self.fs.cat_file(self.key, start=start, end=end)
                    if len(content) != end - start:
                        got = f"{len(content)} bytes of {start} to {end}"
                        raise OSError(errno.EIO, f"the answer holds {got}")
                return content
            except (FileNotFoundError, PermissionError):
                raise
            except OSError:
                if attempt == _READ_ATTEMPTS[self.scheme]:
                    raise
                time.sleep(random.uniform(0, 0.5 * 2**attempt))
        raise AssertionError  # The last attempt returns or raises.

    def read_text(self, encoding: str | None = None, errors: str | None = None, **_: Any) -> str:
        """Returns the content, which is UTF-8 by default, with every line end as a newline."""
        return io.TextIOWrapper(io.BytesIO(self.read_bytes()), encoding or "utf-8", errors).read()

    @_translated
    def write_bytes(self, data: Any) -> int:
        """Writes the whole content; readers see the old or the new one."""
        self.fs.pipe_file(self.key, bytes(data))
        return len(data)

    def write_text(self, data: str, *args: Any, **kwargs: Any) -> int:
        """Writes the whole content in UTF-8; readers see the old or the new one."""
        return self.write_bytes(data.encode())

    @_translated
    def create(self, data: bytes) -> None:
        """Writes the object unless it exists (FileExistsError), by the store's own precondition."""
        try:
            self.fs.pipe_file(self.key, data, mode="create")
        except Exception as error:
            if "PreconditionFailed" in str(error) or "At least one of the pre" in str(error):
                raise FileExistsError(errno.EEXIST, "Object exists", str(self)) from None
            raise

    def touch(self, mode: int = 0o666, exist_ok: bool = True) -> None:
        with contextlib.suppress(FileExistsError) if exist_ok else contextlib.nullcontext():
            self.create(b"")

    def upload(self, source: pathlib.Path) -> None:
        """Writes the content of a local file, or of all files of a local folder.

        Files directly in the folder describe the others, so they are written last.
        """
        if not source.exists():
            raise FileNotFoundError(errno.ENOENT, "No such file to upload", str(source))
        with as_os_error(self):
            if source.is_file():
                self.fs.put_file(str(source), self.key)
                return
            files = [path for path in sorted(source.rglob("*")) if path.is_file()]
            inside = [path for path in files if path.parent != source]
            for some in (inside, [path for path in files if path.parent == source]):
                keys = [f"{self.key}/{path.relative_to(source).as_posix()}" for path in some]
                if some:
                    self.fs.put([str(path) for path in some], keys)

    @_translated
    def download(self, target: pathlib.Path) -> None:
        """Writes the content to a local file, or all objects below this path to a local folder."""
        if self.is_file():
            self.fs.get_file(self.key, str(target))
            return
        paths = [path for path, _ in self.find()]
        if not paths:
            raise FileNotFoundError(errno.ENOENT, "No such object", str(self))
        files = [target / path.relative_to(self) for path in paths]
        for folder in {file.parent for file in files}:
            folder.mkdir(parents=True, exist_ok=True)
        self.fs.get([path.key for path in paths], [str(file) for file in files])

    @_translated
    def open(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """Opens the object for reading (r), or for writing a new content (w); see also `create`."""
        binary = mode.replace("b", "").replace("t", "")
        if binary not in ("r", "w"):
            raise NotImplementedError(f"{self}: objects cannot be opened with mode {mode!r}")
        file = self.fs.open(self.key, f"{binary}b")
        if "b" in mode:
            return file
        return io.TextIOWrapper(file, encoding or "utf-8", errors, newline)


def _matches(names: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether the parts of a path match those of a pattern, where "**" is any number of parts."""
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(_matches(names[n:], pattern[1:]) for n in range(len(names) + 1))
    return (
        bool(names)
        and fnmatch.fnmatchcase(names[0], pattern[0])
        and _matches(names[1:], pattern[1:])
    )


def _refuse(name: str) -> Callable[..., Any]:
    def refused(self: BucketPath, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{name} of {self}: objects in a bucket have no {name}")

    return refused


# What is left of pathlib's methods would look at the local disk.
for _name in set(dir(pathlib.Path)) - set(dir(pathlib.PurePath)):
    if not _name.startswith("_") and _name not in vars(BucketPath):
        setattr(BucketPath, _name, _refuse(_name))
