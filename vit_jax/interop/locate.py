"""Resolves an address to a local path. Files at `hf://` and `gs://` are downloaded to a cache."""

import os
from pathlib import Path, PurePosixPath
from typing import Any

from vit_jax.errors import WeightsError
from vit_jax.interop.tensors import CONFIG_FILES

# Suffixes of the files to download from a folder of published weights.
_WEIGHT_SUFFIXES = (".safetensors", ".json", ".npz")


def local_path(address: str | Path) -> Path:
    """Returns the local path of the file or folder at an address.

    Args:
        address: local path, or a `SCHEME://...` that fsspec supports: `hf://ORGANISATION/MODEL[/FILE]`
            needs huggingface_hub, `gs://BUCKET/FILE` needs gcsfs. A cached file is downloaded again
            only if its size has changed. The cache is in VIT_JAX_CACHE, by default
            ~/.cache/vit_jax.

    Raises:
        WeightsError: the address does not exist, or a package is missing.
    """
    if "://" not in str(address):
        path = Path(address).expanduser()
        if not path.exists():
            raise WeightsError(
                f"{path} does not exist", "a file or folder of weights", "check the path"
            )
        return path
    return _download(str(address))


def _download(address: str) -> Path:
    import fsspec

    scheme, rest = address.split("://", 1)
    cache = Path(os.environ.get("VIT_JAX_CACHE", "~/.cache/vit_jax")).expanduser() / scheme
    target = cache / PurePosixPath(rest.strip("/"))
    try:
        system, root = fsspec.core.url_to_fs(address)
        if system.isdir(root):
            for name in _files_to_download(system, root):
                _download_file(system, name, target / name.removeprefix(root).lstrip("/"))
        else:
            _download_file(system, root, target)
            folder = root.rpartition("/")[0]
            for name in CONFIG_FILES:
                if target.suffix == ".safetensors" and system.exists(f"{folder}/{name}"):
                    _download_file(system, f"{folder}/{name}", target.with_name(name))
    except ImportError as error:
        package = {"hf": "huggingface_hub", "gs": "gcsfs"}.get(scheme, "the fsspec backend")
        raise WeightsError(
            f"{address} cannot be fetched: {error}",
            f"{package} to be installed",
            f"pip install {package}, or download the file and give its path",
        ) from None
    except Exception as error:  # Each file system has its own error classes.
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise WeightsError(
            f"{address} cannot be fetched: {reason}",
            "an address that can be read",
            "check it, or download the file and give its path",
        ) from None
    return target


def _files_to_download(system: Any, root: str) -> list[str]:
    """Returns the files to download from a folder: a whole run folder, else weights and configs."""
    inside = [name.rstrip("/") for name in system.ls(root, detail=False)]
    ours = {"checkpoints", "params", "model.json"}
    if ours & {name.rpartition("/")[2] for name in inside}:
        return system.find(root)
    return [name for name in inside if name.endswith(_WEIGHT_SUFFIXES)]


def _download_file(system: Any, name: str, target: Path) -> None:
    if target.exists() and target.stat().st_size == system.size(name):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part-{os.getpid()}")
    try:
        system.get_file(name, str(part))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
