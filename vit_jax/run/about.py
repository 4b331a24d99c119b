"""The description of a checkpoint: its arrays' names and shapes, and the code that wrote it.

It is a JSON file beside the arrays, so that any machine can read it without loading them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vit_jax.config.optimizer import SCHEDULE_FREE
from vit_jax.config.task import task_class
from vit_jax.errors import CheckpointError
from vit_jax.named_tree import named_leaves
from vit_jax.run.damage import damaged_error
from vit_jax.run.result import read_result
from vit_jax.storage.paths import is_bucket, user_path

COMMIT_FILE = "commit_success.txt"
"""Orbax writes this file last, so a checkpoint that has it is complete.

On a local disk Orbax then gives the folder its final name.
"""


def describe(items: dict[str, Any], environment: dict[str, Any]) -> dict[str, Any]:
    """Returns the description as JSON. Arrays are by item, such as "params", and then by name."""
    arrays = {item: _array_rows(tree) for item, tree in items.items()}
    return {"environment": environment, "arrays": arrays}


def evaluated_item(config: Mapping[str, Any]) -> str:
    """Returns the item that holds the parameters to evaluate: "params" or "ema"."""
    averages = config.get("ema_decay") is not None or config["optimizer"]["name"] == SCHEDULE_FREE
    task = task_class(config.get("task"))
    return "ema" if averages or task.keeps_average else "params"


def _array_rows(tree: Any) -> dict[str, dict[str, Any]]:
    return {
        name: {"shape": list(a.shape), "dtype": str(a.dtype)}
        for name, a in named_leaves(tree).items()
    }


def choose_checkpoint(path: Path, step: int | None = None) -> Path:
    """Returns the folder of one checkpoint.

    Args:
        path: run folder, its `checkpoints` folder, or the folder of one step.
        step: step of the checkpoint. None: the step that the path names, else the best step of a
            finished run with early stopping, else the latest step.

    Raises:
        CheckpointError: no such checkpoint.
        DamagedError: the latest one is not complete.
    """
    path = user_path(path)
    is_run = (path / "checkpoints").is_dir()  # A run folder's name may be a number, too.
    if path.name.isdigit() and step is None and path.is_dir() and not is_run:
        if not (path / COMMIT_FILE).exists():
            raise CheckpointError(
                f"{path} has no {COMMIT_FILE}", "a complete checkpoint", "choose another step"
            )
        return path
    folder = path / "checkpoints" if is_run else path
    if not folder.is_dir():
        raise CheckpointError(
            f"no folder {folder}", "a run folder or its checkpoints", "check the path"
        )
    steps = saved_steps(folder)
    if not steps:
        raise CheckpointError(
            f"no checkpoint in {folder}", "a run that has saved one", "train it first"
        )
    if step is None:
        # Only runs with early stopping have a `best_step`.
        step = (read_result(folder.parent, CheckpointError) or {}).get("best_step")
    if step is None:
        step = steps[-1]
        newer = [] if is_bucket(folder) else [s for s in incomplete_steps(folder) if s > step]
        if newer:  # On a disk a checkpoint gets its name once it is complete.
            raise damaged_error(folder / str(newer[-1]), f"it has no {COMMIT_FILE}")
    if step not in steps:
        raise CheckpointError(
            f"no complete checkpoint of step {step} in {folder}",
            f"one of the steps {', '.join(map(str, steps))}",
            "choose one of these steps",
        )
    return folder / str(step)


def saved_steps(folder: Path) -> list[int]:
    """Returns the steps of the complete checkpoints in a folder, in ascending order."""
    return [step for step, complete in _steps(folder) if complete]


def incomplete_steps(folder: Path) -> list[int]:
    """Returns the steps in a folder whose checkpoints were not written to the end."""
    return [step for step, complete in _steps(folder) if not complete]


def _steps(folder: Path) -> list[tuple[int, bool]]:
    """Returns (step, whether it is complete) of what is in a folder, in ascending order."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((int(p.name), (p / COMMIT_FILE).exists()) for p in found if p.name.isdigit())
