"""Opens published weights: recognises the format and reads the architecture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError, WeightsError
from vit_jax.interop import native
from vit_jax.interop.formats import WeightsInfo, all_formats
from vit_jax.interop.locate import local_weights, weights_path
from vit_jax.interop.npz_about import with_about
from vit_jax.interop.tensors import TensorFile, open_tensors


def read_options(address: str | Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model section of the weights without reading any tensors.

    Args:
        address: as for `load`.
        given: the caller's options, for sizes that cannot be inferred.

    Raises:
        WeightsError: no such file, an unknown format, or a size that must be given.
    """
    path = weights_path(address)
    if native.is_native(path):
        return native.read_options(path)
    return dict(open_published(path, given)[1].options)


def open_published(path: Path, given: Mapping[str, Any]) -> tuple[TensorFile, WeightsInfo]:
    """Opens weights, recognises their format and reads their architecture.

    Args:
        path: file or folder, from `weights_path`.
        given: the caller's options, for sizes that cannot be inferred.

    Raises:
        WeightsError: an unknown format, a damaged file, or a size that must be given.
    """
    if native.is_native(path):
        return native.open_native(path)
    path = local_weights(path)
    if path.is_dir():
        path = _weights_in(path)
    file = open_tensors(path)
    formats = [f for f in all_formats() if (f.container == "npz") == (path.suffix == ".npz")]
    try:
        for format in formats:
            if (recognised := format.recognise(file)) is not None:
                found = format.describe(recognised, given)
                is_npz = path.suffix == ".npz"
                return recognised, with_about(found, path) if is_npz else found
    except UserError:
        raise
    # A tensor is missing or has other axes, or config.json has invalid values.
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise WeightsError(
            f"{path} has tensors that do not make a complete model ({error})",
            f"one of the formats {known_formats()}",
            "check where the file comes from",
        ) from None
    names = ", ".join(sorted(file.shapes)[:3])
    raise WeightsError(
        f"{path} has tensors of an unknown architecture ({names}, ...)",
        f"one of the formats {known_formats()}",
        "for transformers, give the folder that contains config.json",
    )


def known_formats() -> str:
    """Returns the names of all formats that can be read, for messages."""
    names = [name for format in all_formats() for name in format.reads]
    return ", ".join(dict.fromkeys([*names, native.READS]))


def _weights_in(folder: Path) -> Path:
    for name in ("model.safetensors", "model.safetensors.index.json"):
        if (folder / name).is_file():
            return folder / name
    files = sorted((*folder.glob("*.safetensors"), *folder.glob("*.npz")))
    if len(files) != 1:
        raise WeightsError(
            f"{folder} has {len(files)} files of weights",
            "model.safetensors, or exactly one file",
            "give the file itself",
        )
    return files[0]
