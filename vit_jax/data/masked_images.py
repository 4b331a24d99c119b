"""Reads images with a mask of classes: a TFDS dataset, or a folder.

A folder has the layout FOLDER/images/SPLIT/NAME.jpg and FOLDER/masks/SPLIT/NAME.png (`annotations`
instead of `masks` as in ADE20K), and may have classes.txt with the name of a class in each line.
"""

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from vit_jax.data.decode import EncodedImage
from vit_jax.data.preprocess import Preprocess, read_user_file
from vit_jax.data.sources.listing import IMAGE_SUFFIXES
from vit_jax.data.sources.tfds import TfdsSource, open_builder
from vit_jax.errors import DataError
from vit_jax.memory import check_fits
from vit_jax.storage.paths import user_path

_MASK_FOLDERS = ("masks", "annotations")
_MASK_KEYS = ("mask", "segmentation_mask")


@dataclasses.dataclass(frozen=True)
class MaskedImages:
    """Images and masks of a model's size.

    Attributes:
        pixels: u8[M, H, W, 3].
        masks: u8[M, H, W], classes, or the value that is ignored.
        name: of the dataset and split.
        class_names: in the order of the classes; empty: not known.
    """

    pixels: UInt8[np.ndarray, "M H W 3"]
    masks: UInt8[np.ndarray, "M H W"]
    name: str
    class_names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class MaskSource:
    """Where images with masks are.

    Attributes:
        name: TFDS name, or a folder.
        data_dir: folder of TFDS datasets; None: the default of TFDS.
        mask_key: feature with the mask; None: "mask", "segmentation_mask", or the only other image.
    """

    name: str
    data_dir: str | None = None
    mask_key: str | None = None

    def read(self, split: str, size: tuple[int, int], limit: int | None = None) -> MaskedImages:
        """Reads a split. Images and masks are squashed to a size; masks keep their values.

        Args:
            split: TFDS split string, or the folder of a split.
            size: (height, width) in pixels.
            limit: read at most so many, evenly spaced; None: all.

        Raises:
            DataError: no such data, an image without a mask, or a mask of another size.
        """
        folder = user_path(self.name)
        if folder.is_dir():
            names, read, classes = _open_folder(folder, split)
        else:
            names, read, classes = self._open_tfds(split)
        count = len(names) if limit is None else min(limit, len(names))
        kept = [i * len(names) // count for i in range(count)]
        height, width = size
        check_fits(4 * count * height * width, f"{count:,} images with masks", "read fewer images")
        preprocess = Preprocess(size, "resize")
        pairs = [_pair(read(i), names[i], preprocess) for i in kept]
        pixels, masks = (np.stack(part) for part in zip(*pairs, strict=True))
        return MaskedImages(pixels, masks, f"{self.name} {split}", classes)

    def _open_tfds(self, split: str) -> tuple[list[str], Any, tuple[str, ...]]:
        import tensorflow_datasets as tfds

        features = dict(open_builder(self.name, self.data_dir).info.features or {})
        images = [n for n, f in features.items() if isinstance(f, tfds.features.Image)]
        others = [n for n in images if n != "image"]
        found = [n for n in ((self.mask_key,) if self.mask_key else _MASK_KEYS) if n in images]
        found = found or (others if len(others) == 1 and not self.mask_key else [])
        if not found:
            raise DataError(
                f"{self.name} has no mask {self.mask_key or _MASK_KEYS[0]!r}",
                f"an image feature such as {', '.join(others) or 'mask'}",
                "set --mask_key, or choose another dataset",
            )
        source = TfdsSource(self.name, split, self.data_dir, features=(found[0],))
        names = [f"{source.name}, example {i}" for i in range(len(source))]

        def read(index: int) -> tuple[bytes, bytes]:
            example = source[index]
            return example.image, bytes(example.features[found[0]])

        return names, read, _class_names(self.name)


def check_masks(images: MaskedImages, num_classes: int, ignore: int) -> None:
    """Raises DataError if a mask has a class that does not exist.

    Args:
        images: with masks.
        num_classes: classes are 0 to num_classes - 1.
        ignore: value of pixels that do not count.
    """
    wrong = (images.masks >= num_classes) & (images.masks != ignore)
    if wrong.any():
        place = int(np.flatnonzero(wrong.any((1, 2)))[0])
        raise DataError(
            f"mask {place} of {images.name} has class {int(images.masks[wrong].max())}",
            f"0 to {num_classes - 1}, or {ignore} where no class is known",
            "set --num_mask_classes or --ignore, or repair the masks",
        )


def cell_classes(
    masks: UInt8[np.ndarray, "M H W"], grid: tuple[int, int]
) -> Int[np.ndarray, "M h w"]:
    """Returns the class at the centre of each cell of a grid.

    >>> cell_classes(np.arange(16, dtype=np.uint8).reshape(1, 4, 4), (2, 2))[0].tolist()
    [[5, 7], [13, 15]]
    """
    rows, columns = (
        ((2 * np.arange(count) + 1) * side) // (2 * count)
        for count, side in zip(grid, masks.shape[1:], strict=True)
    )
    return masks[:, rows[:, None], columns[None]].astype(np.int32)


def _class_names(name: str) -> tuple[str, ...]:
    """Returns the class names of a bundled dataset; TFDS has none for masks."""
    if name.split(":")[0] == "digit_scenes":
        from vit_jax.data.builders.digit_scenes import CLASSES

        return CLASSES
    return ()


def _open_folder(folder: Path, split: str) -> tuple[list[str], Any, tuple[str, ...]]:
    images = folder / "images" / split
    masks = next((folder / n / split for n in _MASK_FOLDERS if (folder / n / split).is_dir()), None)
    if not images.is_dir() or masks is None:
        raise DataError(
            f"no folders images/{split} and masks/{split} in {folder}",
            "images/SPLIT/NAME.jpg and masks/SPLIT/NAME.png",
            "rename the folders, or set --train_split and --test_split",
        )
    files = sorted(p for p in images.iterdir() if p.name.lower().endswith(IMAGE_SUFFIXES))
    if not files:
        raise DataError(f"no images in {images}", "at least one image", "check the folder")

    def read(index: int) -> tuple[bytes, bytes]:
        mask = masks / f"{files[index].stem}.png"
        return read_user_file(files[index]), read_user_file(mask, "a mask for each image")

    listed = folder / "classes.txt"
    classes = tuple(listed.read_text().split("\n")) if listed.is_file() else ()
    return [str(p) for p in files], read, tuple(name for name in classes if name.strip())


def _pair(
    encoded: tuple[bytes, bytes], name: str, preprocess: Preprocess
) -> tuple[UInt8[np.ndarray, "H W 3"], UInt8[np.ndarray, "H W"]]:
    """Returns an image and its mask in the size of the preprocessing."""
    image, mask = encoded
    try:
        size = EncodedImage(image).size
        pixels = preprocess.pixels(image)
    except DataError as error:
        raise DataError(f"{name}: {error.got}", error.expected, "leave it out") from None
    try:
        decoded = Image.open(io.BytesIO(mask))
        decoded.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"mask of {name}: {error}", "a PNG of one channel", "repair it") from None
    if decoded.size != size:
        shown = (f"{width}x{height}" for width, height in (decoded.size, size))
        raise DataError(
            "{}: mask of {} pixels for an image of {}".format(name, *shown),
            "a mask of the image's size",
            "resize the mask without interpolation",
        )
    if decoded.mode not in ("L", "P", "1"):
        raise DataError(
            f"mask of {name} has mode {decoded.mode}",
            "one channel of 8 bits (L or P) whose values are classes",
            "convert the colours to classes",
        )
    if decoded.mode == "1":
        decoded = Image.fromarray(np.asarray(decoded).astype(np.uint8))
    height, width = preprocess.size
    small = np.asarray(decoded.resize((width, height), Image.Resampling.NEAREST), np.uint8)
    return pixels, small
