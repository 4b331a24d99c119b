"""Our own weights: run folders with their checkpoints, and folders that `convert` writes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from vit_jax.errors import UserError, WeightsError
from vit_jax.files import read_json
from vit_jax.interop.published import EvalView, Published
from vit_jax.interop.rows import Same, row
from vit_jax.interop.tensors import TensorFile
from vit_jax.named_tree import named_leaves
from vit_jax.run.about import choose_checkpoint

DESCRIPTION, ARRAYS = "model.json", "params"
# Task -> what of a run's parameters serves it alone: colours of patches are no classes of images.
_OF_TASK = {"classification": (), "masked_patches": ("mask_token", "head/.*")}


def is_native(path: Path) -> bool:
    """Returns whether a folder is one of ours."""
    path = path.absolute()
    run = path / "config.json", path / "checkpoints"
    return path.is_dir() and (
        (path / DESCRIPTION).is_file()
        or all(part.exists() for part in run)
        or path.name == "checkpoints"
        or (path.name.isdigit() and (path / ARRAYS).is_dir())
    )


def open_native(path: Path) -> tuple[TensorFile, Published]:
    """Reads the parameters of a run folder, a step, or a converted folder.

    Of a run folder it is the latest step, or the best of a run with early stopping. Where the run
    kept a moving average, that is what is read.

    Raises:
        WeightsError: no complete checkpoint there, or a damaged one.
    """
    path = path.absolute()
    try:
        about, arrays = _read_about(path)
        params = _restore(arrays)
        published = _describe(about, params)
    except UserError:
        raise
    except Exception as error:  # Orbax raises many kinds for a damaged file.
        raise _unreadable(path, error) from None
    size = sum(array.nbytes for array in params.values())
    shapes = {name: array.shape for name, array in params.items()}
    # Each array is given away once, so that it is not held beside the model's copy.
    return TensorFile(path, shapes, size, params.pop), published


def read_options(path: Path) -> dict[str, Any]:
    """Returns the model section of what `open_native` reads, without its parameters.

    Raises:
        WeightsError: no complete checkpoint there, or a damaged one.
    """
    path = path.absolute()
    try:
        return dict(_read_about(path)[0]["model"])
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from None


def _read_about(path: Path) -> tuple[dict[str, Any], Path]:
    """Returns what describes the model, and the folder of its arrays."""
    if (path / DESCRIPTION).is_file():
        return json.loads((path / DESCRIPTION).read_text()), path / ARRAYS
    step = choose_checkpoint(path)
    config = read_json(step / "config" / "metadata")
    side = config["data"]["image_size"]
    about = {"model": config["model"], "image_size": [side, side]}
    about["task"] = config.get("task", "classification")
    about["view"] = _view(config["data"])
    classes = step.parents[1] / "classes.json"
    if classes.is_file():
        about["class_names"] = json.loads(classes.read_text())["names"]
    return about, step / (ARRAYS if config.get("ema_decay") is None else "ema")


def _unreadable(path: Path, error: Exception) -> WeightsError:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return WeightsError(
        f"{path} cannot be read: {reason}", "a run folder or a converted model",
        "check the path, or take another step of the run",
    )  # fmt: skip


def write_native(
    path: Path, about: Mapping[str, Any], params: Mapping[str, Any]
) -> None:  # fmt: skip
    """Writes parameters (a nested dict) and what describes them."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save((path / ARRAYS).absolute(), args=ocp.args.PyTreeSave(params))
    (path / DESCRIPTION).write_text(json.dumps(about, indent=2) + "\n")


def _restore(path: Path) -> dict[str, np.ndarray]:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        tree = checkpointer.metadata(path.absolute()).item_metadata.tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        found = checkpointer.restore(
            path.absolute(), args=ocp.args.PyTreeRestore(restore_args=as_numpy)
        )  # fmt: skip
    return named_leaves(found)


def _view(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how a run evaluated, from its data section; what an older one lacks is as usual."""
    augment = data.get("augment", {})
    found = {name: augment[name] for name in ("central_fraction", "antialias") if name in augment}
    return found | ({"crop": data["eval_crop"]} if "eval_crop" in data else {})


def _describe(about: Mapping[str, Any], params: Mapping[str, np.ndarray]) -> Published:
    of_task = _OF_TASK[about.get("task", "classification")]
    head = None if "head/.*" in of_task else params.get("head/linear/kernel")
    names = about.get("class_names")
    if names and (head is None or len(names) != head.shape[1]):
        names = None  # A dataset may name fewer classes than the head was made for.
    return Published(
        "vit_jax",
        {k: v for k, v in about["model"].items() if v is not None},
        0 if head is None else head.shape[1],
        tuple(about["image_size"]),
        tuple(row(name, name, Same()) for name in params),
        class_names=tuple(names) if names else None,
        view=EvalView(**about.get("view", {})),
        of_pretraining=of_task,
    )
