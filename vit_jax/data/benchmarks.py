"""ImageNet's other test sets, as presets of an evaluation split.

| preset | dataset of TFDS | classes | right if |
| --- | --- | --- | --- |
| imagenet | imagenet2012, validation | 1000 | it is the label (arXiv:1409.0575) |
| imagenet_real | imagenet2012_real | 1000 | it is one of the labels (arXiv:2006.07159) |
| imagenet_v2 | imagenet_v2/matched-frequency | 1000 | it is the label (arXiv:1902.10811) |
| imagenet_a | imagenet_a | 200 | it is the label (arXiv:1907.07174) |
| imagenet_r | imagenet_r | 200 | it is the label (arXiv:2006.16241) |
| imagenet_sketch | imagenet_sketch | 1000 | it is the label (arXiv:1905.13549) |
| objectnet | none: a folder | 1000 | it is one of the classes that the object's class stands for |

A model of ImageNet's 1000 classes is evaluated on all of them. For imagenet_a and imagenet_r it
chooses among their 200 classes, as the authors do. Images without a label do not count: 3,163 of
ReaL's 50,000, and ObjectNet's images of the 200 of its 313 classes that ImageNet does not have. A
slice may follow: "imagenet_real[:10%]".

`imagenet_classes.csv` lists the 1000 classes in label order, and which of them are in imagenet_a
and imagenet_r. Source: the lists in `eval.py` of github.com/hendrycks/natural-adv-examples
(07770705) and github.com/hendrycks/imagenet-r (3131cace); the order is that of TFDS.
"""

import csv
import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool
from numpy.typing import ArrayLike

from vit_jax.config.data import DataConfig
from vit_jax.data.arrays import ArraySpec, Preprocessing, labelled_image_arrays
from vit_jax.data.decode import decode
from vit_jax.data.sources.base import Example, Source
from vit_jax.data.sources.folder import FolderSource
from vit_jax.data.sources.listing import list_images
from vit_jax.data.sources.open import data_cache
from vit_jax.data.sources.subset import SubsetSource
from vit_jax.data.sources.tfds import TfdsSource, default_data_dir
from vit_jax.data.transforms import Transform
from vit_jax.errors import DataError, ModelError, UserError
from vit_jax.storage.files import read_json
from vit_jax.storage.paths import user_path

NUM_CLASSES = 1000
_CLASSES = Path(__file__).with_name("imagenet_classes.csv")
_OBJECTNET_FOLDERS = ("objectnet-1.0", "objectnet")
# Pixels to cut off on each side, because ObjectNet's images have a red border.
_OBJECTNET_BORDER = 2


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A test set for models of ImageNet's 1000 classes."""

    title: str  # Name in papers.
    dataset: str | None = None  # TFDS name; None: ObjectNet's folder.
    split: str = "test"
    label: str = "label"  # Feature with the label.
    labels: str | None = None  # Feature with several labels; None: there is one label.
    among: str | None = None  # Column of `imagenet_classes.csv`; None: all classes.

    @property
    def num_classes(self) -> int | None:
        """Number of classes to choose among; None: several of them may be right."""
        if self.dataset is None or self.labels is not None:
            return None
        return NUM_CLASSES if self.among is None else int(imagenet_classes()[self.among].sum())


BENCHMARKS = {
    "imagenet": Benchmark("ImageNet", "imagenet2012", "validation"),
    "imagenet_real": Benchmark(
        "ImageNet ReaL", "imagenet2012_real", "validation", "original_label", "real_label"
    ),
    "imagenet_v2": Benchmark("ImageNet V2", "imagenet_v2/matched-frequency"),
    "imagenet_a": Benchmark("ImageNet-A", "imagenet_a", among="imagenet_a"),
    "imagenet_r": Benchmark("ImageNet-R", "imagenet_r", among="imagenet_r"),
    "imagenet_sketch": Benchmark("ImageNet-Sketch", "imagenet_sketch"),
    "objectnet": Benchmark("ObjectNet", split="train"),
}


@dataclasses.dataclass(frozen=True)
class OpenBenchmark:
    """A test set whose files were found."""

    source: Source
    right: Callable[[Example], Sequence[int]]  # Empty: the example does not count.
    among: Bool[np.ndarray, " C"]  # Classes to choose among.
    border: int = 0  # Pixels to cut off on each side of an image.


def find_benchmark(split: str) -> tuple[str, str] | None:
    """Returns the preset of a split string and the slice after it; None: it is no preset.

    >>> find_benchmark("imagenet_v2[:10%]"), find_benchmark("test")
    (('imagenet_v2', '[:10%]'), None)
    """
    match = re.fullmatch(r"(\w+)(\[[^\[\]]*\])?", split.strip())
    return (match[1], match[2] or "") if match and match[1] in BENCHMARKS else None


def open_benchmark(name: str, data: DataConfig, part: str = "") -> OpenBenchmark:
    """Opens the test set of a key of BENCHMARKS; `part` is a slice, such as "[:10%]"."""
    chosen = BENCHMARKS[name]
    if chosen.dataset is None:
        return _open_objectnet(data, part)
    features = ("label",) if chosen.labels is None else ("label", chosen.labels)
    source = TfdsSource(
        chosen.dataset,
        chosen.split + part,
        data.data_dir,
        label_key=chosen.label,
        features=features,
        cache=data_cache(data),
    )
    if len(source.class_names) != NUM_CLASSES:
        raise DataError(
            f"{source.name} has {len(source.class_names)} classes",
            f"ImageNet's {NUM_CLASSES}",
            f"prepare it with TFDS: tfds build {chosen.dataset} --file_format=array_record",
        )
    column = chosen.among
    among = np.ones(NUM_CLASSES, bool) if column is None else imagenet_classes()[column]
    several = chosen.labels

    def right(example: Example) -> Sequence[int]:
        if several is None:
            return [example.label]
        return [int(label) for label in np.asarray(example.features[several]).reshape(-1)]

    return OpenBenchmark(source, right, among)


@functools.cache
def imagenet_classes() -> dict[str, np.ndarray]:
    """Returns the columns of the list of classes: "wnid", and bool[1000] for each subset."""
    with _CLASSES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {name: np.array([row[name] == "1" for row in rows]) for name in rows[0]}
    return found | {"wnid": np.array([row["wnid"] for row in rows])}


def benchmark_images(opened: OpenBenchmark, transform: Transform, image_size: int) -> Preprocessing:
    """Returns the preprocessing of a test set's images.

    Besides `image` and `label`, a row has `right` bool[C], the classes that are right, and `among`
    bool[C], those to choose among.
    """
    classes = ArraySpec((NUM_CLASSES,), np.bool_)
    arrays = {**labelled_image_arrays(image_size), "right": classes, "among": classes}

    def make_row(example: Example, rng: np.random.Generator) -> dict[str, ArrayLike]:
        labels = np.asarray(opened.right(example), np.int64)
        if ((labels < 0) | (labels >= NUM_CLASSES)).any():
            raise DataError(
                f"labels {labels.tolist()}", f"0 to {NUM_CLASSES - 1}", "repair the dataset"
            )
        right = np.zeros(NUM_CLASSES, bool)
        right[labels] = True
        image = example.image
        if opened.border:
            cut = slice(opened.border, -opened.border)
            image = np.asarray(decode(image))[cut, cut]
        label = int(labels[0]) if len(labels) else 0
        return {
            "image": transform(image, rng),
            "label": label,
            "right": right,
            "among": opened.among,
        }

    return Preprocessing(arrays, make_row)


def check_classes(num_classes: int, name: str) -> None:
    """Raises ModelError unless a model has ImageNet's number of classes."""
    if num_classes != NUM_CLASSES:
        raise ModelError(
            f"{name} for a model of {num_classes} classes",
            f"ImageNet's {NUM_CLASSES} classes",
            "use weights fine-tuned on ImageNet: train --config=configs/transfer.py:imagenet2012",
        )


def _open_objectnet(data: DataConfig, part: str) -> OpenBenchmark:
    """Opens the folder of ObjectNet: images/CLASS/*.png and mappings/*."""
    base = user_path(data.data_dir) if data.data_dir else default_data_dir()
    folder = next((base / n for n in _OBJECTNET_FOLDERS if (base / n).is_dir()), None)
    if folder is None:
        raise DataError(
            f"no folder {base / _OBJECTNET_FOLDERS[0]}",
            "ObjectNet, with the folders images and mappings",
            "download it from objectnet.dev and unpack it there",
        )
    mapping = objectnet_classes(folder / "mappings")
    listing = list_images(folder / "images", data_cache(data))
    whole = FolderSource(listing, f"train{part}", "objectnet")
    of_label = [mapping.get(name, ()) for name in whole.class_names]
    kept = np.flatnonzero([bool(of_label[label]) for label in whole.labels()])
    if not len(kept):
        raise DataError(
            f"{folder / 'images'} has no class of ImageNet",
            "the classes of mappings/objectnet_to_imagenet_1k.json",
            "unpack all files of ObjectNet",
        )
    source = SubsetSource(whole, kept, "objectnet", whole.fingerprint)
    everything = np.ones(NUM_CLASSES, bool)
    return OpenBenchmark(
        source, lambda example: of_label[example.label], everything, _OBJECTNET_BORDER
    )


def objectnet_classes(mappings: Path) -> dict[str, tuple[int, ...]]:
    """Returns the ImageNet classes of each folder of ObjectNet's images, from its own mappings.

    There are four files: `folder_to_objectnet_label.json`; `objectnet_to_imagenet_1k.json`, whose
    values are names of ImageNet's classes joined by "; "; `imagenet_to_label_2012_v2`, with such a
    name in each line; and `pytorch_to_imagenet_2012_id.json`: class index -> line, from 0.
    """
    try:
        objects = read_json(mappings / "folder_to_objectnet_label.json")
        names = read_json(mappings / "objectnet_to_imagenet_1k.json")
        lines = read_json(mappings / "pytorch_to_imagenet_2012_id.json")
        labels = (mappings / "imagenet_to_label_2012_v2").read_text(encoding="utf-8").splitlines()
        index = {labels[int(line)].strip(): int(number) for number, line in lines.items()}
        folders = {named: folder for folder, named in objects.items()}
        return {
            folders[named]: tuple(index[label.strip()] for label in joined.split("; "))
            for named, joined in names.items()
        }
    except UserError:
        raise
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise DataError(
            f"the class map in {mappings} cannot be read ({type(error).__name__}: {error})",
            "the four files of ObjectNet's folder 'mappings'",
            "unpack all files of ObjectNet",
        ) from None
