"""Caches extracted features on disk, by a key of everything that they depend on.

An entry is a folder `HASH/` with `features.npy`, `labels.npy` and `about.json`, which holds the
complete key and the hashes of both files. An entry gets its name only once it is complete. If its
key or hashes do not match, it is replaced.
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

log = logging.getLogger(__name__)

_FILES = ("features.npy", "labels.npy")
_CHUNK = 1 << 24


class FeatureCache:
    """A folder of extracted features.

    Args:
        folder: created if missing; None: nothing is cached.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder

    def load(self, key: dict[str, Any]) -> Features | None:
        """Returns the features stored under a key; None if there are none or they are damaged.

        Args:
            key: everything the features depend on, as JSON values.
        """
        if self._folder is None:
            return None
        entry = self._folder / _name(key)
        if not entry.is_dir():
            return None
        try:
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
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            log.warning("cannot use the cached features in %s (%s): extracting again", entry, error)
            return None
        return Features(values, labels)

    def store(self, key: dict[str, Any], features: Features) -> None:
        """Stores features under a key. If the disk cannot be written to, it only logs a warning."""
        if self._folder is None:
            return
        temporary = self._folder / f".{uuid.uuid4().hex}"
        entry = self._folder / _name(key)
        try:
            temporary.mkdir(parents=True)
            np.save(temporary / "features.npy", features.values)
            np.save(temporary / "labels.npy", features.labels)
            hashes = {name: _hash(temporary / name) for name in _FILES}
            about = {"key": key, "sha256": hashes}
            (temporary / "about.json").write_text(json.dumps(about, indent=2) + "\n")
            if entry.is_dir():
                entry.rename(self._folder / f"{temporary.name}.old")
            temporary.rename(entry)
        except OSError as error:
            log.warning("cannot cache features in %s: %s", self._folder, error.strerror or error)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(self._folder / f"{temporary.name}.old", ignore_errors=True)


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
