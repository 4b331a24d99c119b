"""Sources that Python code gives: what a registered function returns, and what `fit` is passed."""

import contextlib
import contextvars
import functools
import hashlib
import io
import itertools
import logging
import operator
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from vit_jax.config.data import DataConfig, SourceConfig
from vit_jax.data.any_image import image_data
from vit_jax.data.sources.base import Example, Source, hash_of
from vit_jax.data.sources.splits import read_split
from vit_jax.errors import DataError, PluginError, UserError
from vit_jax.plugins import described, place_of
from vit_jax.storage.paths import user_path

# Examples that the identity of a sequence is made of, spread over its length.
_SAMPLES = 32
# A larger sequence keeps its images in memory, which every reader process would copy.
_MOST_PICKLED_BYTES = 64_000_000

log = logging.getLogger(__name__)

_passed = contextvars.ContextVar[Mapping[str, Any] | None]("passed", default=None)


class SequenceSource(Source):
    """A split of sequences, whose [i] is (image, label); `sequences` has those of each split."""

    def __init__(
        self,
        sequences: Mapping[str, Any],
        split: str,
        name: str,
        class_names: Sequence[str],
        *,
        is_passed: bool = False,
    ):
        sizes = {key: [len(sequence)] for key, sequence in sequences.items()}
        self.spans = read_split(split, sizes, name)
        self.name, self.class_names = f"{name} {split}", tuple(map(str, class_names))
        self._sequences, self._is_passed = sequences, is_passed
        self._labels = {s.split: _given_labels(sequences[s.split], self.name) for s in self.spans}
        self._ends = np.cumsum([span.stop - span.start for span in self.spans])
        self.quick_labels = all(labels is not None for labels in self._labels.values())
        identities = {s.split: _identity(sequences[s.split], name) for s in self.spans}
        self.fingerprint = hash_of(self.spans, identities)

    @functools.cached_property
    def in_memory(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        # Reader processes run a script again that has no `if __name__ == "__main__"`.
        return self._is_passed or not self.can_be_pickled

    @functools.cached_property
    def can_be_pickled(self) -> bool:
        """Whether reader processes can have copies of its sequences."""
        return all(_can_be_pickled(self._sequences[span.split]) for span in self.spans)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Example:
        part = int(np.searchsorted(self._ends, index, side="right"))
        span = self.spans[part]
        place = index - int(self._ends[part]) + span.stop
        found = _pair(self._sequences[span.split], place, f"example {place} of {self.name}")
        return Example(*found, f"{span.split}[{place}]")

    def labels(self) -> np.ndarray:
        parts = [(self._labels[span.split], slice(span.start, span.stop)) for span in self.spans]
        known = [labels[part] for labels, part in parts if labels is not None]
        return np.concatenate(known) if self.quick_labels else super().labels()


def _pair(sequence: Any, place: int, what: str) -> tuple[Any, int]:
    """Returns the stored image and the label of an example."""
    try:
        pair = sequence[place]
    except UserError:
        raise
    except Exception as error:
        where = f"{what} ({source})" if (source := place_of(error)) else what
        raise DataError(f"{where}: {described(error)}", "an example", "repair its [i]") from error
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(f"{what} is {type(pair).__name__}", "a pair (image, label)", "return one")
    image, label = pair
    try:
        label = operator.index(label.item() if hasattr(label, "item") else label)
    except (TypeError, ValueError):
        raise DataError(
            f"{what} has the label {label!r}", "the number of its class", "return an int"
        ) from None
    try:
        return image if isinstance(image, bytes) else image_data(image), label
    except DataError as error:
        kinds = "a PIL image, pixels u8[H, W, 3], the bytes or the path of an image file"
        raise DataError(f"{what}: {error.got}", kinds, error.fix) from None


def _given_labels(sequence: Any, name: str) -> np.ndarray | None:
    """Returns the attribute `labels` of a sequence, after checking it; None: there is none."""
    given = getattr(sequence, "labels", None)
    if given is None or callable(given):
        return None
    labels = np.asarray(given)
    if labels.shape != (len(sequence),) or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"labels of {name} are {labels.dtype}{list(labels.shape)}",
            f"int[{len(sequence)}], the number of the class of each example",
            "correct the attribute, or leave it out",
        )
    return labels


def _identity(sequence: Any, name: str) -> str:
    """Returns a digest of a sequence: of all bytes of arrays, else of its length and a sample."""
    if isinstance(sequence, ArrayPairs):
        return sequence.identity
    found = hashlib.sha256(str(len(sequence)).encode())
    for place in np.unique(np.linspace(0, len(sequence) - 1, _SAMPLES).astype(int)).tolist():
        image, label = _pair(sequence, place, f"example {place} of {name}")
        given = _given_labels(sequence, name)
        if given is not None and given[place] != label:
            raise DataError(
                f"example {place} of {name} has the label {label}, and labels[{place}] is"
                f" {given[place]}",
                "the same label",
                "correct one of the two",
            )
        shape = image.shape if isinstance(image, np.ndarray) else len(image)
        content = image if isinstance(image, bytes) else np.ascontiguousarray(image).tobytes()
        found.update(f"{place} {label} {shape}\0".encode() + content)
    return found.hexdigest()


class _Counter(io.RawIOBase):
    """A file that counts the bytes written to it, and refuses too many (OverflowError)."""

    count = 0

    def write(self, content: Any) -> int:
        self.count += memoryview(content).nbytes
        if self.count > _MOST_PICKLED_BYTES:
            raise OverflowError
        return memoryview(content).nbytes


def _is_sequence(given: Any) -> bool:
    has_both = hasattr(given, "__len__") and hasattr(given, "__getitem__")
    return has_both and not isinstance(given, Mapping | str | bytes)


def _can_be_pickled(sequence: Any) -> bool:
    """Whether reader processes can have copies of a sequence."""
    import cloudpickle  # Imports IPython where it is installed.

    try:
        cloudpickle.Pickler(_Counter()).dump(sequence)  # pyright: ignore[reportArgumentType]
    except Exception:
        return False
    return True


def open_own_source(section: SourceConfig, data: DataConfig, split: str) -> SequenceSource:
    """Opens a split of a registered source.

    Raises:
        DataError: it is not a sequence of examples.
    """
    names = dict.fromkeys(part.partition("[")[0].strip() for part in split.split("+"))
    folder = None if data.data_dir is None else str(user_path(data.data_dir))
    sequences = {name: _called(section, folder, name) for name in names}
    for name, sequence in sequences.items():
        if not _is_sequence(sequence):
            raise section.own.error(
                f"returned {type(sequence).__name__} for the split {name!r}",
                "a sequence of examples: len(it), and it[i], a pair (image, label)",
                "return one, such as a list",
            )
    return _opened(sequences, split, data, _class_names(sequences, data.name))


def _called(section: Any, folder: str | None, split: str) -> Any:
    """Calls a source for a split."""
    try:
        return section.call(folder, split)
    except PluginError as error:
        if isinstance(error.__cause__, KeyError) and error.__cause__.args == (split,):
            raise section.own.error(
                f"has no split {split!r}", "a split that it has", "correct the split of the config"
            ) from error
        raise


def _class_names(sequences: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """Returns the class names that sequences have, in the order of the labels; None: none has."""
    found = {}
    for split, sequence in sequences.items():
        given = getattr(sequence, "class_names", None)
        if given is None or not len(given):
            continue
        if isinstance(given, str | Mapping | Set):
            raise DataError(
                f"class_names of {name} is {type(given).__name__}",
                "a list of names, in the order of the labels",
                "make it one",
            )
        found[split] = tuple(map(str, given))
    if len({*found.values()}) > 1:
        raise DataError(
            f"the splits {' and '.join(found)} of {name} have different class_names",
            "the same names in the same order",
            "give all splits the same",
        )
    return next(iter(found.values()), None)


def open_passed_source(data: DataConfig, split: str) -> SequenceSource:
    """Opens a split of the examples that `passing` holds."""
    sequences = _passed.get()
    if not sequences:
        raise DataError(
            "data.source is passed, and no data are passed",
            "the data that vit_jax.fit was given",
            "call vit_jax.fit again with the same data, or load the model with vit_jax.load_run",
        )
    pairs = [s for s in sequences.values() if isinstance(s, ArrayPairs)]
    classes = 1 + max((int(pair.labels.max()) for pair in pairs if len(pair)), default=-1)
    names = _class_names(sequences, data.name) or tuple(map(str, range(classes))) or None
    return _opened(sequences, split, data, names)


def _opened(
    sequences: Mapping[str, Any], split: str, data: DataConfig, class_names: Sequence[str] | None
) -> SequenceSource:
    if class_names is None:
        if data.num_classes is None:
            raise DataError(
                f"{data.name} has no class_names, and data.num_classes is not set",
                "one of the two",
                "set data.num_classes, or give the sequence an attribute class_names",
            )
        class_names = tuple(map(str, range(data.num_classes)))
    is_passed = data.source == "passed"
    source = SequenceSource(sequences, split, data.name, class_names, is_passed=is_passed)
    if data.num_workers and not source.can_be_pickled:
        raise DataError(
            f"data.num_workers is {data.num_workers}, and the examples of {source.name} cannot be"
            f" pickled in {_MOST_PICKLED_BYTES / 1e6:.0f} MB",
            "a sequence that reads an image when it is asked for it",
            "leave data.num_workers out, so that threads read the examples",
        )
    return source


class ArrayPairs:
    """Images and their labels as a sequence of pairs.

    Args:
        images: u8[N, H, W, 3], u8[N, H, W] (gray), or a sequence of images.
        labels: i[N].

    Raises:
        DataError: other types or lengths.
    """

    def __init__(self, images: Any, labels: Any, what: str):
        try:
            self.labels = np.asarray(labels)
        except ValueError:
            raise DataError(
                f"the labels of {what} are no array",
                "(images, labels) with int[N]",
                "pass a list, not a tuple, of pairs (image, label)",
            ) from None
        if self.labels.ndim != 1 or not np.issubdtype(self.labels.dtype, np.integer):
            raise DataError(
                f"the labels of {what} are {self.labels.dtype}{list(self.labels.shape)}",
                "the number of a class for each image, int[N]",
                "pass labels.astype(int), or labels.argmax(1) if they are one-hot",
            )
        self.images = np.asarray(images) if hasattr(images, "dtype") else images
        if len(self.images) != len(self.labels):
            raise DataError(
                f"{what} has {len(self.images)} images and {len(self.labels)} labels",
                "a label for each image",
                "pass as many",
            )
        if not isinstance(self.images, np.ndarray):
            return
        shape = self.images.shape
        is_pixels = len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3))
        if self.images.dtype != np.uint8 or not is_pixels:
            channels_first = len(shape) == 4 and shape[1] in (1, 3)
            raise DataError(
                f"the images of {what} are {self.images.dtype}{list(shape)}",
                "uint8[N, H, W, 3] of 0 to 255",
                "put the channels last, as with images.transpose(0, 2, 3, 1)"
                if channels_first and not is_pixels
                else "convert them, e.g. with (images * 255).round().astype('uint8') if they are"
                " between 0 and 1",
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.images[index], int(self.labels[index])

    @functools.cached_property
    def identity(self) -> str:
        """A digest of all bytes of the arrays; of images that are no array, of a sample."""
        found = hashlib.sha256(np.ascontiguousarray(self.labels, np.int64).tobytes())
        if isinstance(self.images, np.ndarray):
            found.update(f"{self.images.shape}".encode())
            for image in self.images:
                found.update(np.ascontiguousarray(image).data)
        else:
            found.update(_identity([*zip(self.images, self.labels, strict=True)], "data").encode())
        return found.hexdigest()


def _share_images(one: Any, other: Any) -> bool:
    """Whether two splits are the same object, or have arrays with common images."""
    arrays = [split.images for split in (one, other) if isinstance(split, ArrayPairs)]
    if len(arrays) == 2 and all(isinstance(array, np.ndarray) for array in arrays):
        return np.shares_memory(arrays[0], arrays[1])
    return one is other


@contextlib.contextmanager
def passing(data: Mapping[str, Any]) -> Iterator[None]:
    """Lets `data.source=passed` read these examples: split -> (images, labels), or a sequence.

    Raises:
        DataError: something else.
    """
    made = {}
    for split, given in data.items():
        if not isinstance(split, str) or not re.fullmatch(r"[\w-]+", split) or split == "all":
            raise DataError(
                f"data has the split {split!r}",
                "a name of letters, digits, _ and -, other than all",
                "rename it",
            )
        if isinstance(given, tuple) and len(given) == 2:
            given = ArrayPairs(*given, f"data[{split!r}]")
        elif not _is_sequence(given):
            raise DataError(
                f"data[{split!r}] is {type(given).__name__}",
                "(images, labels), or a sequence whose [i] is a pair (image, label)",
                "pass one of these",
            )
        if not len(given):
            raise DataError(f"data[{split!r}] is empty", "at least one example", "leave it out")
        made[split] = given
    for one, other in itertools.combinations(made, 2):
        if _share_images(made[one], made[other]):
            log.warning(
                "data[%r] and data[%r] share images in memory; if one is trained on, a score on the"
                " other is too good",
                *(one, other),
            )
    token = _passed.set(made)
    try:
        yield
    finally:
        _passed.reset(token)
