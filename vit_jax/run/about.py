"""What a checkpoint says of itself: every array by name, the code and the machine that wrote it.

It lies beside the arrays as JSON, so that it can be read on any machine without them.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from vit_jax.config.optimizer import SCHEDULE_FREE
from vit_jax.errors import CheckpointError
from vit_jax.named_tree import leaf_names

# The file that Orbax keeps a JSON item in.
_FILE = "metadata"


@dataclasses.dataclass(frozen=True)
class About:
    """A checkpoint without its arrays.

    Attributes:
        path: folder of the step.
        step: number of updates made.
        other_steps: of the other checkpoints beside it.
        arrays: item ("params", "optimizer", "ema") -> name -> {"shape": ..., "dtype": ...}.
        environment: git revision, versions, devices and hosts that wrote it.
        data: position in the example order.
        config: the run's config, as nested dicts.
    """

    path: Path
    step: int
    other_steps: tuple[int, ...]
    arrays: dict[str, dict[str, dict[str, Any]]]
    environment: dict[str, Any]
    data: dict[str, Any]
    config: dict[str, Any]


def describe(items: dict[str, Any], environment: dict[str, Any]) -> dict[str, Any]:
    """Returns what `read_about` finds, for JSON.

    Args:
        items: item name -> tree of arrays.
        environment: of `run_folder.environment`.
    """
    arrays = {item: _array_rows(tree) for item, tree in items.items()}
    return {"environment": environment, "arrays": arrays}


def evaluated_item(config: Mapping[str, Any]) -> str:
    """Returns the checkpoint item that holds the parameters to evaluate: "params" or "ema".

    Args:
        config: the run's config, as in the checkpoint.
    """
    averages = config.get("ema_decay") is not None or config["optimizer"]["name"] in SCHEDULE_FREE
    return "ema" if averages else "params"


def _array_rows(tree: Any) -> dict[str, dict[str, Any]]:
    named = zip(leaf_names(tree), jax.tree.leaves(tree), strict=True)
    return {name: {"shape": list(a.shape), "dtype": str(a.dtype)} for name, a in named}


def find_steps(path: Path, step: int | None = None) -> tuple[Path, int | None]:
    """Returns the folder of checkpoints that a path stands for, and the step that it names.

    Args:
        path: run folder, its `checkpoints` folder, or one step below it.
        step: None: as the path says, or the best one of a run that early stopping has ended.

    Returns:
        folder, and step; None: the latest.

    Raises:
        CheckpointError: no folder there.
    """
    path = Path(path).expanduser()
    is_run = (path / "checkpoints").is_dir()
    if path.name.isdigit() and step is None and path.is_dir() and not is_run:
        path, step = path.parent, int(path.name)
    folder = path / "checkpoints" if is_run else path
    if not folder.is_dir():
        raise CheckpointError(
            f"no folder {folder}", "a run folder or its checkpoints", "check the path"
        )
    return folder, best_step(folder.parent) if step is None else step


def best_step(run: Path) -> int | None:
    """Returns the step whose weights a finished run with early stopping took; None: the last."""
    try:
        return json.loads((run / "result.json").read_text()).get("best_step")
    except (OSError, ValueError, AttributeError):  # Not finished, or no run folder.
        return None


def read_about(path: Path) -> About:
    """Reads what a checkpoint says of itself; opens no arrays and no devices.

    Args:
        path: run folder, its `checkpoints` folder (both: see `find_steps`), or one step below.

    Raises:
        CheckpointError: no checkpoint there, or one that does not say it.
    """
    folder, step = find_steps(path)
    steps = sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit() and p.is_dir())
    if not steps:
        raise CheckpointError(
            f"no checkpoint in {folder}", "a folder named by a step", "check the path"
        )
    step = steps[-1] if step is None else step
    at = folder / str(step)
    about = _read_json(at, "about")
    return About(
        path=at,
        step=step,
        other_steps=tuple(s for s in steps if s != step),
        arrays=about["arrays"],
        environment=about["environment"],
        data=_read_json(at, "data"),
        config=_read_json(at, "config"),
    )


def _read_json(at: Path, item: str) -> dict[str, Any]:
    file = at / item / _FILE
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        raise CheckpointError(
            f"{at} has no {item}/{_FILE}",
            "a checkpoint of this project, written by a version that keeps it",
            "check the path, or go on with the run to save a new one",
        ) from None
    except (ValueError, OSError) as error:
        raise CheckpointError(
            f"{file}: {error}", "JSON, as this project writes it", "use another step"
        ) from None
