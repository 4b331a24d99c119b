"""Images for analyses, from files or a dataset, preprocessed as in the model's evaluation."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt8

from vit_jax.data.any_image import read_user_file
from vit_jax.data.decode import ImageData
from vit_jax.data.image_formats import is_image, no_images_error, unread_formats
from vit_jax.data.sources import Source, class_count
from vit_jax.errors import DataError
from vit_jax.storage.files import files_below

# Image -> u8[H, W, 3].
Transform = Callable[[ImageData], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Images:
    """Images of a model's size."""

    pixels: UInt8[np.ndarray, "M H W 3"]
    names: tuple[str, ...]  # file names, or ids of examples
    origin: str  # description of the source, for messages
    labels: Int[np.ndarray, " M"] | None = None  # None: the source has none
    num_classes: int = 0  # of the source; 0: it has no labels

    @property
    def normalized(self) -> Float[np.ndarray, "M H W 3"]:
        """The images in [-1, 1], the input range of the models."""
        return self.pixels.astype(np.float32) / np.float32(127.5) - 1

    def subset(self, count: int) -> "Images":
        """Returns `count` evenly spaced images, or all images if there are fewer."""
        kept = evenly_spaced(len(self.names), count)
        return dataclasses.replace(
            self,
            pixels=self.pixels[kept],
            names=tuple(self.names[i] for i in kept),
            labels=None if self.labels is None else self.labels[kept],
        )


def evenly_spaced(total: int, count: int) -> list[int]:
    """Returns `count` evenly spaced indices below `total`, or all indices if there are fewer.

    >>> evenly_spaced(10, 3), evenly_spaced(2, 3)
    ([0, 3, 6], [0, 1])
    """
    return list(range(total)) if count >= total else [i * total // count for i in range(count)]


def read_files(paths: Sequence[Path], count: int, transform: Transform) -> Images:
    """Reads images from files and from folders at any depth, whose images are sorted by name.

    The `count` images are evenly spaced over all that are found. The transform is such as
    `Preprocess.pixels`.
    """
    files: list[Path] = []
    unread = Counter[str]()
    for path in paths:
        found = files_below(path) if path.is_dir() else []
        files += [p for p in found if is_image(p.name)] if path.is_dir() else [path]
        unread += unread_formats(p.name for p in found)
    names = ", ".join(map(str, paths))
    if not files:
        raise no_images_error(f"no images in {names}", unread, "give another folder")
    kept = [files[i] for i in evenly_spaced(len(files), count)]
    expected = "an image file, or a folder of images"
    pixels = [_apply_transform(p, read_user_file(p, expected), transform) for p in kept]
    return Images(np.stack(pixels), tuple(map(str, kept)), names)


def read_source(
    source: Source, split: str, count: int, transform: Transform, num_classes: int | None = None
) -> Images:
    """Reads images and labels of a dataset, evenly spaced over the split.

    Without `num_classes`, there are as many as the dataset names.
    """
    origin = f"{source.name}, split {split}"
    if not len(source):
        raise DataError(f"no images in {origin}", "a split with examples", "give another split")
    examples = source.read(evenly_spaced(len(source), count))
    pixels = [_apply_transform(example.id, example.image, transform) for example in examples]
    labels = np.asarray([example.label for example in examples], np.int32)
    classes = class_count(source, num_classes)
    return Images(np.stack(pixels), tuple(e.id for e in examples), origin, labels, classes)


def _apply_transform(name: Path | str, image: ImageData, transform: Transform) -> np.ndarray:
    try:
        return transform(image)
    except DataError as error:
        raise DataError(f"{name}: {error.got}", error.expected, "leave it out") from None
