"""The types of the values that reports read from the JSON files of a run."""

from pathlib import Path
from typing import Any, TypeVar

import pydantic

from vit_jax.errors import FileError
from vit_jax.storage.files import read_json

_Scalar = str | int | float | bool | None


class _File(pydantic.BaseModel):
    """Part of a file; other keys are not checked."""

    model_config = pydantic.ConfigDict(extra="allow")


class _SelectionFile(_File):
    metric: str = ""
    candidates: list[tuple[str, float | None]] | None = None


class JobFile(_File):
    """job.json, which a sweep writes."""

    name: str | None = None
    sweep: str | None = None
    command: str = "train"
    stage: str | None = None
    labels: dict[str, _Scalar] | None = None
    overrides: dict[str, Any] | None = None
    selection: _SelectionFile | None = None


class EnvironmentFile(_File):
    """env.json."""

    device_kind: str | None = None
    device_count: int = 1
    host_count: int = 1
    git_revision: str | None = None
    packages: dict[str, str | None] = {}


class ClassesFile(_File):
    """classes.json."""

    names: list[str] | None = None


class DataFile(_File):
    """data.json."""

    fingerprint: str | None = None
    evaluated: dict[str, str] = {}


class SweepFile(_File):
    """sweep.json."""

    jobs: list[str | dict[str, Any]] | None = None


class ConfigFile(_File):
    """The keys of config.json that reports calculate with."""

    train_steps: int | None = None


F = TypeVar("F", bound=_File)


def read_optional(path: Path, problems: list[str], kind: type[F] | None = None) -> dict[str, Any]:
    """Returns the content of a JSON file, or {}. Adds to `problems` why a file cannot be used."""
    try:
        content = read_json(path) if path.is_file() else {}
    except FileError as error:
        # Without the path of the folder, which a report does not show.
        problems.append(error.got.replace(str(path), path.name))
        return {}
    try:
        if kind is not None:
            kind.model_validate(content)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        problems.append(
            f"{path.name}: {key} = {str(first['input'])[:80]!r}: {first['msg'].lower()}"
        )
        return {}
    return content
