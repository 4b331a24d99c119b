"""Opening published weights: the format is recognised, the architecture read off the file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError, WeightsError
from vit_jax.interop import big_transfer, native, timm, transformers, vision_transformer
from vit_jax.interop.locate import local_path
from vit_jax.interop.published import Published
from vit_jax.interop.tensors import TensorFile, open_tensors

FORMATS = "vision_transformer, big_vision, big_transfer, transformers, timm, vit_jax"


def read_options(address: str | Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model section that weights are for, reading no tensors.

    Args:
        address: as `load` takes it.
        given: what the caller knows, for what cannot be inferred.

    Raises:
        WeightsError: nothing there, an unknown format, or something that has to be given.
    """
    path = local_path(address)
    if native.is_native(path):
        return native.read_options(path)
    return dict(open_published(path, given)[1].options)


def open_published(path: Path, given: Mapping[str, Any]) -> tuple[TensorFile, Published]:
    """Opens weights and finds out what they are.

    Args:
        path: local file or folder.
        given: what the caller knows, for what cannot be inferred.

    Raises:
        WeightsError: an unknown format, a damaged file, or something that has to be given.
    """
    if native.is_native(path):
        return native.open_native(path)
    folder = path if path.is_dir() else path.parent
    if path.is_dir():
        path = _weights_in(path)
    file = open_tensors(path)
    try:
        found = _recognise(file, folder, given)
    except UserError:
        raise
    # A tensor lacks or has other axes, or a config.json says what cannot be.
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise WeightsError(
            f"{path} has tensors that do not make a whole model ({error})",
            f"one of the formats {FORMATS}", "check where the file comes from",
        ) from None  # fmt: skip
    if found is None:
        names = ", ".join(sorted(file.shapes)[:3])
        raise WeightsError(
            f"{path} has tensors of an unknown architecture ({names}, ...)",
            f"one of the formats {FORMATS}",
            "for transformers give the folder with config.json",
        )
    return found


def _recognise(
    file: TensorFile, folder: Path, given: Mapping[str, Any]
) -> tuple[TensorFile, Published] | None:
    if file.path.suffix == ".npz":
        if found := vision_transformer.recognise(file):
            return found, vision_transformer.describe(found, given)
        if found := big_transfer.recognise(file):
            return found, big_transfer.describe(found, given)
        return None
    config = _read_json(folder / "config.json")
    if found := transformers.recognise(file, config):
        preprocessor = _read_json(folder / "preprocessor_config.json")
        return found, transformers.describe(found, config, preprocessor)
    if found := timm.recognise(file):
        return found, timm.describe(found, given, config)
    return None


def _weights_in(folder: Path) -> Path:
    for name in ("model.safetensors", "model.safetensors.index.json"):
        if (folder / name).is_file():
            return folder / name
    files = sorted((*folder.glob("*.safetensors"), *folder.glob("*.npz")))
    if len(files) != 1:
        raise WeightsError(
            f"{folder} has {len(files)} files of weights", "model.safetensors, or just one file",
            "give the file itself",
        )  # fmt: skip
    return files[0]


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__}, no object")
        return found
    except ValueError as error:
        raise WeightsError(f"{path} is no JSON: {error}", "a config.json", "fix it") from None
