"""A FUSE file system that behaves like gcsfuse on a flat bucket; the bucket is a folder.

    with mounted(bucket_folder, mount_point): ...

Each mount stands for a host. Like gcsfuse it differs from a disk in these ways:

- What is written to an open file is seen on the same mount at once, on others after the close.
- Of two hosts that have a file open for writing, the second to close it gets ESTALE.
- A folder that is not empty cannot be renamed (EMFILE, as with gcsfuse's default limit of 0).
- `flock` holds among the processes of one mount only, because the kernel keeps it.
- There are no hard links.

Source: https://cloud.google.com/storage/docs/cloud-storage-fuse/overview#differences-and-limitations
`python mounted.py FOLDER MOUNT_POINT` serves until it is terminated.
"""

import contextlib
import ctypes.util
import dataclasses
import errno
import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TYPE = "fuse.gcsfuse"  # the type of the file system in /proc/self/mounts
START_TIMEOUT_S = 20


def why_not():
    """What this machine lacks for mounting; None if nothing."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened"
    if not ctypes.util.find_library("fuse3") or not shutil.which("fusermount3"):
        return "libfuse is missing, Debian package fuse3"
    if not importlib.util.find_spec("mfusepy"):
        return "mfusepy is missing"
    return None


@contextlib.contextmanager
def mounted(folder, mount_point):
    """Mounts the folder as a bucket for the length of a with block."""
    command = [sys.executable, __file__, str(folder), str(mount_point)]
    with subprocess.Popen(command) as process:
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not os.path.ismount(mount_point):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"no mount at {mount_point}: {process.poll()}")
                time.sleep(0.01)
            yield Path(mount_point)
        finally:
            subprocess.run(["fusermount3", "-uz", str(mount_point)], check=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
            process.terminate()


@dataclasses.dataclass
class Staged:
    """A file that is open for writing on this mount: its content so far, in a local file."""

    file: Path
    fd: int
    version: tuple | None  # of the object when it was opened or uploaded
    users: int = 0
    changed: bool = False


@dataclasses.dataclass
class Opened:
    """An open file: what to read from, and the staged file behind it where there is one."""

    fd: int
    staged: Staged | None = None
    writes: bool = False


def _version(file):
    """What differs after each upload; None: there is no such object."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


class Bucket:
    """The operations of the file system; errors are those of the calls on the folder."""

    use_ns = True

    def __init__(self, folder):
        self._folder = folder
        self._local = tempfile.mkdtemp(dir=Path(folder).parent)
        self._staged = {}  # path -> Staged
        self._opened = {}  # number -> Opened
        self._numbers = itertools.count(1)

    def _object(self, path):
        return Path(self._folder + path)

    def getattr(self, path, fh=None):
        staged = self._staged.get(path)
        found = os.fstat(staged.fd) if staged else self._object(path).lstat()
        names = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size")
        times = {f"st_{name}": getattr(found, f"st_{name}_ns") for name in ("mtime", "ctime")}
        return {name: getattr(found, name) for name in names} | times

    def readdir(self, path, fh):
        staged = {file.name for file in map(Path, self._staged) if file.parent == Path(path)}
        return [".", "..", *staged.union(file.name for file in self._object(path).iterdir())]

    def create(self, path, mode, fi=None):
        return self._stage(path, keep=False)

    def open(self, path, flags):
        if flags & (os.O_WRONLY | os.O_RDWR):
            return self._stage(path, keep=not flags & os.O_TRUNC)
        staged = self._staged.get(path)
        if staged:
            return self._add(Opened(staged.fd, staged))
        return self._add(Opened(os.open(self._object(path), os.O_RDONLY)))

    def _stage(self, path, keep):
        """Opens for writing, with the content of the object or without."""
        if path not in self._staged:
            fd, name = tempfile.mkstemp(dir=self._local)
            if keep:
                shutil.copyfile(self._object(path), name)
            self._staged[path] = Staged(Path(name), fd, _version(self._object(path)))
        staged = self._staged[path]
        if not keep:
            os.truncate(staged.fd, 0)
            staged.changed = True
        return self._add(Opened(staged.fd, staged, writes=True))

    def _add(self, opened):
        if opened.staged:
            opened.staged.users += 1
        number = next(self._numbers)
        self._opened[number] = opened
        return number

    def read(self, path, size, offset, fh):
        return os.pread(self._opened[fh].fd, size, offset)

    def write(self, path, data, offset, fh):
        staged = self._opened[fh].staged
        staged.changed = True
        return os.pwrite(staged.fd, data, offset)

    def truncate(self, path, length, fh=None):
        number = fh or self._stage(path, keep=True)
        staged = self._opened[number].staged
        staged.changed = True
        os.truncate(staged.fd, length)
        if not fh:
            self.flush(path, number)
            self.release(path, number)
        return 0

    def flush(self, path, fh):
        """The object gets its content when a writer closes the file, all at once."""
        staged = self._opened[fh].staged
        if self._opened[fh].writes and staged.changed:
            if _version(self._object(path)) != staged.version:
                raise OSError(errno.ESTALE, "the object has changed since the file was opened")
            upload = Path(f"{staged.file}.upload")
            shutil.copyfile(staged.file, upload)
            upload.replace(self._object(path))
            staged.version = _version(self._object(path))
            staged.changed = False
        return 0

    def fsync(self, path, datasync, fh):
        return 0  # does not finish an object, as with the streaming writes of gcsfuse

    def release(self, path, fh):
        opened = self._opened.pop(fh)
        if opened.staged:
            opened.staged.users -= 1
        if not opened.staged or not opened.staged.users:
            os.close(opened.fd)
        if opened.staged and not opened.staged.users:
            opened.staged.file.unlink()
            self._staged = {p: s for p, s in self._staged.items() if s is not opened.staged}
        return 0

    def rename(self, old, new):
        source = self._object(old)
        if source.is_dir() and any(source.iterdir()):
            raise OSError(errno.EMFILE, "too many objects to be renamed")
        if source.exists():
            source.rename(self._object(new))
        if old in self._staged:
            self._staged[new] = self._staged.pop(old)
        return 0

    def unlink(self, path):
        self._object(path).unlink()
        return 0

    def mkdir(self, path, mode):
        self._object(path).mkdir()
        return 0

    def rmdir(self, path):
        self._object(path).rmdir()
        return 0

    def chmod(self, path, mode):
        return 0

    def chown(self, path, uid, gid):
        return 0

    def utimens(self, path, times=None):
        return 0

    def statfs(self, path):
        found = os.statvfs(self._folder)
        names = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_namemax")
        return {name: getattr(found, name) for name in names}


def serve(folder, mount_point):
    import mfusepy

    mfusepy.FUSE(
        Bucket(folder), mount_point, foreground=True, nothreads=True, fsname="test-bucket",
        subtype="gcsfuse", attr_timeout=0, entry_timeout=0, negative_timeout=0,
    )  # fmt: skip


if __name__ == "__main__":
    serve(*sys.argv[1:])
