"""Writes models in the formats of other projects."""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vit_jax.errors import WeightsError, nearest
from vit_jax.interop import native
from vit_jax.interop.formats import Tensors, all_formats, formats_of
from vit_jax.interop.load import Loaded
from vit_jax.interop.npz_about import write_about
from vit_jax.interop.report import LoadReport
from vit_jax.interop.tensors import DIGESTS
from vit_jax.models.family import ImageModel
from vit_jax.run.digest import array_digest
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import json_text, write_json, write_through
from vit_jax.storage.paths import check_output_folder, is_bucket, user_path


def format_names() -> list[str]:
    """Returns the names of all formats."""
    return list(dict.fromkeys([*(format.name for format in all_formats()), native.NAME]))


def check_format(name: str) -> None:
    """Raises WeightsError if no model family has a format of this name."""
    known = format_names()
    if name not in known:
        raise WeightsError(
            f"format {name!r}",
            f"one of {', '.join(known)}",
            f"did you mean {nearest(name, known)!r}?",
        )


def save(loaded: Loaded, path: Path, format: str) -> None:
    """Writes a model to a new npz file or folder. If writing fails, `path` is not created.

    The format is one of the model's family, or "orbax", which holds every model.
    """
    check_format(format)
    if format == native.NAME:
        with new_path(path) as part:
            native.save_native(loaded, part)
        return
    formats = {found.name: found for found in formats_of(loaded.options)}
    if format not in formats:
        raise WeightsError(
            f"{loaded.options.name} in format {format}",
            f"{' or '.join([*formats, native.NAME])} for this model",
            f"use --format={native.NAME}, which holds every model",
        )
    chosen = formats[format]
    if chosen.container == "npz" and path.suffix != ".npz":
        raise WeightsError(
            f"{path.name} for format {format}, which is one file",
            "a name that ends in .npz",
            "rename it",
        )
    with new_path(path) as part:
        tensors = chosen.to_tensors(loaded)
        if chosen.container == "npz":
            np.savez(part, **tensors.tensors)  # pyright: ignore
            about = {
                "image_size": loaded.image_size,
                "class_names": loaded.class_names or (),
                "view": dataclasses.asdict(loaded.view),
            }
            write_about(part, about)
        else:
            _write_folder(part, tensors)


def save_pretrained(model: ImageModel, path: str | Path, format: str = native.NAME) -> None:
    """Writes a model with its present weights, e.g. after training it with your own loop.

    `load_pretrained`, `init_from`, `predict` and `convert` read the result. To keep the names of
    the classes, set `model.class_names` before.

    Args:
        model: made by `create_model` or `load_pretrained`.
        path: a new npz file or folder, depending on the format; local or in a bucket.
        format: "orbax", which holds every model, or a format of the model's family:
            "vision_transformer", "timm", "transformers", "big_transfer".

    Raises:
        WeightsError: the path exists, the format cannot represent the model, or the number of class
            names is not that of the classes.

    >>> save_pretrained(model, "tuned")  # doctest: +SKIP
    """
    linear = getattr(getattr(model, "head", None), "linear", None)
    name, names = model.config.name, model.class_names
    num_classes = 0 if linear is None else linear.kernel.shape[-1]
    if names is not None and len(names) != num_classes:
        raise WeightsError(
            f"{len(names)} names in model.class_names",
            f"one for each of the {num_classes} classes",
            "complete them, or set model.class_names = None",
        )
    loaded = Loaded(
        model=model,
        options=model.config,
        num_classes=num_classes,
        image_size=model.image_size,
        class_names=names,
        view=model.view,
        report=LoadReport("memory", native.NAME, name, 0),
    )
    save(loaded, user_path(str(path)), format)


def check_new_path(path: Path) -> None:
    """Checks that a new file or folder can be written, before the work whose result goes there."""
    if path.exists() or path.is_symlink():
        raise WeightsError(f"{path} exists", "a new path", "choose another, or remove it")
    check_output_folder(path.parent)


@contextlib.contextmanager
def new_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path. The new `path` gets its content if the block succeeds."""
    part = path.with_name(f".{path.name}.part{path.suffix}")
    try:
        check_new_path(path)
        if is_bucket(path):  # Its folders cannot be renamed.
            with _uploaded(path) as local:
                yield local
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(part)  # Left over from a process that was killed.
        yield part
        part.rename(path)
    except OSError as error:
        place, fix = "folder with free space", "free some space"
        if isinstance(path, BucketPath):
            place, fix = "bucket", "check the account's rights"
        raise WeightsError(
            f"cannot write {path}: {error.strerror or error}",
            f"a writable {place}",
            f"choose another destination, or {fix}",
        ) from None
    finally:
        if not is_bucket(path):
            _remove(part)


@contextlib.contextmanager
def _uploaded(path: Path) -> Iterator[Path]:
    """Yields a local path that is uploaded after the block, whole or not at all."""
    is_uploading = False
    try:
        with write_through(path) as local:
            yield local
            is_uploading = True
    except BaseException:
        if is_uploading:
            _remove(path)
        raise


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if isinstance(path, BucketPath):
            path.remove_tree()
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _write_folder(path: Path, tensors: Tensors) -> None:
    from safetensors.numpy import save_file

    path.mkdir()
    weights = path / "model.safetensors"
    digests = {name: array_digest(np.asarray(a)) for name, a in tensors.tensors.items()}
    metadata = {"format": "pt", DIGESTS: json_text(digests, what="the digests")}
    save_file(dict(tensors.tensors), weights, metadata=metadata)
    # safetensors creates files that only the owner can read.
    mask = os.umask(0)
    os.umask(mask)
    weights.chmod(0o666 & ~mask)
    for name, content in tensors.configs.items():
        write_json(path / name, content)
