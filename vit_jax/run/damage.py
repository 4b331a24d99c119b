"""Finds out whether a checkpoint is damaged, and moves damaged ones aside.

The description of a checkpoint holds a digest of each array, of the other JSON items, and of
itself.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic

from vit_jax.errors import CheckpointError, DamagedError, first_few
from vit_jax.run.digest import combined_digest, json_digest
from vit_jax.run.result import RESULT, read_result
from vit_jax.storage.files import read_json
from vit_jax.storage.paths import is_bucket

JSON_FILE = "metadata"
"""Name of the file in which Orbax stores a JSON item."""

_Digests = Mapping[str, Mapping[str, str]]


class _Description(pydantic.BaseModel):
    arrays: dict[str, dict[str, dict[str, Any]]]
    environment: dict[str, Any]
    digests: dict[str, dict[str, Any]]
    digest: str


def with_digests(
    about: Mapping[str, Any], arrays: _Digests, **contents: dict[str, Any]
) -> dict[str, Any]:
    """Returns a description with the digests of what it describes, and of itself."""
    digests = {"arrays": arrays, "json": {item: json_digest(c) for item, c in contents.items()}}
    content = {**about, "digests": digests}
    return content | {"digest": json_digest(content)}


def damaged_error(at: Path, reason: str) -> DamagedError:
    """Returns the error of a damaged checkpoint; `reason` is e.g. "array 'params/...' differs"."""
    return DamagedError(
        f"checkpoint {at} is damaged: {reason}",
        "the content that was saved",
        "use another step, or move that folder away to continue from an earlier one",
    )


def read_about(at: Path) -> dict[str, Any]:
    """Returns the description of a checkpoint after checking it against its own digest.

    Raises:
        CheckpointError: there is no such folder, or it has no description.
        DamagedError: the description is damaged, or is not that of the run's result.
    """
    about = _read(at, "about")
    try:
        _Description.model_validate(about)
    except pydantic.ValidationError:
        raise damaged_error(at, f"about/{JSON_FILE} does not describe its arrays") from None
    content = {key: value for key, value in about.items() if key != "digest"}
    if about["digest"] != json_digest(content):
        raise damaged_error(at, f"about/{JSON_FILE} differs from its digest")
    _check_result(at, about)
    return about


def read_item(at: Path, item: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON item "data" or "config" of a checkpoint after checking it.

    Raises:
        CheckpointError: there is no such item.
        DamagedError: it is damaged.
    """
    content = _read(at, item)
    if about["digests"]["json"][item] != json_digest(content):
        raise damaged_error(at, f"{item}/{JSON_FILE} differs from its digest")
    return content


def check_arrays(at: Path, about: Mapping[str, Any], found: _Digests) -> None:
    """Raises DamagedError if the digests that were `found` are not those of the saved arrays."""
    saved = about["digests"]["arrays"]
    wrong = [
        f"'{item}/{name}'"
        for item, digests in found.items()
        for name, digest in digests.items()
        if saved.get(item, {}).get(name) != digest
    ]
    if wrong:
        noun, verb = ("array", "differs") if len(wrong) == 1 else ("arrays", "differ")
        raise damaged_error(at, f"{noun} {first_few(wrong, 3)} {verb} from what was saved")


def weights_digest(at: Path, item: str) -> str:
    """Returns the digest of all arrays of an item, "params" or "ema", as saved."""
    return combined_digest(read_about(at)["digests"]["arrays"][item])


def set_aside(folder: Path, step: int) -> Path:
    """Renames a damaged checkpoint, so that no reader finds it; returns its new path."""
    at = folder / str(step)
    if is_bucket(folder):
        raise DamagedError(
            f"checkpoint {at} is damaged, and folders in a bucket cannot be renamed",
            "a checkpoint that was saved whole",
            f"copy it elsewhere, delete {at}, and run the same command again",
        )
    target, count = folder / f"damaged-{step}", 1
    while target.exists() or target.is_symlink():
        count += 1
        target = folder / f"damaged-{step}-{count}"
    at.rename(target)
    return target


def _read(at: Path, item: str) -> dict[str, Any]:
    file = at / item / JSON_FILE
    if at.is_dir() and not file.exists():
        raise CheckpointError(
            f"{at} has no {item}/{JSON_FILE}",
            "a checkpoint that this project wrote",
            "check the path, or resume the run to save a new checkpoint",
        )
    return read_json(file, error=DamagedError, fix="use another step")


def _check_result(at: Path, about: Mapping[str, Any]) -> None:
    """Raises DamagedError if a checkpoint is of the final step, but of other weights."""
    if at.parent.name != "checkpoints":
        return
    result = read_result(at.parents[1], CheckpointError) or {}
    wanted = result.get("weights_digest")
    if wanted is None or str(result.get("best_step", result.get("step"))) != at.name:
        return
    found = [combined_digest(digests) for digests in about["digests"]["arrays"].values()]
    if wanted not in found:
        raise damaged_error(at, f"its weights are not those of {at.parents[1] / RESULT}")
