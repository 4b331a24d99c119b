"""The run folder: config.json, environments, result.json, and the lock on it."""

import contextlib
import logging
import platform
import time
import uuid
from pathlib import Path
from typing import Any

import jax

from vit_jax.config.file import read_mapping
from vit_jax.config.run import Config
from vit_jax.errors import LockedError, RunFolderError, first_few
from vit_jax.parallel import processes
from vit_jax.plugins import naming_plugins
from vit_jax.run.about import saved_steps
from vit_jax.run.environment import append_environment, check_code, environment
from vit_jax.run.result import read_result
from vit_jax.schema import Section, differences
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import read_json, write_json
from vit_jax.storage.lock import locked
from vit_jax.storage.log_file import log_exists
from vit_jax.storage.paths import check_output_folder, is_bucket, user_path

log = logging.getLogger(__name__)

# Longest time until a file that one host has written is visible on the others.
_NETWORK_DISK_DELAY_S = 60.0


def read_class_names(folder: Path) -> tuple[str, ...]:
    """Returns the names of the classes that a run was trained on; (): it has none."""
    path = folder / "classes.json"
    return tuple(read_json(path)["names"]) if path.is_file() else ()


def check_scheme(path: Path) -> None:
    """Raises RunFolderError for a run folder on s3://, where Orbax cannot write."""
    if isinstance(path, BucketPath) and path.scheme == "s3":
        raise RunFolderError(
            f"a run folder on {path}",
            "gs://BUCKET/..., a disk that all hosts share, or a mounted bucket",
            "use one of these, because Orbax does not write to s3://; data on s3:// can be read",
        )


class RunFolder:
    """The folder of one run, locked until the end of the `with` block.

    Only process 0 writes; the other processes check that they see the same folder. If the block
    raises an error before anything is written, a folder that this run has created is removed. A
    folder must not hold a run of another config, or of another command if the config has a
    `command`. A run is only resumed with its own code and packages, unless `new_code` is true.
    """

    def __init__(self, path: Path, config: Section, *, new_code: bool = False):
        check_scheme(path)
        self.path = path.expanduser().absolute()
        self.config = config
        self.is_writer = processes.is_first_host()
        self._lock_file = self.path / ".lock"
        # A locked file is not written to: others would not see this on a mounted bucket.
        self._token_file = self.path / ".session"
        self._new_code = new_code
        self._changes: list[str] = []  # of code and packages, accepted
        self._held = contextlib.ExitStack()
        self._is_new = not self.path.exists()
        token = processes.on_first_host("lock the run folder", self._open)
        if not self.is_writer:
            self._check_shared(token)

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        if error is not None and self._is_new and self.is_writer:
            self._remove_if_empty()
        self._held.close()

    def _open(self) -> str:
        """Locks the folder and returns a random token, which other hosts look for in a file."""
        check_output_folder(self.path, ("checkpoints", "report", "tensorboard"))
        token = uuid.uuid4().hex
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locked(self._lock_file, on_lost=self._lost))
            except LockedError as error:
                owner = error.got.partition(" by ")[2]
                raise RunFolderError(
                    f"run folder {self.path} is in use by {owner}",
                    "one process a folder",
                    "wait for it, or choose another --workdir",
                ) from None
            except OSError as error:
                raise self._unwritable(error) from None
            self._check_config()
            try:
                if jax.process_count() > 1:
                    self._token_file.write_text(token, encoding="utf-8")
            except OSError as error:
                raise self._unwritable(error) from None
            self._held = held.pop_all()
        return token

    def _check_shared(self, token: str) -> None:
        """Raises RunFolderError unless this host sees the file that process 0 has written."""
        deadline = time.monotonic() + _NETWORK_DISK_DELAY_S
        written = token.encode()
        while not (self._token_file.is_file() and self._token_file.read_bytes() == written):
            if time.monotonic() > deadline:
                raise RunFolderError(
                    f"run folder {self.path} of {platform.node()} is not the folder of process 0",
                    "one folder that all hosts share",
                    "put --workdir on a shared disk",
                )
            time.sleep(0.1)

    def _remove_if_empty(self) -> None:
        """Removes the folder if it holds nothing but the lock file and an empty subfolder."""
        if is_bucket(self.path):  # What is left is a released lease.
            return
        self._held.close()
        with contextlib.suppress(OSError):
            (self.path / "checkpoints").rmdir()
        own = {self._token_file, self._lock_file}
        with contextlib.suppress(OSError):
            if set(self.path.iterdir()) <= own:
                for path in own:
                    path.unlink(missing_ok=True)
                self.path.rmdir()

    @property
    def result(self) -> dict[str, Any] | None:
        """The final figures of a finished run; None while it is not finished."""
        return read_result(self.path)

    def write_config(self, step: int = 0) -> None:
        """Writes the config, and appends the environment of this session, which begins at `step`.

        env.json has the environment of the session that began at step 0.
        """
        self.write_json("config.json", self.config.to_mapping())
        if not self.is_writer:
            return
        found = environment(self.config)
        if step == 0:
            self.write_json("env.json", found)
        try:
            # A run that starts again at step 0 has changed nothing.
            changes = self._changes if step else []
            append_environment(self.path, found, step=step, changes=changes)
        except OSError as error:
            raise self._unwritable(error) from None

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Writes a JSON file atomically, on process 0."""
        if not self.is_writer:
            return
        try:
            write_json(self.path / name, content)
        except OSError as error:
            raise self._unwritable(error) from None

    def _check_config(self) -> None:
        """Raises RunFolderError if the folder has results of a run of another config."""
        outputs = [n for n in ("result.json", "checkpoints") if (self.path / n).exists()]
        outputs += ["metrics.jsonl"] if log_exists(self.path / "metrics.jsonl") else []
        saved = self.path / "config.json"
        if not outputs:
            return
        if not saved.exists():
            raise RunFolderError(
                f"{self.path} has {', '.join(outputs)} but no config.json",
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
        if wanted == "train" and not self._has_saved():
            what = "this one replaces it" if rows else "it starts again"
            log.warning("the run in %s ended before its first save; %s", self.path, what)
        elif rows:
            raise RunFolderError(
                f"run folder {self.path} holds a run of another config"
                f" ({first_few(rows, 4, '; ')})",
                "the same config",
                "choose another --workdir, or undo the change",
            )
        elif wanted == "train" and self.result is None:
            what = f"run folder {self.path}"
            now = environment(self.config)
            self._changes = check_code(what, self.path, now, new_code=self._new_code)

    def _has_saved(self) -> bool:
        """Whether there is more than a first save that was cut off."""
        checkpoints = self.path / "checkpoints"
        if is_bucket(self.path):
            saved = bool(saved_steps(checkpoints))
        else:  # A checkpoint that is not complete yet has another name.
            names = [path.name for path in checkpoints.iterdir()] if checkpoints.is_dir() else []
            saved = any("tmp" not in name for name in names)
        return saved or (self.path / "result.json").exists()

    def _lost(self, reason: str) -> None:
        """Ends the run: another process may write to the folder."""
        processes.end_run(
            RunFolderError(
                f"this run has lost its folder: {reason}",
                "one process a folder",
                "run the command again to continue from the last checkpoint",
            )
        )

    def _unwritable(self, error: OSError) -> RunFolderError:
        return RunFolderError(
            f"cannot write to run folder {self.path}: {error.strerror}",
            "a writable folder with free space",
            "choose another --workdir, or free some space",
        )


def read_config(workdir: Path) -> Config:
    """Returns the config of a run folder."""
    path = user_path(workdir) / "config.json"
    if not path.is_file():
        raise RunFolderError(
            f"no run in {workdir}", "a run folder with config.json", "check --workdir"
        )
    with naming_plugins(path.parent):
        return Config.from_mapping(read_mapping(str(path)))
