"""Checkpoints: one thin layer over Orbax.

A checkpoint is one Orbax composite: `params`, `optimizer`, `ema` (where kept) as arrays, `data`
(position in the example order), `config` and `about` (names of the arrays, origin) as JSON. It
appears under its final name only when complete, so that a run killed at any moment finds the last
complete one. Arrays are saved whole, whatever devices held their parts, and restored onto whatever
devices are asked for; layers of a stack lie along a leading axis whether `model.scan` is on or off.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from vit_jax.config.run import CheckpointConfig
from vit_jax.errors import CheckpointError, RunFolderError, UserError, first_few
from vit_jax.named_tree import leaf_names
from vit_jax.run.about import describe, evaluated_item, find_steps
from vit_jax.run.checkpoint_hosts import host_options, make_folder, meet, told_who_is_missing
from vit_jax.run.folder import environment

# Orbax item name -> attribute of the training state.
_ARRAYS = {"params": "params", "optimizer": "opt_state", "ema": "ema"}

# What Orbax and TensorStore say of a disk that cannot be written.
_DISK_PROBLEMS = (
    "No space left on device",
    "Disk quota exceeded",
    "Permission denied",
    "Read-only file system",
    "Input/output error",
)


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a checkpoint holds.

    Attributes:
        step: number of updates made.
        arrays: "params", and where asked for and kept "optimizer" and "ema".
        data: position in the example order, as saved.
        config: the run's config, as nested dicts.
    """

    step: int
    arrays: dict[str, Any]
    data: dict[str, Any]
    config: dict[str, Any]


class CheckpointFolder:
    """The `checkpoints` folder of a run; closing it waits for the last save.

    Args:
        folder: made when missing, unless read only.
        config: what to keep.
        read_only: never writes or deletes.

    Attributes:
        pinned: step of a checkpoint to keep beside those that the config says; None: no other.

    Raises:
        RunFolderError: the folder cannot be written.
    """

    def __init__(self, folder: Path, config: CheckpointConfig, *, read_only: bool = False):
        self.folder = folder.absolute()
        self.pinned: int | None = None
        keep: list[Any] = [policies.LatestN(config.keep_last), _Pinned(self)]
        if config.keep_best:
            keep.append(
                policies.BestN(
                    get_metric_fn=lambda metrics: metrics[config.best_metric],
                    reverse=False,
                    n=config.keep_best,
                    keep_checkpoints_without_metrics=False,
                )
            )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(keep),
            save_interval_steps=1,
            create=False,
            read_only=read_only,
            cleanup_tmp_directories=not read_only,
            enable_async_checkpointing=True,
            **host_options(),
        )
        with _as_user_error(self.folder):
            if not read_only:
                make_folder(self.folder)
            self._manager = ocp.CheckpointManager(
                self.folder,
                options=options,
                item_handlers={item: ocp.PyTreeCheckpointHandler() for item in _ARRAYS}
                | {item: ocp.JsonCheckpointHandler() for item in ("data", "config", "about")},
            )
        self._environment = {} if read_only else environment()

    def __enter__(self) -> "CheckpointFolder":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, in ascending order."""
        return sorted(self._manager.all_steps())

    def save(
        self,
        step: int,
        state: Any,
        *,
        data: dict[str, Any],
        config: dict[str, Any],
        metrics: dict[str, float] | None = None,
    ) -> None:
        """Starts a save; returns when the state has been copied off the devices.

        Args:
            step: number of updates made.
            state: the training state.
            data: position in the example order, JSON.
            config: the run's config, JSON.
            metrics: to choose the best by.

        Raises:
            RunFolderError: this or the previous save could not be written.
        """
        trees = {item: getattr(state, attribute) for item, attribute in _ARRAYS.items()}
        trees = {item: tree for item, tree in trees.items() if tree is not None}
        items: dict[str, Any] = {item: ocp.args.PyTreeSave(tree) for item, tree in trees.items()}
        items["about"] = ocp.args.JsonSave(describe(trees, self._environment))
        items["data"] = ocp.args.JsonSave(data)
        items["config"] = ocp.args.JsonSave(config)
        meet(f"save checkpoint {step}")
        with _as_user_error(self.folder):
            self._manager.save(step, args=ocp.args.Composite(**items), metrics=metrics, force=True)

    def check(self) -> None:
        """Looks, without waiting, whether a save in the background has failed.

        Raises:
            RunFolderError: it could not be written.
        """
        with _as_user_error(self.folder):
            self._manager.check_for_errors()

    def wait(self) -> None:
        """Waits until the last save is complete.

        Raises:
            RunFolderError: it could not be written.
        """
        with _as_user_error(self.folder):
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def close(self) -> None:
        """Waits for the last save and releases the folder."""
        with _as_user_error(self.folder):
            self._manager.close()

    def restore(self, abstract: dict[str, Any], step: int | None = None) -> Restored:
        """Reads a checkpoint onto any devices.

        Args:
            abstract: item name -> tree of `jax.ShapeDtypeStruct` with the shardings wanted.
            step: None: the latest.

        Raises:
            CheckpointError: no such checkpoint, or one of another architecture.
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
        meet(f"restore checkpoint {step}")
        try:
            self._check_architecture(abstract, step)
            items = {
                name: ocp.args.PyTreeRestore(
                    item=tree,
                    restore_args=ocp.checkpoint_utils.construct_restore_args(tree),
                )
                for name, tree in abstract.items()
            }
            with told_who_is_missing():
                found = self._manager.restore(
                    step,
                    args=ocp.args.Composite(
                        **items, data=ocp.args.JsonRestore(), config=ocp.args.JsonRestore()
                    ),
                )
        except UserError:
            raise
        except (
            Exception
        ) as error:  # Orbax raises many kinds for a damaged file, Exception itself too.
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise CheckpointError(
                f"checkpoint {self.folder / str(step)} cannot be read: {reason}",
                "a complete checkpoint of this version",
                f"remove that folder to go on from an earlier one ({steps[:-1] or 'none'})",
            ) from None
        return Restored(
            step, {name: found[name] for name in abstract}, found["data"], found["config"]
        )

    def read_config(self, step: int | None = None) -> dict[str, Any]:
        """Returns the config in a checkpoint, reading no arrays."""
        return self.restore({}, step).config

    def _check_architecture(self, abstract: dict[str, Any], step: int) -> None:
        saved = self._manager.item_metadata(step)
        for item, tree in abstract.items():
            there = saved.get(item)
            if there is None:
                raise CheckpointError(
                    f"checkpoint {self.folder / str(step)} has no '{item}'", "one saved with it",
                    "use the config that the run was made with",
                )  # fmt: skip
            wanted = _shapes(tree)
            found = _shapes(getattr(there, "tree", there))
            rows = [
                f"{name}: {found.get(name, 'missing')} there, {wanted.get(name, 'missing')} here"
                for name in sorted(found.keys() | wanted.keys())
                if found.get(name) != wanted.get(name)
            ]
            if rows:
                raise CheckpointError(
                    f"checkpoint {self.folder / str(step)} is of another architecture"
                    f" ({first_few(rows, 3, '; ')})",
                    "the same parameters",
                    "use the model section of that run's config.json",
                )


class _Pinned:
    """Orbax preservation policy: the checkpoint that a folder has pinned stays."""

    def __init__(self, folder: CheckpointFolder):
        self._folder = folder

    def should_preserve(self, checkpoints: Sequence[Any], *, context: object) -> list[bool]:
        return [checkpoint.step == self._folder.pinned for checkpoint in checkpoints]


def result_params(
    path: Path, abstract_params: Any, step: int | None = None
) -> tuple[Any, dict[str, Any]]:
    """Returns the parameters to use of a run folder, and that run's config.

    These are the moving average where the run kept one.

    Args:
        path: run folder, its `checkpoints` folder, or one step below it.
        abstract_params: shapes, types and shardings wanted.
        step: None: the run's result, see `checkpoint_about.find_steps`.

    Raises:
        CheckpointError: nothing there, or another architecture.
    """
    folder, step = find_steps(path, step)
    with CheckpointFolder(folder, CheckpointConfig(), read_only=True) as checkpoints:
        config = checkpoints.read_config(step)
        item = evaluated_item(config)
        restored = checkpoints.restore({item: abstract_params}, step)
    return restored.arrays[item], restored.config


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree.leaves(tree)
    return {name: tuple(leaf.shape) for name, leaf in zip(leaf_names(tree), leaves, strict=True)}


@contextlib.contextmanager
def _as_user_error(folder: Path) -> Iterator[None]:
    """Turns what a full or unwritable disk raises, here or in the saving thread, into one line.

    So it does with a process that does not come.
    """
    try:
        with told_who_is_missing():
            yield
    except UserError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        found = [cause for cause in _DISK_PROBLEMS if cause in str(error)]
        reason = getattr(error, "strerror", None) or (found[0] if found else None)
        if reason is None:
            raise
        raise RunFolderError(
            f"cannot write checkpoints to {folder}: {reason}",
            "a writable folder with free space",
            "free some space or choose another --workdir; the last complete checkpoint is kept",
        ) from error
