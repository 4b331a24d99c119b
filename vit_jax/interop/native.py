"""Weights of this package: run folders with checkpoints, and folders that `convert` writes."""

import dataclasses
import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orbax.checkpoint as ocp
from flax import nnx

from vit_jax.config.task import task_class
from vit_jax.data.class_names import with_spare_names
from vit_jax.errors import CheckpointError, PluginError, WeightsError
from vit_jax.interop.formats import WeightsInfo
from vit_jax.interop.name_table import Same, matches, row
from vit_jax.interop.tensors import TensorFile
from vit_jax.models.family import EvalView
from vit_jax.models.heads import count_classes
from vit_jax.models.registry import options_class
from vit_jax.named_tree import named_leaves
from vit_jax.plugins import naming_plugins
from vit_jax.run.about import choose_checkpoint, evaluated_item
from vit_jax.run.damage import read_about, read_item
from vit_jax.run.digest import array_digest
from vit_jax.run.verify import restore_numpy
from vit_jax.storage.files import read_json, write_json

if TYPE_CHECKING:
    from vit_jax.interop.load import Loaded

# Value of `convert --format` for these folders, and their name in messages about reading.
NAME, READS = "orbax", "vit_jax"
DESCRIPTION, ARRAYS = "model.json", "params"


def is_native(path: Path) -> bool:
    """Whether a path is a run folder, one of its steps, or a converted folder."""
    path = path.absolute()
    run = path / "config.json", path / "checkpoints"
    return path.is_dir() and (
        (path / DESCRIPTION).is_file()
        or all(part.exists() for part in run)
        or path.name == "checkpoints"
        or (path.name.isdigit() and (path / ARRAYS).is_dir())
    )


def open_native(path: Path) -> tuple[TensorFile, WeightsInfo]:
    """Reads the parameters of a run folder, of one step, or of a converted folder.

    For a run folder, reads its latest step, or the best step if early stopping chose one. If the
    run kept a moving average, reads the average.
    """
    path = path.absolute()
    try:
        about, arrays = _read_about(path)
        params = restore_numpy(arrays)
        _check_digests(path, about["digests"], params)
        published = _describe(about, params)
    except (WeightsError, PluginError):
        raise
    except Exception as error:  # Orbax raises many classes of errors for a damaged file.
        raise _unreadable_error(path, error) from None
    return as_tensor_file(path, params), published


def as_tensor_file(path: Path, params: dict[str, np.ndarray]) -> TensorFile:
    """Wraps arrays as a `TensorFile`. Each can be read once, and is then dropped to save memory."""
    size = sum(array.nbytes for array in params.values())
    shapes = {name: array.shape for name, array in params.items()}
    return TensorFile(path, shapes, size, params.pop)


def read_options(path: Path) -> dict[str, Any]:
    """Returns the model section of a path of `open_native` without reading any parameters."""
    path = path.absolute()
    try:
        return dict(_read_about(path)[0]["model"])
    except (WeightsError, PluginError):
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable_error(path, error) from None


def write_native(path: Path, about: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Writes a folder that `open_native` reads; raises OSError if it cannot be written.

    `about` has "model" (its section), "image_size", and optionally "class_names" and "view".
    """
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save((path / ARRAYS).absolute(), args=ocp.args.PyTreeSave(params))
    except (ValueError, RuntimeError) as error:  # TensorStore has no classes for errors of disks.
        reasons = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT)]
        reason = next((r for r in reasons if r in str(error)), str(error)[:200])
        raise OSError(errno.EIO, reason, str(path)) from None
    digests = {name: array_digest(np.asarray(a)) for name, a in named_leaves(params).items()}
    write_json(path / DESCRIPTION, {**about, "digests": digests})


def save_native(loaded: "Loaded", path: Path) -> None:
    """Writes a loaded model. This format holds every model, also for non-square images."""
    about = {
        "model": loaded.options.to_mapping(),
        "num_classes": loaded.num_classes,
        "image_size": list(loaded.image_size),
        "class_names": list(loaded.class_names or ()),
        "view": dataclasses.asdict(loaded.view),
    }
    write_native(path, about, nnx.to_pure_dict(nnx.state(loaded.model)))


def _read_about(path: Path) -> tuple[dict[str, Any], Path]:
    """Returns the description of the model, and the folder with its arrays."""
    about, arrays = _find_about(path)
    name = about["model"].get("name")
    if not isinstance(name, str):
        raise WeightsError(
            f"the model of {path} has the name {name!r}",
            "a name such as 'ViT-B/16'",
            "restore the file",
        )
    return about, arrays


def _find_about(path: Path) -> tuple[dict[str, Any], Path]:
    if (path / DESCRIPTION).is_file():
        return read_json(path / DESCRIPTION, error=WeightsError), path / ARRAYS
    try:
        step = choose_checkpoint(path)
        saved = read_about(step)
        config = read_item(step, "config", saved)
    except CheckpointError as error:
        raise WeightsError(error.got, error.expected, error.fix) from None
    with naming_plugins(step.parents[1]):
        item = evaluated_item(config)
        task, side = task_class(config.get("task")), config["data"]["image_size"]
        options_class(config["model"])
    about = {
        "model": task.model_section(config),
        "image_size": [side, side],
        "view": _eval_view(config["data"]),
        "own_parameters": task.own_parameters,
        "digests": saved["digests"]["arrays"][item],
    }
    classes = step.parents[1] / "classes.json"
    if classes.is_file():
        about["class_names"] = read_json(classes, error=WeightsError)["names"]
    return about, step / item


def _check_digests(
    path: Path, digests: Mapping[str, str], params: Mapping[str, np.ndarray]
) -> None:
    """Raises WeightsError if arrays are not those that were written."""
    for name, array in params.items():
        if digests.get(name) != array_digest(array):
            raise WeightsError(
                f"{path} is damaged: array '{name}' differs from what was saved",
                "the content that was saved",
                "use another step or another copy",
            )


def _unreadable_error(path: Path, error: Exception) -> WeightsError:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return WeightsError(
        f"{path} cannot be read: {reason}",
        "a run folder or a converted model",
        "check the path, or use another step of the run",
    )


def _eval_view(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the evaluation crop from a run's data section. Older runs lack some of the keys."""
    names = ("central_fraction", "antialias", "interpolation")
    found = {name: data[name] for name in names if name in data}
    return found | ({"crop": data["eval_crop"]} if "eval_crop" in data else {})


def _describe(about: Mapping[str, Any], params: Mapping[str, np.ndarray]) -> WeightsInfo:
    own = tuple(about.get("own_parameters", ()))
    shapes = {name: array.shape for name, array in params.items() if not matches(name, own)}
    num_classes, names = count_classes(shapes), about.get("class_names")
    names = with_spare_names(names, num_classes) if names else None
    return WeightsInfo(
        "vit_jax",
        {k: v for k, v in about["model"].items() if v is not None},
        num_classes,
        tuple(about["image_size"]),
        tuple(row(name, name, Same()) for name in params),
        class_names=names,
        view=EvalView(**about.get("view", {})),
        task_only=own,
    )
