"""Which examples of a split a model classifies correctly: kept to compare models on equal images.

`report/correct-SPLIT.json` of a run folder holds a bit per example, in the order of the split.
"""

import base64
import binascii
import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

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
        self._labels = hashlib.sha256()

    def add(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Adds a batch, whose rows are in the order of the split."""
        counted = outputs["mask"].astype(bool)
        self._correct.append(outputs["correct"] & counted)
        self._counted.append(counted)
        self._labels.update(outputs["label"][counted].astype("<i8").tobytes())

    def write(self, path: Path) -> None:
        """Writes the file, unless no example counts."""
        if not any(counted.any() for counted in self._counted):
            return
        counted, correct = np.concatenate(self._counted), np.concatenate(self._correct)
        size = int(counted.nonzero()[0][-1]) + 1  # The last batch is padded.
        content = {
            "examples": size,
            "labels": self._labels.hexdigest(),
            "skipped": (~counted[:size]).nonzero()[0].tolist(),
            "correct": base64.b64encode(np.packbits(correct[:size]).tobytes()).decode(),
        }
        write_json(path, content)


def read_correct(path: Path) -> Correctness:
    """Reads a file that `CorrectExamples` wrote."""
    content = read_json(path)
    try:
        if any(type(content.get(key)) is not kind for key, kind in _KEYS.items()):
            raise ValueError(f"keys other than {', '.join(_KEYS)}, or values of other types")
        size, skipped = content["examples"], content["skipped"]
        correct, counted = _decode(content["correct"], size), np.ones(size, bool)
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
    return Correctness(correct, counted, content["labels"])


def _decode(text: str, size: int) -> np.ndarray:
    """Returns bool[size]; raises ValueError if the text does not hold `size` bits."""
    try:
        packed = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    except binascii.Error as error:
        raise ValueError(f"not base64 ({error})") from None
    if len(packed) != -(-size // 8):
        raise ValueError(f"{8 * len(packed)} bits for {size} examples")
    return np.unpackbits(packed, count=size).astype(bool)
