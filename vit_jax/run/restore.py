"""Reads the items of checkpoints, and tells damaged ones from those of another architecture."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from vit_jax.errors import CheckpointError, DamagedError, UserError, first_few
from vit_jax.named_tree import named_leaves
from vit_jax.parallel.processes import gather, name_late_processes
from vit_jax.run.about import COMMIT_FILE
from vit_jax.run.damage import damaged_error, read_about, read_item
from vit_jax.run.verify import unreadable_reason

# Texts in errors of reading that say nothing about the files.
_NOT_DAMAGE = (
    "Permission denied",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "Too many open files",
    "ut of memory",
)


@dataclasses.dataclass(frozen=True)
class Restored:
    """Content of a checkpoint."""

    step: int  # number of updates made
    arrays: dict[str, Any]  # item name ("params", "optimizer", "ema") -> tree; only those asked for
    data: dict[str, Any]  # position in the example order
    config: dict[str, Any]


class CheckpointReader:
    """Reads the items of the checkpoints in a folder, of which `manager` is Orbax's manager."""

    def __init__(self, folder: Path, manager: ocp.CheckpointManager):
        self._folder, self._manager = folder, manager

    def read_json(
        self, abstract: dict[str, Any], step: int
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Returns the items `about`, `data` and `config` after checks, the same on all processes.

        A DamagedError of one process is raised on all.
        """
        at = self._folder / str(step)
        content, damage = ({}, {}, {}), None
        try:
            for name in (COMMIT_FILE, "about"):
                if not (at / name).exists():
                    raise damaged_error(at, f"it has no {name}")
            about = read_about(at)
            for item in abstract:
                if item in about["arrays"] and not (at / item).exists():
                    raise damaged_error(at, f"it has no {item}")
            content = about, read_item(at, "data", about), read_item(at, "config", about)
            self._check_architecture(abstract, step)
        except DamagedError as error:
            damage = error.parts
        except UserError:
            raise
        except Exception as error:  # Orbax raises many classes for damaged files.
            damage = _unreadable(at, error).parts
        for parts in gather(f"read checkpoint {step}", damage):
            if parts is not None:
                raise DamagedError(*parts)
        return content

    def read_arrays(self, abstract: dict[str, Any], step: int) -> dict[str, Any]:
        """Returns item -> tree of arrays.

        A damaged file raises DamagedError, or CheckpointError if there are several processes.
        """
        items = {
            name: ocp.args.PyTreeRestore(
                item=tree, restore_args=ocp.checkpoint_utils.construct_restore_args(tree)
            )
            for name, tree in abstract.items()
        }
        try:
            with name_late_processes():
                found = self._manager.restore(step, args=ocp.args.Composite(**items))
        except UserError:
            raise
        except Exception as error:
            damage = _unreadable(self._folder / str(step), error)
            if jax.process_count() > 1:  # The others may wait for this process in Orbax.
                raise CheckpointError(*damage.parts) from None
            raise damage from None
        return {name: found[name] for name in abstract}

    def _check_architecture(self, abstract: dict[str, Any], step: int) -> None:
        saved = self._manager.item_metadata(step)
        for item, tree in abstract.items():
            there = saved.get(item)
            if there is None:
                raise CheckpointError(
                    f"checkpoint {self._folder / str(step)} has no '{item}'",
                    "a checkpoint that was saved with it",
                    "use the config of the run that saved it",
                )
            wanted = _shapes(tree)
            found = _shapes(getattr(there, "tree", there))
            rows = [
                f"{name}: {found.get(name, 'missing')} there, {wanted.get(name, 'missing')} here"
                for name in sorted(found.keys() | wanted.keys())
                if found.get(name) != wanted.get(name)
            ]
            if rows:
                raise CheckpointError(
                    f"checkpoint {self._folder / str(step)} is of another architecture"
                    f" ({first_few(rows, 3, '; ')})",
                    "the same parameters",
                    "use the model section of that run's config.json",
                )


def _unreadable(at: Path, error: Exception) -> DamagedError:
    """Returns the error of a damaged checkpoint; raises CheckpointError if it may be whole."""
    reason = unreadable_reason(error)
    if isinstance(error, MemoryError) or any(text in str(error) for text in _NOT_DAMAGE):
        raise CheckpointError(
            f"checkpoint {at}: {reason}",
            "files that this user can read, and enough memory",
            "correct this and run the same command again",
        ) from None
    return damaged_error(at, reason)


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(leaf.shape) for name, leaf in named_leaves(tree).items()}
