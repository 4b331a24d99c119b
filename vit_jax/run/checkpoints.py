"""Saves and restores checkpoints with Orbax.

A checkpoint is one Orbax composite. `params`, `optimizer` and `ema` (if the run has one) are
arrays; `data` (position in the example order), `config` and `about` (description) are JSON. The
folder gets its commit file once it is complete, so that a killed run resumes from the last complete
checkpoint. Arrays can be restored with any sharding on any number of devices and hosts. Stacked
layers have a leading axis even without `model.scan`.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies
from orbax.checkpoint import options as orbax_options

from vit_jax.config.run import CheckpointConfig
from vit_jax.errors import CheckpointError, RunFolderError, UserError
from vit_jax.parallel.processes import barrier, name_late_processes, on_first_host
from vit_jax.run.about import (
    COMMIT_FILE,
    choose_checkpoint,
    describe,
    evaluated_item,
    incomplete_steps,
)
from vit_jax.run.damage import check_arrays, set_aside, with_digests
from vit_jax.run.digest import start_digests, tree_digests
from vit_jax.run.environment import environment
from vit_jax.run.folder import check_scheme
from vit_jax.run.json_item import JsonItem, JsonItemHandler
from vit_jax.run.restore import CheckpointReader, Restored
from vit_jax.storage.bucket_path import BucketPath, reason_of
from vit_jax.storage.files import remove_tree
from vit_jax.storage.paths import is_bucket

log = logging.getLogger(__name__)

# Time limits: for all processes to reach a save or restore; for all to write their files.
BARRIER_TIMEOUT_S = 900.0
WRITE_TIMEOUT_S = 1800

_METADATA = "_CHECKPOINT_METADATA"
_Mode = orbax_options.AtomicityMode

ARRAYS = {"params": "params", "optimizer": "opt_state", "ema": "ema", "extra": "extra"}
"""Item of a checkpoint -> attribute of the training state."""

# Texts in the errors of Orbax and TensorStore when a disk cannot be written.
_DISK_PROBLEMS = (
    "No space left on device",
    "Disk quota exceeded",
    "Permission denied",
    "Read-only file system",
    "Input/output error",
)


class CheckpointFolder:
    """The `checkpoints` folder of a run. Closing it waits for the last save.

    The folder is created if missing. With `read_only`, nothing is ever written or deleted. `pinned`
    is the step of a checkpoint to keep in addition.
    """

    def __init__(self, folder: Path, config: CheckpointConfig, *, read_only: bool = False):
        check_scheme(folder)
        self.folder = folder.absolute()
        self.pinned: int | None = None
        self._read_only = read_only
        with self._as_user_error():
            if not read_only:
                on_first_host("make the checkpoint folder", lambda: _make(self.folder))
            with _metadata_errors(self.folder):
                self._manager = ocp.CheckpointManager(
                    os.fspath(self.folder),
                    options=self._options(config),
                    handler_registry=_handlers(),
                )
        self._reader = CheckpointReader(self.folder, self._manager)
        self._environment = {} if read_only else environment()

    def _options(self, config: CheckpointConfig) -> ocp.CheckpointManagerOptions:
        keep = [policies.LatestN(config.keep_last), _Pinned(self)]
        return ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(keep),
            save_interval_steps=1,
            create=False,
            read_only=self._read_only,
            cleanup_tmp_directories=not self._read_only,
            enable_async_checkpointing=True,
            # A folder of a mounted bucket cannot be renamed at once.
            atomicity_options=orbax_options.AtomicityOptions(
                mode=_Mode.COMMIT_FILE if is_bucket(self.folder) else _Mode.ATOMIC_RENAME
            ),
            **multi_process_options(),
        )

    def __enter__(self) -> "CheckpointFolder":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, in ascending order."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: Any, *, data: dict[str, Any], config: dict[str, Any]) -> None:
        """Starts a save in the background; returns when the state is copied off the devices.

        The digests of the arrays are computed from this copy while it is written. `data`, the
        position in the example order, and `config` are JSON. An error of the previous save is
        raised here, too.
        """
        trees = {item: getattr(state, attribute) for item, attribute in ARRAYS.items()}
        trees = {item: tree for item, tree in trees.items() if tree is not None}
        items: dict[str, Any] = {item: ocp.args.PyTreeSave(tree) for item, tree in trees.items()}
        barrier(f"save checkpoint {step}", BARRIER_TIMEOUT_S)
        about = describe(trees, self._environment)
        digests = start_digests(f"digests of checkpoint {step}", trees)
        items["data"] = JsonItem(lambda: data)
        items["config"] = JsonItem(lambda: config)
        items["about"] = JsonItem(lambda: with_digests(about, digests(), data=data, config=config))
        with self._as_user_error():
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)

    def raise_failed_save(self) -> None:
        """Raises the error of a background save, if there is one. Does not wait for the save."""
        with self._as_user_error():
            self._manager.check_for_errors()

    def wait(self) -> None:
        """Waits until the last save is complete."""
        with self._as_user_error():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def close(self) -> None:
        with self._as_user_error():
            self._manager.close()

    def restore(self, abstract: dict[str, Any], step: int | None = None) -> Restored:
        """Restores a checkpoint with the shardings of `abstract`.

        Args:
            abstract: item name -> tree of `jax.ShapeDtypeStruct` with shardings.
            step: None: the latest.

        Raises:
            DamagedError: it is damaged. With several processes, all raise this error, unless only
                some of them cannot read their part of the arrays. Then the run ends.
        """
        steps = self.steps()
        if not steps or (step is not None and step not in steps):
            wanted = "checkpoint" if step is None else f"checkpoint of step {step}"
            raise CheckpointError(
                f"no {wanted} in {self.folder}",
                f"one of {', '.join(map(str, steps))}" if steps else "a run that has saved one",
                "check the path",
            )
        step = steps[-1] if step is None else step
        barrier(f"restore checkpoint {step}", BARRIER_TIMEOUT_S)
        about, data, config = self._reader.read_json(abstract, step)
        arrays = self._reader.read_arrays(abstract, step) if abstract else {}
        check_arrays(self.folder / str(step), about, tree_digests(arrays))
        return Restored(step, arrays, data, config)

    def set_aside(self, step: int) -> Path:
        """Renames a damaged checkpoint and forgets it; returns its new path."""
        with self._as_user_error():
            name = on_first_host(
                "set a damaged checkpoint aside", lambda: set_aside(self.folder, step).name
            )
            self._manager.reload()
        return self.folder / name

    def read_config(self, step: int | None = None) -> dict[str, Any]:
        """Returns the config of a checkpoint without reading arrays."""
        return self.restore({}, step).config

    @contextlib.contextmanager
    def _as_user_error(self) -> Iterator[None]:
        """Converts errors of an unwritable disk or bucket, and of late processes, to UserErrors."""
        try:
            with name_late_processes():
                yield
        except UserError:
            raise
        except Exception as error:  # Each client of a bucket has its own classes.
            found = [cause for cause in _DISK_PROBLEMS if cause in str(error)]
            reason = getattr(error, "strerror", None) or (found[0] if found else None)
            place, fix = "folder with free space", "free some space or choose another --workdir"
            if isinstance(self.folder, BucketPath):
                reason = reason or reason_of(error)
                place, fix = "bucket", "log in again, check the account's rights, or run it again"
            if reason is None:
                raise
            raise RunFolderError(
                f"cannot write checkpoints to {self.folder}: {reason}",
                f"a writable {place}",
                f"{fix}; the last complete checkpoint is kept",
            ) from error


@contextlib.contextmanager
def _metadata_errors(folder: Path) -> Iterator[None]:
    """Converts what Orbax raises for damaged descriptions of its own to a UserError."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"a damaged {_METADATA} in {folder}/*: {type(error).__name__}: {error}",
            "the JSON that Orbax wrote",
            "delete the files of this name, which only have the times of the saves",
        ) from None


def _make(folder: Path) -> None:
    """Makes a checkpoint folder, and deletes checkpoints in a bucket that are not complete."""
    folder.mkdir(parents=True, exist_ok=True)
    if is_bucket(folder):
        for step in incomplete_steps(folder):
            log.warning(
                "deleting the checkpoint of step %d, which has no %s: its save was cut off",
                step,
                COMMIT_FILE,
            )
            remove_tree(folder / str(step))


def _handlers() -> ocp.handlers.CheckpointHandlerRegistry:
    """Returns what writes and reads each item of a checkpoint."""
    arrays = {item: ocp.PyTreeCheckpointHandler() for item in ARRAYS}
    registry = ocp.handlers.create_default_handler_registry(**arrays)
    for item in ("data", "config", "about"):
        registry.add(item, JsonItem, JsonItemHandler())
    return registry


class _Pinned:
    """Orbax preservation policy that keeps the pinned checkpoint of a folder."""

    def __init__(self, folder: CheckpointFolder):
        self._folder = folder

    def should_preserve(self, checkpoints: Sequence[Any], *, context: object) -> list[bool]:
        return [checkpoint.step == self._folder.pinned for checkpoint in checkpoints]


def multi_process_options() -> dict[str, Any]:
    """Returns options of Orbax's manager for this number of processes.

    By default, Orbax synchronizes processes by collectives on the devices. These have no time limit
    and start only after the training steps that are already queued. With these options, it uses
    barriers of JAX's coordination service, which have names and time limits.
    """
    if jax.process_count() == 1:
        return {}
    return {
        "multiprocessing_options": orbax_options.MultiprocessingOptions(
            primary_host=0,
            active_processes=set(range(jax.process_count())),
            barrier_sync_key_prefix="checkpoint",
        ),
        "async_options": orbax_options.AsyncOptions(timeout_secs=WRITE_TIMEOUT_S),
    }


def result_params(
    path: Path, abstract_params: Any, step: int | None = None
) -> tuple[Any, dict[str, Any]]:
    """Returns the final parameters of a run, and its config.

    If the run keeps a moving average, this average is returned. `path` and `step` are those of
    `run.about.choose_checkpoint`.
    """
    at = choose_checkpoint(path, step)
    with CheckpointFolder(at.parent, CheckpointConfig(), read_only=True) as checkpoints:
        config = checkpoints.read_config(int(at.name))
        item = evaluated_item(config)
        restored = checkpoints.restore({item: abstract_params}, int(at.name))
    return restored.arrays[item], restored.config
