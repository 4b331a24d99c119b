"""Finds published weights: local, in a bucket, or at `hf://`. Remote files are cached."""

import logging
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from vit_jax.errors import FileError, WeightsError
from vit_jax.interop.tensors import CONFIG_FILES
from vit_jax.models.aliases import find_alias
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import check_regular
from vit_jax.storage.paths import cache_dir, user_path
from vit_jax.storage.paths import local_path as checked_local_path

log = logging.getLogger(__name__)

# Suffixes of the files to download from a folder of published weights.
_WEIGHT_SUFFIXES = (".safetensors", ".json", ".npz")
_HUB = "hf://"


def is_published(address: str | Path) -> bool:
    """Whether an address is on the Hugging Face Hub: `hf://ORGANISATION/MODEL[/FILE]`."""
    return str(address).startswith(_HUB)


def weights_path(address: str | Path) -> Path:
    """Returns the path of the file or folder at an address.

    `hf://` needs huggingface_hub and is downloaded to the cache.
    """
    if is_published(address):
        return _download(str(address))
    try:
        path = user_path(address)
    except FileError as error:
        raise WeightsError(error.got, f"{error.expected}, or {_HUB}...", error.fix) from None
    try:
        is_there = path.exists()
    except OSError as error:
        raise _fetch_error(str(path), error) from None
    if not is_there:
        remote = hub_address(str(address))
        if remote is not None:
            log.info("no file or folder %s: reading %s", address, remote)
            return _download(remote)
        is_model = find_alias(str(address)) is not None
        raise WeightsError(
            f"{path} does not exist",
            "a file or folder of weights",
            "check the path; published weights are at e.g. hf://google/vit-base-patch16-224"
            if is_model
            else "check the path",
        )
    if not path.is_dir():
        try:
            check_regular(path)
        except FileError as error:
            raise WeightsError(error.got, "a file or folder of weights", error.fix) from None
    return path


def hub_address(name: str) -> str | None:
    """Returns the address of the weights that a name of transformers or timm stands for, or None.

    >>> hub_address("google/vit-base-patch16-224")
    'hf://google/vit-base-patch16-224'
    >>> hub_address("vit_tiny_patch16_224.augreg_in21k")
    'hf://timm/vit_tiny_patch16_224.augreg_in21k'
    """
    if find_alias(name) is None or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        return None
    if "/" in name:
        return f"{_HUB}{name}" if len(name.partition("/")[0]) > 2 else None
    # timm publishes several weights of an architecture; the part after the dot names one.
    return f"{_HUB}timm/{name}" if "." in name and "patch" in name else None


def local_weights(path: Path) -> Path:
    """Returns the local path of published weights, from a path of `weights_path`.

    From a bucket they are downloaded to a cache, in VIT_JAX_CACHE, by default ~/.cache/vit_jax. A
    cached file is downloaded again if its size or the time of its last change differs.
    """
    return _download(str(path)) if isinstance(path, BucketPath) else path


def _download(address: str) -> Path:
    given = os.environ.get("VIT_JAX_CACHE")
    cache = checked_local_path(given, "VIT_JAX_CACHE") if given else cache_dir()
    scheme, _, rest = address.partition("://")
    target = cache / scheme / PurePosixPath(rest.strip("/"))
    try:
        system, name = _file_system(address)
        if system.isdir(name):
            names = _files_to_download(system, name)
            files = [target / inner.removeprefix(name).lstrip("/") for inner in names]
            for inner, file in zip(names, files, strict=True):
                _download_file(system, inner, file)
            for old in target.glob("*"):  # The loader would read what is gone in the bucket.
                if old.name.endswith(_WEIGHT_SUFFIXES) and old not in files:
                    old.unlink(missing_ok=True)
        else:
            _download_file(system, name, target)
            folder = name.rpartition("/")[0]
            for beside in CONFIG_FILES:
                if target.suffix == ".safetensors" and system.exists(f"{folder}/{beside}"):
                    _download_file(system, f"{folder}/{beside}", target.with_name(beside))
    except ImportError as error:
        package = "huggingface_hub"
        raise WeightsError(
            f"{address} cannot be fetched: {error}",
            f"{package} to be installed",
            f"pip install {package}, or download the file and give its path",
        ) from None
    except Exception as error:  # Each file system has its own error classes.
        raise _fetch_error(address, error) from None
    return target


def _file_system(address: str) -> tuple[Any, str]:
    """Returns the fsspec file system of an address, and the name in it."""
    if not is_published(address):
        path = BucketPath(address)
        return path.fs, path.key
    import fsspec

    return fsspec.core.url_to_fs(address)


def _fetch_error(address: str, error: Exception) -> WeightsError:
    text = getattr(error, "strerror", None) or str(error)
    reason = (text.splitlines() or [type(error).__name__])[0][:200]
    return WeightsError(
        f"{address} cannot be fetched: {reason}",
        "an address that can be read",
        "check it, or download the file and give its path",
    )


def _files_to_download(system: Any, root: str) -> list[str]:
    """Returns the files to download from a folder: a whole run folder, else weights and configs."""
    inside = [name.rstrip("/") for name in system.ls(root, detail=False)]
    ours = {"checkpoints", "params", "model.json"}
    if ours & {name.rpartition("/")[2] for name in inside}:
        return system.find(root)
    return [name for name in inside if name.endswith(_WEIGHT_SUFFIXES)]


def _download_file(system: Any, name: str, target: Path) -> None:
    info = system.info(name)
    changed = info.get("mtime") or info.get("LastModified")
    if target.exists():
        cached = target.stat()
        is_old = changed is not None and abs(cached.st_mtime - changed.timestamp()) > 1e-3
        if cached.st_size == info["size"] and not is_old:
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part-{os.getpid()}")
    try:
        system.get_file(name, str(part))
        if changed is not None:
            os.utime(part, (changed.timestamp(), changed.timestamp()))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
