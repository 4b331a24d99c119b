"""Look inside a trained model: filters, positions, attention.

    python -m vit_jax analyze runs/quickstart
    python -m vit_jax analyze B_16.npz --what=filters,positions
    python -m vit_jax analyze B_16.npz --images PHOTOS --what=distance,rollout --output=inside
    python -m vit_jax analyze B_16.npz --dataset=imagenet_v2 --split=test --data_dir=DATA
    python -m vit_jax analyze runs/quickstart --untrained --output=untrained

  filters    first principal components of the first layer's RGB filters
  positions  cosine similarity of the position embeddings
  distance   mean attention distance of every head, in pixels
  rollout    attention rollout: share of each patch in the output

Each writes pictures, a CSV file with the numbers and an npz file with the arrays. Without --images
and --dataset, a run folder is analysed with the images that it was evaluated on. --untrained
analyses the same architecture with initial values drawn from --seed, for comparison;
`untrained:MODEL` in place of a checkpoint does so for any model by its name.
"""

import argparse
import dataclasses
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit_jax.commands.arguments import positive_int
from vit_jax.commands.load_options import add_load_arguments, load_model
from vit_jax.config.data import DataConfig
from vit_jax.errors import ConfigError, DataError, ModelError, nearest
from vit_jax.storage.files import write_json
from vit_jax.storage.paths import check_output_folder, user_path

if TYPE_CHECKING:
    from vit_jax.analysis.catalogue import Analysis, Count
    from vit_jax.analysis.images import Images
    from vit_jax.analysis.output import Output
    from vit_jax.interop.load import Loaded

OVERRIDES = "--model."

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument(
        "model", metavar="CHECKPOINT", help="file, run folder; hf://, gs://, s3://; untrained:MODEL"
    )
    parser.add_argument(
        "--what", help="comma-separated analyses; default: all that apply to the model"
    )
    parser.add_argument(
        "--output",
        type=user_path,
        metavar="FOLDER",
        help="default: report/analysis in a run folder, else ./analysis (analysis-untrained)",
    )
    group = parser.add_argument_group("images")
    group.add_argument("--images", nargs="+", type=user_path, metavar="PATH", help="files, folders")
    group.add_argument("--dataset", metavar="NAME", help="TFDS name; or folder or CSV file")
    group.add_argument("--split", help="default: test, or the split that the run evaluates on")
    group.add_argument("--data_dir", help="TFDS folder; default: as data.data_dir")
    group.add_argument("--num_images", type=positive_int, default=128, help="images at most (128)")
    group.add_argument(
        "--num_pictures",
        type=positive_int,
        default=8,
        help="images in pictures, e.g. of rollout (8)",
    )
    group.add_argument(
        "--crop",
        choices=("central", "resize"),
        help="crop the central square, or squash the image; default: as in the weights' evaluation",
    )
    parser.add_argument("--batch_size", type=positive_int, default=16, help="images at a time (16)")
    parser.add_argument(
        "--untrained", action="store_true", help="analyse the architecture with initial values"
    )
    parser.add_argument("--seed", type=int, default=0, help="for untrained models (0)")
    add_load_arguments(parser)


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from vit_jax.analysis.catalogue import ANALYSES

    known = {analysis.name: analysis for analysis in ANALYSES}
    asked = None if args.what is None else _chosen(args.what, list(known))
    if args.images and args.dataset:
        raise ConfigError("--images and --dataset", "one of them", "leave one out")
    run_folder = _run_folder(args.model)
    output = _output_folder(args, run_folder)
    check_output_folder(output)
    loaded = load_model(args.model, args, overrides, seed=args.seed, quiet=args.untrained)
    if args.untrained:
        loaded = dataclasses.replace(loaded, model=_initial(loaded, args.seed))
    chosen = _applicable([known[name] for name in asked or known], loaded, asked is not None)
    images = None
    if any(analysis.count for analysis in chosen):
        images = _images(args, loaded, run_folder)
    output.mkdir(parents=True, exist_ok=True)
    for one in chosen:
        found = one.run(loaded.model, _some(images, one.count, args), args.batch_size)
        _write(one.name, found, output)
    _describe(args, loaded, images, chosen, output)
    print(f"written to {output}")
    return 0


def _chosen(text: str, known: list[str]) -> list[str]:
    """Returns the names of a comma-separated list, in the order of `known`."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"--what={text} with {name!r}",
                f"some of {', '.join(known)}",
                f"did you mean {nearest(name, known)!r}?",
            )
    return [name for name in known if name in names]


def _initial(loaded: "Loaded", seed: int) -> Any:
    """Returns the architecture with newly drawn initial values, not those of its run."""
    from vit_jax.models.registry import create_model

    sizes = {"num_classes": loaded.num_classes, "image_size": loaded.image_size}
    return create_model(seed=seed, **sizes, **loaded.options.to_mapping())


def _applicable(analyses: "list[Analysis]", loaded: "Loaded", asked: bool) -> "list[Analysis]":
    """Returns the analyses that apply to the model; raises an error if an asked one does not."""
    found = []
    for one in analyses:
        try:
            one.check(loaded.model)
        except ModelError as error:
            if asked:
                raise
            log.info("left out: %s", error.got)
        else:
            found.append(one)
    return found


def _run_folder(model: str) -> Path | None:
    """Returns the run folder that contains a checkpoint, if there is one."""
    from vit_jax.interop.locate import is_published

    if is_published(model):
        return None
    path = user_path(model).absolute()
    for folder in (path, *path.parents[:2]):
        if (folder / "config.json").is_file() and (folder / "checkpoints").is_dir():
            return folder
    return None


def _images(args: argparse.Namespace, loaded: "Loaded", run_folder: Path | None) -> "Images":
    from vit_jax.analysis.images import read_files, read_source
    from vit_jax.data.preprocess import preprocess_of
    from vit_jax.data.sources import open_source

    preprocess = preprocess_of(loaded.model)
    transform = replace(preprocess, crop=args.crop or preprocess.crop).pixels
    if args.images:
        return read_files(args.images, args.num_images, transform)
    if args.dataset:
        data, split = _dataset(args.dataset, args.data_dir), args.split or "test"
    elif run_folder is not None:
        from vit_jax.run.folder import read_config

        config = read_config(run_folder)
        split = next(iter(config.evaluation.all_splits.values()), config.data.train_split)
        data, split = config.data, args.split or split
        if args.data_dir:
            data = data.replace(data_dir=args.data_dir)
    else:
        raise DataError(
            "no images to analyse",
            "--images=PATH, or --dataset=NAME",
            "give one of them, or --what=filters,positions, which need none",
        )
    source = open_source(data, split)
    return read_source(source, split, args.num_images, transform, data.num_classes)


def _dataset(name: str, data_dir: str | None) -> DataConfig:
    """Returns the data section for a name on the command line."""
    path = user_path(name)
    if not path.exists():
        return DataConfig(name=name, data_dir=data_dir, global_batch_size=1)
    kind = "folder" if path.is_dir() else "csv"
    return DataConfig(source=kind, name=path.name, data_dir=str(path), global_batch_size=1)


def _some(
    images: "Images | None", count: "Count | None", args: argparse.Namespace
) -> "Images | None":
    """Returns the images that an analysis uses."""
    return None if images is None or count is None else images.subset(getattr(args, count))


def _output_folder(args: argparse.Namespace, run_folder: Path | None) -> Path:
    name = "analysis-untrained" if args.untrained else "analysis"
    return args.output or (run_folder / "report" / name if run_folder else user_path(name))


def _write(name: str, output: "Output", folder: Path) -> None:
    from rich.console import Console

    from vit_jax.analysis.output import write_output

    write_output(name, output, folder)
    console = Console(highlight=False)
    console.print(f"{name}: {output.summary}", soft_wrap=True)
    if output.table is not None:
        console.print(output.table)


def _describe(
    args: argparse.Namespace,
    loaded: "Loaded",
    images: "Images | None",
    chosen: "list[Analysis]",
    output: Path,
) -> None:
    """Writes analysis.json, which names the model and images of the other files."""

    def used(count: "Count | None") -> Any:
        some = _some(images, count, args)
        if some is None:
            return None
        return list(some.names) if count == "num_pictures" else len(some.names)

    counts = {one.name: used(one.count) for one in chosen if one.count}
    about = {
        "checkpoint": args.model,
        "untrained": args.untrained,
        "model": dict(loaded.options.to_mapping()),
        "image_size": list(loaded.image_size),
        "what": [one.name for one in chosen],
        "images": None if images is None else {"from": images.origin, **counts},
        "seed": args.seed,
    }
    write_json(output / "analysis.json", about)
