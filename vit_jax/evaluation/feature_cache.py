"""Caches extracted features, by a key of everything that they depend on.

An entry is a folder `HASH/` with `features.npy`, `labels.npy` and `about.json`, which holds the
complete key and the hashes of both files. On a local disk an entry gets its name once it is
complete; in a bucket `about.json` is written last. If its key or hashes do not match, it is
replaced.
"""

import hashlib
import json
import logging
import shutil
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.evaluation.features import Features
from vit_jax.storage.files import local_copy, write_json, write_through
from vit_jax.storage.paths import is_bucket

log = logging.getLogger(__name__)

_FILES = ("features.npy", "labels.npy")
_CHUNK = 1 << 24


class FeatureCache:
    """A folder of extracted features; None: no cache.

    A key is everything that the features depend on, as JSON values.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder

    def load(self, key: dict[str, Any]) -> Features | None:
        """Returns the features stored under a key; None if there are none or they are damaged."""
        if self._folder is None:
            return None
        entry = self._folder / _name(key)
        try:
            if not entry.is_dir():
                return None
            with local_copy(entry) as local:
                return _read(local, key)
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            log.warning("cannot use the cached features in %s (%s): extracting again", entry, error)
            return None

    def store(self, key: dict[str, Any], features: Features) -> None:
        """Stores features under a key. If the disk cannot be written to, it only logs a warning."""
        if self._folder is None:
            return
        entry = self._folder / _name(key)
        try:
            if is_bucket(entry):
                _write(entry, key, features)
            else:
                _write_aside(entry, key, features)
        except OSError as error:
            log.warning("cannot cache features in %s: %s", self._folder, error.strerror or error)


def _write(entry: Path, key: dict[str, Any], features: Features) -> None:
    """Writes the files of an entry, `about.json` last."""
    (entry / "about.json").unlink(missing_ok=True)
    hashes = {}
    for name, array in zip(_FILES, (features.values, features.labels), strict=True):
        with write_through(entry / name) as file:
            np.save(file, array)
            hashes[name] = _hash(file)
    write_json(entry / "about.json", {"key": key, "sha256": hashes})


def _write_aside(entry: Path, key: dict[str, Any], features: Features) -> None:
    """Writes an entry under another name and renames it."""
    temporary = entry.with_name(f".{uuid.uuid4().hex}")
    old = temporary.with_name(f"{temporary.name}.old")
    try:
        temporary.mkdir(parents=True)
        _write(temporary, key, features)
        if entry.is_dir():
            entry.rename(old)
        temporary.rename(entry)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _read(entry: Path, key: dict[str, Any]) -> Features:
    """Reads an entry on a local disk. Its files may be deleted afterwards."""
    about = json.loads((entry / "about.json").read_text())
    if about["key"] != _plain(key):
        raise ValueError("it has another key")
    for name in _FILES:
        if _hash(entry / name) != about["sha256"][name]:
            raise ValueError(f"{name} has changed since it was written")
    values = np.load(entry / "features.npy", mmap_mode="r", allow_pickle=False)
    labels = np.load(entry / "labels.npy", allow_pickle=False)
    if values.ndim != 2 or labels.shape != values.shape[:1]:
        raise ValueError("the shapes of its arrays do not match")
    return Features(values, labels)


def _plain(key: dict[str, Any]) -> Any:
    return json.loads(json.dumps(key))


def _name(key: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
