"""Look inside a trained model: filters, positions, attention.

    python -m vit_jax analyze runs/quickstart
    python -m vit_jax analyze B_16.npz --what=filters,positions
    python -m vit_jax analyze B_16.npz --images PHOTOS --what=distance,rollout --output=inside
    python -m vit_jax analyze B_16.npz --dataset=imagenet_v2 --split=test --data_dir=DATA
    python -m vit_jax analyze runs/quickstart --untrained --output=untrained

  filters         first principal components of the first layer's RGB filters
  positions       cosine similarity of the position embeddings
  distance        mean attention distance of every head, in pixels
  rollout         attention rollout: share of each patch in the output
  masked_patches  predictions of a run with task masked_patches
  mae             reconstructions of a run with task mae

Each writes pictures, a CSV file with the numbers and an npz file with the arrays. Without --images
and --dataset, a run folder is analysed with the images that it was evaluated on. --untrained
analyses the same architecture with initial values drawn from --seed, for comparison;
`untrained:MODEL` in place of a checkpoint does so for any model by its name.
"""

import argparse
import dataclasses
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit_jax.commands.arguments import positive_int
from vit_jax.commands.load_options import add_load_arguments, load_model
from vit_jax.config.data import DataConfig
from vit_jax.errors import ConfigError, DataError, ModelError, nearest
from vit_jax.storage.files import write_json
from vit_jax.storage.paths import check_output_folder, user_path
from vit_jax.tasks import tasks_with_pictures

if TYPE_CHECKING:
    from vit_jax.analysis.catalogue import Count
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
    parser.add_argument("--formats", default="png,svg", help="of pictures: png, svg, pdf")
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


@dataclasses.dataclass(frozen=True)
class _Job:
    """One analysis of this model.

    Attributes:
        check: raises ModelError if it does not apply to the model.
        run: images, or None if it needs none -> its output.
        count: its number of images, and the argument --num_... that sets it; None: no images.
    """

    check: Callable[[], Any]
    run: Callable[["Images | None"], "Output"]
    count: "Count | None"


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from vit_jax.analysis.catalogue import ANALYSES
    from vit_jax.analysis.output import FORMATS

    pictures = tasks_with_pictures()
    names = [*(analysis.name for analysis in ANALYSES), *pictures]
    asked = _chosen("--what", args.what, names) if args.what is not None else None
    formats = _chosen("--formats", args.formats, FORMATS)
    if args.images and args.dataset:
        raise ConfigError("--images and --dataset", "one of them", "leave one out")
    for name in set(asked or ()) & set(pictures):
        if args.untrained:
            raise ConfigError(
                f"--untrained with {name}, which shows what a run has learned",
                ",".join(n for n in names if n not in pictures),
                "leave one out",
            )
    run_folder = _run_folder(args.model)
    output = _output_folder(args, run_folder)
    check_output_folder(output)
    loaded = load_model(args.model, args, overrides, seed=args.seed, quiet=args.untrained)
    if args.untrained:
        loaded = dataclasses.replace(loaded, model=_initial(loaded, args.seed))
    jobs = _jobs(args, loaded)
    if not args.untrained:
        jobs |= _picture_jobs(args, loaded, run_folder)
    chosen = _applicable(jobs, asked)
    images = None
    if any(jobs[name].count for name in chosen):
        images = _images(args, loaded, run_folder)
    output.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        _write(name, jobs[name].run(_some(images, jobs[name].count, args)), output, formats)
    _describe(args, loaded, images, {name: jobs[name].count for name in chosen}, output)
    print(f"written to {output}")
    return 0


def _chosen(option: str, text: str, known: Iterable[str]) -> list[str]:
    """Returns the names of a comma-separated list, in the order of `known`."""
    known = list(known)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{option}={text} with {name!r}",
                f"some of {', '.join(known)}",
                f"did you mean {nearest(name, known)!r}?",
            )
    return [name for name in known if name in names]


def _initial(loaded: "Loaded", seed: int) -> Any:
    """Returns the architecture with newly drawn initial values, not those of its run."""
    from vit_jax.models.registry import create_model

    sizes = {"num_classes": loaded.num_classes, "image_size": loaded.image_size}
    return create_model(seed=seed, **sizes, **loaded.options.to_mapping())


def _jobs(args: argparse.Namespace, loaded: "Loaded") -> dict[str, _Job]:
    """Returns the analyses of the model by name."""
    from vit_jax.analysis.catalogue import ANALYSES, Analysis

    def job(analysis: Analysis) -> _Job:
        def run(images: "Images | None") -> "Output":
            return analysis.run(loaded.model, images, args.batch_size)

        return _Job(lambda: analysis.check(loaded.model), run, analysis.count)

    return {analysis.name: job(analysis) for analysis in ANALYSES}


def _picture_jobs(
    args: argparse.Namespace, loaded: "Loaded", run_folder: Path | None
) -> dict[str, _Job]:
    """Returns task -> the analysis of a run that the task provides."""
    from vit_jax.analysis.output import Output
    from vit_jax.run.folder import read_config
    from vit_jax.tasks.task import load_pictures

    config = None if run_folder is None else read_config(run_folder)

    def job(name: str) -> _Job:
        def check() -> None:
            if config is None or config.task != name:
                source = "no run folder" if config is None else f"a run of {config.task}"
                raise ModelError(
                    f"{name} of {source}",
                    f"the run folder of a run with task {name}",
                    "choose another analysis, or train such a run",
                )
            side = config.data.image_size
            if loaded.image_size != (side, side):
                height, width = loaded.image_size
                raise ModelError(
                    f"{name} at {height}x{width} pixels of a model for {side}",
                    "the size that the model was trained at",
                    "remove --image_size",
                )

        def run(images: "Images | None") -> "Output":
            assert images is not None
            assert run_folder is not None
            checkpoint = user_path(args.model)
            make_picture = load_pictures(name)
            found = make_picture(run_folder, checkpoint, images.pixels, args.batch_size)
            return Output(found.figure, found.arrays, found.rows, found.summary)

        return _Job(check, run, "num_pictures")

    return {name: job(name) for name in tasks_with_pictures()}


def _applicable(jobs: dict[str, _Job], asked: list[str] | None) -> list[str]:
    """Returns the analyses that apply to the model; raises an error if a requested one does not."""
    found = []
    for name in asked or jobs:
        try:
            jobs[name].check()
        except ModelError as error:
            if asked is not None:
                raise
            if name not in tasks_with_pictures():  # Most runs have another task.
                log.info("left out: %s", error.got)
        else:
            found.append(name)
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


def _write(name: str, output: "Output", folder: Path, formats: list[str]) -> None:
    from rich.console import Console

    from vit_jax.analysis.output import write_output

    write_output(name, output, folder, formats)
    console = Console(highlight=False)
    console.print(f"{name}: {output.summary}", soft_wrap=True)
    if output.table is not None:
        console.print(output.table)


def _describe(
    args: argparse.Namespace,
    loaded: "Loaded",
    images: "Images | None",
    chosen: "dict[str, Count | None]",
    output: Path,
) -> None:
    """Writes analysis.json, which names the model and images of the other files."""

    def used(count: "Count | None") -> Any:
        some = _some(images, count, args)
        if some is None:
            return None
        return list(some.names) if count == "num_pictures" else len(some.names)

    counts = {name: used(count) for name, count in chosen.items() if count}
    about = {
        "checkpoint": args.model,
        "untrained": args.untrained,
        "model": dict(loaded.options.to_mapping()),
        "image_size": list(loaded.image_size),
        "what": list(chosen),
        "images": None if images is None else {"from": images.origin, **counts},
        "seed": args.seed,
    }
    write_json(output / "analysis.json", about)
