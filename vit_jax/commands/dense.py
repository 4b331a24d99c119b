"""Probe the dense features of a frozen model: segmentation and correspondence.

    python -m vit_jax dense runs/vit --data=digit_scenes --layers=2,4,6
    python -m vit_jax dense model.safetensors --data=ADE20K --test_split=validation
    python -m vit_jax dense untrained:BlockMeans-8 --data=digit_scenes --image_size=32 --layers=0

CHECKPOINT is anything that `predict` reads; `untrained:MODEL` is a new model, to compare with, and
`untrained:BlockMeans-8` has as features the mean colours of 8 x 8 blocks of pixels. --data is a
TFDS dataset of images and masks (`digit_scenes` comes with the package), or a folder with
images/SPLIT/NAME.jpg and masks/SPLIT/NAME.png, whose pixel values are classes.

segmentation: a linear layer on the features is trained on the training split; mean IoU of the test
split. correspondence: the share of points on objects whose nearest feature in a shifted, mirrored
or enlarged copy is at the right place, or in another image on an object of the same class. Nothing
is chosen on the test split. Intervals are over its images.
"""

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from vit_jax.commands.arguments import non_negative_int, output_file, positive_int
from vit_jax.commands.load_options import add_load_arguments, load_arguments
from vit_jax.errors import ConfigError
from vit_jax.storage.files import json_text, write_json

if TYPE_CHECKING:
    from vit_jax.data.masked_images import MaskedImages
    from vit_jax.models.family import ImageModel, Layer

OVERRIDES = "--model."
PROBES = ("segmentation", "correspondence")
_IGNORED = 255
Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("checkpoint", help="file, folder, run folder; hf://, gs://, s3://")
    parser.add_argument("--data", required=True, metavar="NAME", help="TFDS name or folder")
    parser.add_argument("--data_dir", help="TFDS folder")
    parser.add_argument("--train_split", default="train", help="split to train on (%(default)s)")
    parser.add_argument("--test_split", default="test", help="split to measure on (%(default)s)")
    parser.add_argument("--mask_key", help="feature with the mask, for TFDS datasets")
    parser.add_argument(
        "--num_mask_classes", type=positive_int, help="number of classes; default: as in the data"
    )
    parser.add_argument(
        "--ignore",
        type=non_negative_int,
        default=_IGNORED,
        help="mask value of pixels without a class (%(default)s)",
    )
    parser.add_argument(
        "--layers", default="-1", help="layers, e.g. 3,6,9,12 or stage3 (default: the last)"
    )
    parser.add_argument(
        "--raw", action="store_true", help="do not apply the model's final norm to the features"
    )
    parser.add_argument("--what", default=",".join(PROBES), metavar="PROBE,...", help="%(default)s")
    parser.add_argument("--num_images", type=positive_int, help="images of a split; default: all")
    parser.add_argument("--epochs", type=positive_int, default=20, help="of training (%(default)s)")
    parser.add_argument("--seed", type=non_negative_int, default=0, help="order of the images")
    parser.add_argument("--batch_size", type=positive_int, default=64, help="(%(default)s)")
    parser.add_argument("--output", type=output_file, help="JSON file for the results")
    parser.add_argument("--json", action="store_true", help="print one JSON object, no table")
    add_load_arguments(parser)


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from vit_jax.data.masked_images import MaskSource, check_masks
    from vit_jax.evaluation.segmentation_probe import count_classes
    from vit_jax.interop.load import load
    from vit_jax.run.compile_cache import use_compile_cache

    probes, layers = _words(args.what, PROBES), _layers(args.layers)
    use_compile_cache()
    loaded = load(args.checkpoint, **load_arguments(args, overrides))
    loaded.report.print()
    for layer in layers:
        loaded.model.known_layer(layer)
    source = MaskSource(args.data, args.data_dir, args.mask_key)
    train, test = (
        source.read(split, loaded.image_size, args.num_images)
        for split in (args.train_split, args.test_split)
    )
    num_classes = count_classes(train, args.num_mask_classes, args.ignore)
    for images in (train, test):
        check_masks(images, num_classes, args.ignore)
    result: Row = {
        "checkpoint": args.checkpoint,
        "model": loaded.options.name,
        "data": args.data,
        "train_images": len(train.pixels),
        "test_images": len(test.pixels),
        "classes": num_classes,
        "normalised": not args.raw,
    }
    if "segmentation" in probes:
        result["segmentation"] = _segmentation(args, loaded.model, layers, train, test, num_classes)
    if "correspondence" in probes:
        result["correspondence"] = _correspondence(args, loaded.model, layers, test)
    if args.output is not None:
        write_json(args.output, result)
    if args.json:
        print(json_text(result, what="the result"))
    else:
        _print(result)
    return 0


def _segmentation(
    args: argparse.Namespace,
    model: "ImageModel",
    layers: "list[Layer]",
    train: "MaskedImages",
    test: "MaskedImages",
    num_classes: int,
) -> list[Row]:
    from vit_jax.evaluation.segmentation_probe import (
        constant_iou,
        layer_maps,
        segmentation_probe,
    )

    constant = constant_iou(test.masks, num_classes, args.ignore)
    rows: list[Row] = [{"layer": "most frequent class", "mean_iou": constant}]
    for layer in layers:
        maps = [
            layer_maps(
                model, images.pixels, [layer], normalise=not args.raw, batch_size=args.batch_size
            )[0]
            for images in (train, test)
        ]
        found = segmentation_probe(
            maps[0],
            train.masks,
            maps[1],
            test.masks,
            num_classes=num_classes,
            ignore=args.ignore,
            epochs=args.epochs,
            seed=args.seed,
        )
        rows.append(
            {
                "layer": layer,
                "mean_iou": found.mean_iou,
                "interval": list(found.interval()),
                "pixel_accuracy": found.accuracy,
                "strength": found.strength,
                "channels": maps[0].shape[-1],
            }
        )
    return rows


def _correspondence(
    args: argparse.Namespace, model: "ImageModel", layers: "list[Layer]", test: "MaskedImages"
) -> list[Row]:
    from vit_jax.evaluation.correspondence import correspondences
    from vit_jax.evaluation.segmentation_probe import layer_maps

    rows: list[Row] = []
    for layer in layers:

        def maps_fn(pixels: Any, layer: "Layer" = layer) -> Any:
            return layer_maps(
                model, pixels, [layer], normalise=not args.raw, batch_size=args.batch_size
            )[0]

        found = correspondences(maps_fn, test.pixels, test.masks, ignore=args.ignore)
        rows += [
            {"layer": layer, "kind": kind, **dataclasses.asdict(score)}
            for kind, score in found.items()
        ]
    return rows


def _print(result: Row) -> None:
    from rich.console import Console

    from vit_jax.tables import plain_table

    print(
        f"{result['model']} from {result['checkpoint']}: {result['data']},"
        f" {result['test_images']:,} test images"
    )
    if "segmentation" in result:
        print("linear probe of the features of a layer")
        table = plain_table("layer", right=("mean IoU", "95 % interval", "pixels right"))
        for row in result["segmentation"]:
            rest = ("", "")
            if "interval" in row:
                rest = (_interval(row["interval"]), f"{row['pixel_accuracy']:.1%}")
            table.add_row(str(row["layer"]), f"{row['mean_iou']:.1%}", *rest)
        Console().print(table)
    if "correspondence" in result:
        print("points whose nearest feature in another image is right")
        table = plain_table("layer", right=("other", "right", "95 % interval", "PCK@0.1", "chance"))
        for row in result["correspondence"]:
            pck = "" if row["pck"] is None else f"{row['pck']:.1%}"
            shown = (row["kind"], f"{row['accuracy']:.1%}", _interval(row["interval"]), pck)
            table.add_row(str(row["layer"]), *shown, f"{row['chance']:.1%}")
        Console().print(table)


def _interval(ends: Any) -> str:
    low, high = ends
    return f"{low:.1%} to {high:.1%}"


def _words(text: str, known: tuple[str, ...]) -> list[str]:
    words = text.split(",")
    for word in words:
        if word not in known:
            raise ConfigError(
                f"unknown probe {word!r}", f"some of {', '.join(known)}", "correct it"
            )
    return words


def _layers(text: str) -> "list[Layer]":
    def one(word: str) -> "Layer":
        digits = word.removeprefix("-")
        return int(word) if digits.isascii() and digits.isdecimal() else word

    return [one(word.strip()) for word in text.split(",")]
