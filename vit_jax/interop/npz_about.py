"""Class names, image size and crop in an npz file, where other projects have no place for them.

An npz file is a zip archive, and a zip archive has a comment, which readers of the arrays never
see. It holds JSON, compressed.
"""

import dataclasses
import json
import logging
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic

from vit_jax.interop.formats import EvalView, WeightsInfo

log = logging.getLogger(__name__)

_START = b"vit_jax "
# Limits of a zip archive's comment, and of the JSON in it.
_MOST_BYTES, _MOST_TEXT = 65_535, 4 * 2**20


class _About(pydantic.BaseModel):
    """The types of the values in the JSON."""

    image_size: tuple[int, int]
    class_names: list[str] = []
    view: dict[str, Any] = {}


def write_about(path: Path, about: Mapping[str, Any]) -> None:
    """Adds a description to an npz file: "image_size", "class_names" and "view"."""
    comment = _START + zlib.compress(json.dumps(about).encode(), 9)
    if len(comment) > _MOST_BYTES:
        log.warning("%s: %d class names are too long for it", path, len(about["class_names"]))
        comment = _START + zlib.compress(json.dumps({**about, "class_names": []}).encode(), 9)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = comment


def with_about(info: WeightsInfo, path: Path) -> WeightsInfo:
    """Returns a description of an npz file's tensors with what `write_about` added to the file."""
    with zipfile.ZipFile(path) as archive:
        comment = archive.comment
    if not comment.startswith(_START):
        return info
    try:
        text = zlib.decompressobj().decompress(comment[len(_START) :], _MOST_TEXT)
        about = _About.model_validate_json(text)
        view = EvalView(**about.view)
    except (zlib.error, ValueError, TypeError):
        log.warning("%s: its description cannot be read; class names are not known", path)
        return info
    names = tuple(about.class_names)
    return dataclasses.replace(
        info,
        image_size=about.image_size,
        class_names=names if names and len(names) == info.num_classes else info.class_names,
        view=view,
    )
