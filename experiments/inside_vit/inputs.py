"""The command line of the measurements in this folder: a model, its images, a table."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from vit_jax import create_model, load_run, preprocess_of
from vit_jax.analysis.images import Images, read_files, read_source
from vit_jax.config.data import DataConfig
from vit_jax.data.sources import open_source
from vit_jax.errors import DataError, UserError
from vit_jax.interop.load import load
from vit_jax.models.family import ImageModel

# (model, images, parsed arguments) -> the table to print and to write.
Measure = Callable[[ImageModel, Images, argparse.Namespace], pd.DataFrame]


def run(
    name: str, measure: Measure, num_images: int = 128, arguments: Sequence[str] | None = None
) -> None:
    """Parses the command line, measures, prints the table and writes it to FOLDER/NAME.csv."""
    parser = argparse.ArgumentParser(prog=f"python -m experiments.inside_vit.{name}")
    add = parser.add_argument
    add("model", help="run folder; weights of any format; untrained:MODEL")
    add("--untrained", action="store_true", help="the same architecture at new initial values")
    add("--images", nargs="+", type=Path, metavar="PATH", help="files and folders")
    add("--dataset", help="TFDS name; default: the data of the run")
    add("--split", help="default: test, or the split that the run is evaluated on")
    add("--data_dir", help="TFDS folder; default: that of the run")
    add("--num_images", type=int, default=num_images, help=f"images at most ({num_images})")
    add("--batch_size", type=int, default=16, help="images at a time (16)")
    add("--seed", type=int, default=0, help="of random choices and of initial values (0)")
    add("--output", type=Path, metavar="FOLDER", help="where to write the table")
    args = parser.parse_args(arguments)
    try:
        model = _load_model(args)
        if args.output is not None:
            args.output.mkdir(parents=True, exist_ok=True)
        table = measure(model, _read_images(model, args), args)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    print(table.round(4).to_string(index=False))
    if args.output is not None:
        table.to_csv(args.output / f"{name}.csv", index=False, float_format="%.6g")


def _load_model(args: argparse.Namespace) -> ImageModel:
    loaded = load(args.model, seed=args.seed)
    if not args.untrained:
        return loaded.model
    sizes = {"num_classes": loaded.num_classes, "image_size": loaded.image_size}
    return create_model(seed=args.seed, **sizes, **loaded.options.to_mapping())


def _read_images(model: ImageModel, args: argparse.Namespace) -> Images:
    """Returns images of the model's size, evenly spaced over the files or the split."""
    transform = preprocess_of(model).pixels
    if args.images:
        return read_files(args.images, args.num_images, transform)
    if args.dataset:
        data = DataConfig(name=args.dataset, data_dir=args.data_dir, global_batch_size=1)
        split = args.split or "test"
    elif Path(args.model, "config.json").is_file():
        config = load_run(args.model).config
        data = config.data.replace(data_dir=args.data_dir) if args.data_dir else config.data
        evaluated = next(iter(config.evaluation.all_splits.values()), data.train_split)
        split = args.split or evaluated
    else:
        raise DataError("no images", "--images=PATH or --dataset=NAME", "give one of them")
    return read_source(open_source(data, split), split, args.num_images, transform)
