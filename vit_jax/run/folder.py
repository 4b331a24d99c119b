"""The run folder: config.json, env.json, result.json, and who may write there."""

import fcntl
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, TextIO

import jax

from vit_jax.config.file import load_config, read_mapping
from vit_jax.config.run import Config
from vit_jax.errors import RunFolderError, first_few
from vit_jax.files import write_atomically
from vit_jax.parallel import hosts
from vit_jax.schema import Section, differences

log = logging.getLogger(__name__)

_PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "tensorflow-datasets",
    "numpy",
)
# A network disk may show what another host has written only after so long.
_SECONDS_TO_SEE = 60.0


class RunFolder:
    """One run's folder, held for writing by one run at a time.

    Of several hosts only the first writes; the others look.

    Args:
        path: made when missing.
        config: of the run that is to go there; what its `command` is, if it has one, tells kinds of
            runs apart.

    Raises:
        RunFolderError: unwritable, in use by another process, or holding a run of another config.
    """

    def __init__(self, path: Path, config: Section):
        self.path = Path(path).expanduser().absolute()
        self.config = config
        self.is_writer = jax.process_index() == 0
        self._lock: TextIO | None = None
        mark = hosts.first_does("run folder", self._open)
        if not self.is_writer:
            self._check_shared(mark)

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def _open(self) -> str:
        """Takes the folder for this run and returns what is written in its lock."""
        mark = uuid.uuid4().hex
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("a")
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            self._take_lock(self._lock)
            self._check_config()
            self._lock.truncate(0)
            if jax.process_count() > 1:  # For the others to find.
                self._lock.write(mark)
                self._lock.flush()
        except OSError as error:
            self._lock.close()
            raise self._unwritable(error) from None
        except BaseException:
            self._lock.close()
            raise
        return mark

    def _check_shared(self, mark: str) -> None:
        """Raises RunFolderError unless this host sees what the first has written."""
        deadline = time.monotonic() + _SECONDS_TO_SEE
        lock = self.path / ".lock"
        while not (lock.is_file() and lock.read_text() == mark):
            if time.monotonic() > deadline:
                raise RunFolderError(
                    f"run folder {self.path} of {platform.node()} is not that of process 0",
                    "one folder that all hosts share",
                    "put --workdir on a shared disk",
                )
            time.sleep(0.1)

    @property
    def result(self) -> dict[str, Any] | None:
        """The final figures of a finished run, else None."""
        path = self.path / "result.json"
        if not path.exists():
            return None
        try:
            return json.loads(path.read_text())
        except ValueError as error:
            raise RunFolderError(
                f"{path}: {error}", "JSON, as this project writes it", "remove it to finish again"
            ) from None

    def write_config(self) -> None:
        """Writes config.json and env.json."""
        self.write_json("config.json", self.config.to_mapping())
        self.write_json("env.json", environment())

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Writes a file atomically: a reader sees the old one or the whole new one."""
        if not self.is_writer:
            return
        try:
            write_atomically(self.path / name, json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise self._unwritable(error) from None

    def _take_lock(self, lock: TextIO) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(
                f"run folder {self.path} is in use by another process",
                "one process a folder",
                "wait for it, or choose another --workdir",
            ) from None
        except OSError as error:  # Some network file systems have no locks.
            log.warning("no lock on run folder %s: %s", self.path, error.strerror)

    def _check_config(self) -> None:
        """Raises RunFolderError where a run of another config has left something to lose."""
        traces = [
            n for n in ("result.json", "metrics.jsonl", "checkpoints") if (self.path / n).exists()
        ]
        saved = self.path / "config.json"
        if not traces:
            return
        if not saved.exists():
            raise RunFolderError(
                f"{self.path} has {', '.join(traces)} but no config.json",
                "a run folder or a new one",
                "choose another --workdir",
            )
        mapping, wanted = read_mapping(str(saved)), getattr(self.config, "command", "train")
        if mapping.get("command", "train") != wanted:
            raise RunFolderError(
                f"run folder {self.path} holds a run of {mapping.get('command', 'train')}",
                f"one of {wanted}, or a new folder",
                "choose another --workdir",
            )
        there = type(self.config).from_mapping(mapping)
        rows = [f"{k}: {a!r} there, {b!r} now" for k, a, b in differences(there, self.config)]
        if rows:
            raise RunFolderError(
                f"run folder {self.path} holds a run of another config"
                f" ({first_few(rows, 4, '; ')})",
                "the same config",
                "choose another --workdir, or undo the change",
            )

    def _unwritable(self, error: OSError) -> RunFolderError:
        return RunFolderError(
            f"cannot write to run folder {self.path}: {error.strerror}",
            "a writable folder with free space",
            "choose another --workdir, or free some space",
        )


def read_config(workdir: Path) -> Config:
    """Returns the config of a run folder.

    Raises:
        RunFolderError: no run there.
        ConfigError: its config.json cannot be read, or is of another version.
    """
    path = Path(workdir).expanduser() / "config.json"
    if not path.is_file():
        raise RunFolderError(
            f"no run in {workdir}", "a run folder with config.json", "check --workdir"
        )
    return load_config(str(path))


def environment() -> dict[str, Any]:
    """Returns what a run ran on: git revision, versions, devices, hosts."""
    devices = jax.devices()
    return {
        "git_revision": git_revision(),
        "command": sys.argv,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "python": platform.python_version(),
        "packages": _packages(),
        "platform": devices[0].platform,
        "device_kind": devices[0].device_kind,
        "device_count": len(devices),
        "host_count": jax.process_count(),
        "hostname": platform.node(),
        "cpu_count": os.cpu_count(),
    }


def code_versions() -> dict[str, str | None]:
    """Returns what decides how a config is understood: revision, sources, packages."""
    sources = hashlib.sha256()
    folder = Path(__file__).resolve().parent
    for path in sorted(folder.rglob("*.py")):
        sources.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    versions: dict[str, str | None] = {"git revision": git_revision()}
    versions["hash of vit_jax"] = sources.hexdigest()[:12]
    return versions | _packages() | {"python": platform.python_version()}


def _packages() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _PACKAGES}


def git_revision() -> str | None:
    """Returns the source tree's revision, with "-dirty" where it has changes; None outside git."""
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=folder, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
