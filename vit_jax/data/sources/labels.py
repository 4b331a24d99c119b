"""Reads all labels of a source with several threads and caches them between runs."""

import io
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from vit_jax.data.progress import track
from vit_jax.memory import check_fits
from vit_jax.storage.files import write_atomically
from vit_jax.storage.paths import cache_dir

log = logging.getLogger(__name__)

# Smaller datasets are read in a few seconds and not cached.
_MIN_CACHED = 50_000
_CHUNK = 2048
_THREADS = 8
_LABEL_BYTES = 4
_FIX = "check the number of examples in the dataset's metadata"


def cached_labels(
    key: str, name: str, count: int, read: Callable[[Sequence[int]], Sequence[int]]
) -> np.ndarray:
    """Returns the labels of examples 0 to count - 1, in the smallest integer type.

    Reading them means reading the whole dataset, from several threads. The result is cached in
    `$XDG_CACHE_HOME/vit_jax/labels` (default ~/.cache), one file per dataset, so this happens once
    per machine. The key names the file, so it must change when the labels change.
    """
    path = cache_dir() / "labels" / f"{key}.npy"
    if count >= _MIN_CACHED and path.is_file():
        try:
            found = np.load(path, allow_pickle=False)
            if len(found) == count:
                return found
        except (OSError, ValueError):
            log.warning("%s is damaged: reading the labels again", path)
    labels = _read_all(name, count, read)
    if count >= _MIN_CACHED:
        _save_cache(path, labels)
    return labels


def _read_all(name: str, count: int, read: Callable[[Sequence[int]], Sequence[int]]) -> np.ndarray:
    check_fits(count * _LABEL_BYTES, f"the labels of {count:,} examples of {name}", _FIX)
    labels = np.zeros(count, np.int32)
    chunks = [range(i, min(i + _CHUNK, count)) for i in range(0, count, _CHUNK)]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(read, chunks)
        shown = track(zip(chunks, found, strict=True), f"labels of {name}", len(chunks))
        for chunk, values in shown:
            labels[chunk.start : chunk.stop] = values
    if labels.min(initial=0) < 0:
        return labels
    return labels.astype(np.min_scalar_type(labels.max(initial=0)))


def _save_cache(path: Path, labels: np.ndarray) -> None:
    content = io.BytesIO()
    np.save(content, labels)
    try:
        write_atomically(path, content.getvalue())
    except OSError as error:
        log.warning("cannot cache labels in %s: %s", path.parent, error.strerror)
