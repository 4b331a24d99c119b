"""The files of an image folder: on a disk, or in a bucket through a `BlockCache`.

Both classes name files by their paths relative to the folder, and pass over hidden ones and the
folders of systems (`is_hidden`). Names are the bytes of the file system read as UTF-8, whatever the
locale, so that classes, the order of the examples and lists of images are the same everywhere;
bytes that are not UTF-8 are escaped.
"""

import dataclasses
import errno
import io
import os
import posixpath
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from vit_jax.data.sources.base import bucket_error
from vit_jax.errors import DataError
from vit_jax.storage.block_cache import BLOCK_BYTES, BlockCache, Part, block_cache
from vit_jax.storage.bucket_path import BucketPath, StoredObject

# Size of what has the name of a file and is none: a broken link, a pipe, a device.
UNREADABLE = -1
# Blocks that are read ahead while a tar file is listed.
_BLOCKS_AHEAD = 8
# Folders that systems and tools make.
_OF_SYSTEMS = (
    "__MACOSX", "@eaDir", "#recycle", "__pycache__", "Thumbs", "lost+found", "$RECYCLE.BIN",
    "System Volume Information",
)  # fmt: skip


def is_hidden(name: str) -> bool:
    """Whether a file or folder is hidden, or is one that systems make and users do not see."""
    return name.startswith(".") or name in _OF_SYSTEMS


@dataclasses.dataclass(frozen=True)
class ImageEntry:
    """One image file or tar member."""

    split: str
    group: str
    name: str
    size: int
    offset: int


class LocalFiles:
    """Files on a disk."""

    remote = False

    def __init__(self, root: Path):
        self._root = root

    def children(self, folder: str) -> tuple[list[str], list[str]]:
        """Returns the names of the folders and of the files in a folder, sorted."""
        with os.scandir(self._path(folder)) as entries:
            entries = [e for e in entries if not is_hidden(e.name)]
        folders = sorted(_as_utf8(e.name) for e in entries if _is_folder(e))
        return folders, sorted(_as_utf8(e.name) for e in entries if _size(e) != UNREADABLE)

    def is_folder(self, place: str) -> bool:
        return self._path(place).is_dir()

    def walk(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yields (path relative to the folder, size or UNREADABLE) of all files below a folder."""
        return _walk(self._path(folder), "")

    def size(self, name: str) -> int:
        """Returns the size in bytes. Raises OSError if the file is missing or not a regular one."""
        status = self._path(name).stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(self._root / name))
        return status.st_size

    def open(self, name: str) -> io.BufferedReader:
        return self._path(name).open("rb")

    def read(self, name: str, start: int | None, size: int) -> bytes:
        """Returns part of a file; if `start` is None, all of it."""
        try:
            if start is None:
                return self._path(name).read_bytes()
            with self._path(name).open("rb") as file:
                return os.pread(file.fileno(), size, start)
        except OSError as error:
            raise DataError(
                f"{self._root / name}: {error.strerror}",
                "a file that existed when the folder was listed",
                "restore it, or start again",
            ) from None

    def read_ahead(self, parts: Sequence[tuple[str, int | None, int]]) -> None:
        """Does nothing."""

    def _path(self, name: str) -> Path:
        return self._root / os.fsdecode(name.encode(errors="surrogateescape"))


class BucketFiles:
    """Objects below an address, as they were when this was created.

    With `names`, relative to the root, only these are looked up; else all are listed that are not
    hidden. Raises OSError if the objects cannot be listed.
    """

    remote = True

    def __init__(
        self, root: BucketPath, cache: BlockCache | None, names: Collection[str] | None = None
    ):
        self.cache = cache or block_cache()
        self._objects: dict[str, StoredObject] = {}
        self._folders: dict[str, tuple[set[str], list[str]]] = {"": (set(), [])}
        if names is None:
            self._list(root)
        else:
            self._find(root, names)
        used = {one.path.key: one.size for one in self._objects.values()}
        self.cache.add_data(str(root), sum(used.values()))

    def _find(self, root: BucketPath, names: Collection[str]) -> None:
        """Lists the folder that holds all of the names, as a disk would understand them."""
        bucket = root.key.partition("/")[0]
        keys = {name: posixpath.normpath(f"{root.key}/{name}") for name in names}
        keys = {name: key for name, key in keys.items() if key.startswith(f"{bucket}/")}
        if not keys:
            return
        folder = posixpath.commonpath([posixpath.dirname(key) for key in keys.values()])
        there = {
            one.path.key: one for one in BucketPath(f"{root.scheme}://{folder}").list_objects()
        }
        self._objects = {name: there[key] for name, key in keys.items() if key in there}

    def _list(self, root: BucketPath) -> None:
        """Lists all objects below the root that are not hidden, and their folders."""
        for found in root.list_objects():
            parts = found.path.relative_to(root).parts
            if not parts or any(map(is_hidden, parts)):
                continue
            self._objects["/".join(parts)] = found
            for depth in range(len(parts)):
                inside = self._folders.setdefault("/".join(parts[:depth]), (set(), []))
                if depth == len(parts) - 1:
                    inside[1].append(parts[depth])
                else:
                    inside[0].add(parts[depth])

    def children(self, folder: str) -> tuple[list[str], list[str]]:
        folders, files = self._folders[folder]
        return sorted(folders), sorted(files)

    def is_folder(self, place: str) -> bool:
        return place in self._folders

    def walk(self, folder: str) -> Iterator[tuple[str, int]]:
        folders, files = self.children(folder)
        for name in files:
            yield name, self.size(f"{folder}/{name}")
        for name in folders:
            for below, size in self.walk(f"{folder}/{name}"):
                yield f"{name}/{below}", size

    def size(self, name: str) -> int:
        if name not in self._objects:
            raise FileNotFoundError(name)
        return self._objects[name].size

    def key(self, name: str) -> str:
        """Returns a key that changes when the content does."""
        return self._objects[name].key

    def open(self, name: str) -> io.BufferedReader:
        return io.BufferedReader(_ObjectFile(self._objects[name], self.cache))

    def read(self, name: str, start: int | None, size: int) -> bytes:
        try:
            return self.cache.read([self._part(name, start, size)])[0]
        except OSError as error:
            raise bucket_error(error) from None

    def read_ahead(self, parts: Sequence[tuple[str, int | None, int]]) -> None:
        """Starts to read parts of objects: (name, start, size)."""
        self.cache.read_ahead([self._part(*part) for part in parts])

    def _part(self, name: str, start: int | None, size: int) -> Part:
        return Part(self._objects[name], start or 0, (start or 0) + size)


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        entries = [e for e in entries if not is_hidden(e.name)]
    for entry in entries:
        if not _is_folder(entry):
            yield f"{prefix}{_as_utf8(entry.name)}", _size(entry)
        elif _is_cycle(folder, entry):
            yield f"{prefix}{_as_utf8(entry.name)}", UNREADABLE
        else:
            yield from _walk(folder / entry.name, f"{prefix}{_as_utf8(entry.name)}/")


def _as_utf8(name: str) -> str:
    """Returns a name of the file system as it is read where the locale is UTF-8."""
    return os.fsencode(name).decode(errors="surrogateescape")


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A link to itself.
        return False


def _size(entry: "os.DirEntry[str]") -> int:
    """Returns the size of a file; UNREADABLE: it is none."""
    try:
        status = entry.stat()
    except OSError:
        return UNREADABLE
    return status.st_size if stat.S_ISREG(status.st_mode) else UNREADABLE


def _is_cycle(folder: Path, entry: "os.DirEntry[str]") -> bool:
    """Whether this is a link to a folder that contains the link, which is an endless loop."""
    return entry.is_symlink() and folder.resolve().is_relative_to(Path(entry.path).resolve())


class _ObjectFile(io.RawIOBase):
    """Reads an object from start to end; skips are cheap."""

    def __init__(self, found: StoredObject, cache: BlockCache):
        self._object, self._cache = found, cache
        self._place, self._number, self._content = 0, -1, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._object.size}[whence]
        self._place = base + offset
        return self._place

    def readinto(self, buffer) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        number, start = divmod(self._place, BLOCK_BYTES)
        if self._place >= self._object.size:
            return 0
        if number != self._number:
            last = -(-self._object.size // BLOCK_BYTES)
            blocks = range(number, min(number + _BLOCKS_AHEAD, last))
            self._cache.read_ahead([self._block(block) for block in blocks])
            self._number, self._content = number, self._cache.read([self._block(number)])[0]
        found = self._content[start : start + len(buffer)]
        buffer[: len(found)] = found
        self._place += len(found)
        return len(found)

    def _block(self, number: int) -> Part:
        start = number * BLOCK_BYTES
        return Part(self._object, start, min(start + BLOCK_BYTES, self._object.size))
