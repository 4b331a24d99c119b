"""Which examples of a split a model classifies correctly: kept to compare models on equal images.

`report/correct-SPLIT.json` of a run folder holds a bit per example, in the order of the split.
"""

import base64
import binascii
import dataclasses
import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.errors import FileError
from vit_jax.storage.files import read_json, write_json

_KEYS = {"examples": int, "labels": str, "skipped": list, "correct": str}


@dataclasses.dataclass(frozen=True)
class Correctness:
    """The predictions of one run for one split.

    Runs with equal `counted` and `labels` were evaluated on the same examples.
    """

    correct: np.ndarray  # bool[N]; False for examples that do not count
    counted: np.ndarray  # bool[N]; False for examples that were skipped
    labels: str  # hash of the true labels
    # i32[N]; the true labels, 0 for examples that do not count; None: the file has none.
    classes: np.ndarray | None = None

    @property
    def accuracy(self) -> float:
        return float(self.correct.sum() / self.counted.sum())

    @property
    def test_set(self) -> str:
        """Name of the set of examples: equal for runs whose predictions can be paired."""
        return hashlib.sha256(
            np.packbits(self.counted).tobytes() + self.labels.encode()
        ).hexdigest()


def correct_file(folder: Path, split: str) -> Path:
    """Returns the file of a split in a report folder."""
    return folder / f"correct-{split}.json"


class CorrectExamples:
    """Collects the outputs "correct" bool[B], "label" i32[B] and "mask" bool[B] of batches."""

    def __init__(self) -> None:
        self._correct: list[np.ndarray] = []
        self._counted: list[np.ndarray] = []
        self._classes: list[np.ndarray] = []

    def add(self, outputs: Mapping[str, Any]) -> None:
        """Adds a batch, whose rows are in the order of the split."""
        counted = outputs["mask"].astype(bool)
        self._correct.append(outputs["correct"] & counted)
        self._counted.append(counted)
        self._classes.append(np.where(counted, outputs["label"], 0))

    def write(self, path: Path) -> None:
        """Writes the file, unless no example counts."""
        if not any(counted.any() for counted in self._counted):
            return
        counted, correct = np.concatenate(self._counted), np.concatenate(self._correct)
        classes = np.concatenate(self._classes)
        size = int(counted.nonzero()[0][-1]) + 1  # The last batch is padded.
        content = {
            "examples": size,
            "labels": hashlib.sha256(classes[counted].astype("<i8").tobytes()).hexdigest(),
            "skipped": (~counted[:size]).nonzero()[0].tolist(),
            "correct": base64.b64encode(np.packbits(correct[:size]).tobytes()).decode(),
            "classes": base64.b64encode(
                zlib.compress(classes[:size].astype("<i4").tobytes())
            ).decode(),
        }
        write_json(path, content)


def read_correct(path: Path) -> Correctness:
    """Reads a file that `CorrectExamples` wrote."""
    content = read_json(path)
    try:
        if any(type(content.get(key)) is not kind for key, kind in _KEYS.items()):
            raise ValueError(f"keys other than {', '.join(_KEYS)}, or values of other types")
        size, skipped = content["examples"], content["skipped"]
        correct, counted = _read_bits(content["correct"], size), np.ones(size, bool)
        classes = _read_classes(content["classes"], size) if "classes" in content else None
        if not all(type(i) is int and 0 <= i < size for i in skipped):
            raise ValueError(f"skipped examples that are not 0 to {size - 1}")
        counted[skipped] = False
        if not counted.any() or (correct & ~counted).any():
            raise ValueError("skipped examples that are right, or no example that counts")
    except ValueError as error:
        raise FileError(
            f"{path}: {error}",
            "one bit for each example, as `train` and `eval` write it",
            "run `eval` on the run folder to write it again",
        ) from None
    return Correctness(correct, counted, content["labels"], classes)


def _read_classes(text: Any, size: int) -> np.ndarray:
    """Returns i32[size]; raises ValueError if the text does not hold `size` labels."""
    if not isinstance(text, str):
        raise ValueError("classes that are no text")
    inflate = zlib.decompressobj()
    try:
        content = inflate.decompress(_decode(text), 4 * size + 1)
    except zlib.error as error:
        raise ValueError(f"classes that cannot be read ({error})") from None
    if len(content) != 4 * size:
        raise ValueError(f"classes of other than {size} examples")
    return np.frombuffer(content, "<i4")


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64 ({error})") from None


def _read_bits(text: str, size: int) -> np.ndarray:
    """Returns bool[size]; raises ValueError if the text does not hold `size` bits."""
    packed = np.frombuffer(_decode(text), np.uint8)
    if len(packed) != -(-size // 8):
        raise ValueError(f"{8 * len(packed)} bits for {size} examples")
    return np.unpackbits(packed, count=size).astype(bool)
