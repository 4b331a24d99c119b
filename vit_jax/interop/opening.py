"""Opens published weights: recognises the format and reads the architecture."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError, WeightsError, first_few
from vit_jax.interop import native
from vit_jax.interop.formats import WeightsInfo, all_formats
from vit_jax.interop.locate import local_weights, weights_path
from vit_jax.interop.npz_about import with_about
from vit_jax.interop.tensors import TensorFile, open_tensors

log = logging.getLogger(__name__)

# Added to the names by DistributedDataParallel, torch.compile, Lightning, open_clip and others.
_PREFIXES = ("module.", "_orig_mod.", "backbone.", "visual.trunk.", "model.")


def read_options(address: str | Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model section of the weights without reading any tensors.

    `given` has the caller's options, for sizes that cannot be inferred.
    """
    path = weights_path(address)
    if native.is_native(path):
        return native.read_options(path)
    return dict(open_published(path, given)[1].options)


def open_published(path: Path, given: Mapping[str, Any]) -> tuple[TensorFile, WeightsInfo]:
    """Opens weights from `weights_path`, recognises their format and reads their architecture.

    `given` has the caller's options, for sizes that cannot be inferred.
    """
    if native.is_native(path):
        return native.open_native(path)
    path = local_weights(path)
    if path.is_dir():
        path = _weights_in(path)
    file = _without_prefixes(open_tensors(path))
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
        "this kind of model is not supported"
        if file.config()
        else "for transformers, give the folder that contains config.json",
    )


def _without_prefixes(file: TensorFile) -> TensorFile:
    """Returns the file without what a wrapper has put before the names of all its tensors."""
    for prefix in _PREFIXES:
        named = [name for name in file.shapes if name.startswith(prefix)]
        if not named:
            continue
        rest = sorted(file.shapes.keys() - set(named))
        if rest:
            raise WeightsError(
                f"{file.path} has tensors with the prefix {prefix!r} and others"
                f" ({first_few(rest, 2)})",
                "one model in a file",
                "save the tensors of the image model alone",
            )
        log.info("%s: removed the prefix %r from all tensor names", file.path, prefix)
        return _without_prefixes(file.renamed({n.removeprefix(prefix): n for n in named}))
    return file


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
