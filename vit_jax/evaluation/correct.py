"""Which examples of a split a model classifies correctly: kept to compare models on equal images.

`report/correct-SPLIT.json` of a run folder holds a bit per example, in the order of the split.
"""

import base64
import dataclasses
import hashlib
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.errors import FileError
from vit_jax.evaluation.predicted import PredictedExamples
from vit_jax.storage.files import read_json, write_json

_KEYS = {"examples": int, "labels": str, "skipped": list, "correct": str, "classes": str}


@dataclasses.dataclass(frozen=True)
class Correctness:
    """The predictions of one run for one split.

    Runs with equal `counted` and `labels` were evaluated on the same examples.
    """

    correct: np.ndarray  # bool[N]; False for examples that do not count
    counted: np.ndarray  # bool[N]; False for examples that were skipped
    labels: str  # hash of the true labels
    classes: np.ndarray  # i32[N]; the true labels, 0 for examples that do not count

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


def write_correct(path: Path, examples: PredictedExamples) -> None:
    """Writes which examples are right, unless no example counts."""
    counted = examples.mask
    if not counted.any():
        return
    size = int(counted.nonzero()[0][-1]) + 1  # The last batch is padded.
    counted, labels = counted[:size], examples.label[:size]
    content = {
        "examples": size,
        "labels": hashlib.sha256(labels[counted].astype("<i8").tobytes()).hexdigest(),
        "skipped": (~counted).nonzero()[0].tolist(),
        "correct": _text(np.packbits(examples.correct[:size] & counted)),
        "classes": _text(zlib.compress(np.where(counted, labels, 0).astype("<i4").tobytes())),
    }
    write_json(path, content)


def _text(content: Any) -> str:
    return base64.b64encode(content).decode()


def read_correct(path: Path) -> Correctness:
    """Reads a file that `write_correct` wrote."""
    content = read_json(path)
    try:
        if any(type(content.get(key)) is not kind for key, kind in _KEYS.items()):
            raise ValueError(f"keys other than {', '.join(_KEYS)}, or values of other types")
        size, skipped = content["examples"], content["skipped"]
        correct, counted = _read_bits(content["correct"], size), np.ones(size, bool)
        classes = _read_classes(content["classes"], size)
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


def _read_classes(text: str, size: int) -> np.ndarray:
    """Returns i32[size]; raises ValueError if the text does not hold `size` labels."""
    inflate = zlib.decompressobj()
    try:
        content = inflate.decompress(base64.b64decode(text, validate=True), 4 * size + 1)
    except zlib.error as error:
        raise ValueError(f"classes that cannot be read ({error})") from None
    if len(content) != 4 * size:
        raise ValueError(f"classes of other than {size} examples")
    return np.frombuffer(content, "<i4")


def _read_bits(text: str, size: int) -> np.ndarray:
    """Returns bool[size]; raises ValueError if the text does not hold `size` bits."""
    packed = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    if len(packed) != -(-size // 8):
        raise ValueError(f"{8 * len(packed)} bits for {size} examples")
    return np.unpackbits(packed, count=size).astype(bool)
