"""Extracted features on disk, under a key of everything that they depend on.

An entry is a folder `HASH/` with `features.npy`, `labels.npy` and `about.json`, which holds the key
in full and the hashes of both files. It appears under its name only when complete. One whose key or
hashes do not match is not used, and replaced.
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
        folder: made when missing; None: nothing is kept.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder

    def load(self, key: dict[str, Any]) -> Features | None:
        """Returns what was stored under a key; None where nothing, or nothing whole, is there.

        Args:
            key: JSON; all that the features depend on.
        """
        if self._folder is None:
            return None
        entry = self._folder / _name(key)
        if not entry.is_dir():
            return None
        try:
            about = json.loads((entry / "about.json").read_text())
            if about["key"] != _plain(key):
                raise ValueError("it is of another key")
            for name in _FILES:
                if _hash(entry / name) != about["sha256"][name]:
                    raise ValueError(f"{name} is not as it was written")
            values = np.load(entry / "features.npy", mmap_mode="r", allow_pickle=False)
            labels = np.load(entry / "labels.npy", allow_pickle=False)
            if values.ndim != 2 or labels.shape != values.shape[:1]:
                raise ValueError("its sizes do not fit")
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            log.warning("cached features in %s cannot be used (%s): made again", entry, error)
            return None
        return Features(values, labels)

    def store(self, key: dict[str, Any], features: Features) -> None:
        """Keeps features under a key; a disk that cannot be written to costs the next run time."""
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
            log.warning("features are not kept in %s: %s", self._folder, error.strerror or error)
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
