"""Classify images.

    python -m vit_jax predict cat.jpg dog.jpg --model=B_16.npz
    python -m vit_jax predict PHOTOS --model=runs/mine --format=csv > answers.csv

IMAGE is a file, or a folder (all images in and below it). The model is a file or folder of weights,
or a run folder.
"""

import argparse
import csv
import dataclasses
import itertools
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vit_jax.commands.arguments import positive_int
from vit_jax.commands.load_options import add_load_arguments, load_model
from vit_jax.data.image_formats import counted, is_image, no_images_error, unread_formats
from vit_jax.data.sources.listing import files_in
from vit_jax.errors import DataError, WeightsError
from vit_jax.shown_log import without_info_log
from vit_jax.storage.files import json_text
from vit_jax.storage.paths import user_path

if TYPE_CHECKING:
    import numpy as np

    from vit_jax.interop.load import Loaded

log = logging.getLogger(__name__)

OVERRIDES = "--model."

# Name of an image, and its best classes with their probabilities.
_Found = tuple[str, list[tuple[str, float]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="file or folder")
    parser.add_argument(
        "--model", required=True, help="file, folder, run folder; hf://, gs://, s3://"
    )
    parser.add_argument("--top", type=positive_int, default=5, help="number of classes to show")
    parser.add_argument("--classes", type=user_path, help="text file with one class name per line")
    parser.add_argument(
        "--crop",
        choices=("central", "resize"),
        help="crop the central square, or squash the image; default: as in the weights' evaluation",
    )
    parser.add_argument(
        "--format",
        choices=("list", "json", "csv"),
        default="list",
        help="list: the classes of each image below its name (default); json: an object per line;"
        " csv: with a header",
    )
    add_load_arguments(parser)


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from vit_jax.run.compile_cache import use_compile_cache

    use_compile_cache()
    images = _find_images(args.images)
    model = load_model(args.model, args, overrides)
    if not model.num_classes:
        raise WeightsError(
            f"{args.model} has no head", "a model with classes", "use a fine-tuned one"
        )
    names = _class_names(args.classes, model)
    height, width = model.image_size
    if height != width:
        raise WeightsError(f"image size {height}x{width}", "a square image", "give --image_size")
    found = _classify(images, model, names, args)
    with without_info_log():
        _print(found, args.format, min(args.top, len(names)))
    return 0


def _find_images(given: Sequence[str]) -> list[tuple[str, Path, bool]]:
    """Returns (name, path, whether the user has named it) of all images.

    Raises:
        DataError: a folder without images.
    """
    found: list[tuple[str, Path, bool]] = []
    for text in given:
        path = user_path(text)
        if not path.is_dir():
            found.append((text, path, True))
            continue
        names = [name for name, _ in files_in(path, None).walk("")]  # As training finds them.
        inside = sorted(path / name for name in names if is_image(name))
        unread = unread_formats(names)
        if not inside:
            raise no_images_error(
                f"{path} is a folder without images",
                unread,
                "give another folder, or the path of a file",
            )
        if unread:
            log.warning("%s: images that are not read: %s", path, counted(unread))
        found += [(str(p), p, False) for p in inside]
    return found


def _classify(
    images: Sequence[tuple[str, Path, bool]],
    model: "Loaded",
    names: tuple[str, ...],
    args: argparse.Namespace,
) -> Iterator[_Found]:
    """Yields the best classes of each image. A file in a folder that is no image gives a warning.

    Raises:
        DataError: an image that the user has named cannot be read.
        NonFiniteError: the model's output is not finite.
    """
    import numpy as np

    from vit_jax.classify import BATCH_SIZE, not_finite, probabilities
    from vit_jax.data.any_image import read_user_file
    from vit_jax.data.preprocess import Preprocess

    view = dataclasses.replace(model.view, crop=args.crop or model.view.crop)
    preprocess = Preprocess(model.image_size, **dataclasses.asdict(view))

    def pixels_of(image: tuple[str, Path, bool]) -> "np.ndarray | None":
        name, path, is_named = image
        try:
            return preprocess.pixels(read_user_file(path))
        except DataError as error:
            got = error.got if name in error.got else f"{name}: {error.got}"
            if not is_named:
                log.warning("left out: %s", got)
                return None
            raise DataError(got, error.expected, "give another file") from None

    for start in range(0, len(images), BATCH_SIZE):
        read = [(image[0], pixels_of(image)) for image in images[start : start + BATCH_SIZE]]
        batch = [(name, pixels) for name, pixels in read if pixels is not None]
        if not batch:
            continue
        scores = probabilities(model.model, [pixels for _, pixels in batch])
        for (name, _), row in zip(batch, scores, strict=True):
            if not np.isfinite(row).all():
                raise not_finite(name)
            yield name, [(names[i], float(row[i])) for i in np.argsort(-row)[: args.top]]


def _class_names(file: Path | None, model: "Loaded") -> tuple[str, ...]:
    """Returns class names: from the given file, or those of the model."""
    from vit_jax.classify import class_names_of
    from vit_jax.data.any_image import read_user_file

    if file is None:
        return class_names_of(model.model, model.num_classes)
    expected = "a text file with one class name per line"
    names = tuple(read_user_file(file, expected).decode(errors="replace").splitlines())
    if len(names) != model.num_classes:
        raise DataError(
            f"{file} has {len(names)} lines",
            f"a name for each of {model.num_classes} classes",
            "give another file",
        )
    return names


def _print(found: Iterator[_Found], chosen: str, top: int) -> None:
    """Prints the answers as they come."""
    if chosen == "json":
        for name, classes in found:
            content = {"image": name, "classes": [[n, round(s, 6)] for n, s in classes]}
            print(json_text(content, what="the output"))
    elif chosen == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        columns = [(f"class_{i}", f"probability_{i}") for i in range(1, top + 1)]
        writer.writerow(["image", *itertools.chain(*columns)])
        for name, classes in found:
            writer.writerow([name, *itertools.chain(*((n, f"{s:.6f}") for n, s in classes))])
    else:
        for name, classes in found:
            print(name)
            for label, score in classes:
                print(f"  {score:6.1%}  {label}")
