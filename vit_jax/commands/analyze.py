"""Look inside a trained model: filters, positions, attention, receptive fields.

    python -m vit_jax analyze runs/quickstart
    python -m vit_jax analyze B_16.npz --what=filters,positions
    python -m vit_jax analyze B_16.npz --images PHOTOS --what=distance,rollout --output=inside
    python -m vit_jax analyze B_16.npz --dataset=imagenet_v2 --split=test --data_dir=DATA
    python -m vit_jax analyze runs/quickstart --untrained --output=untrained

  filters          first principal components of the first layer's RGB filters
  positions        cosine similarity of the position embeddings
  distance         mean attention distance of every head, in pixels
  rollout          what of a photo attention lets through to the output
  receptive_field  how far the pixels lie that a feature depends on, beside a CNN of that depth
  masked_patches   colours that a run with task masked_patches predicts for hidden patches

Pictures, a CSV file of the numbers and an npz file of the arrays are written for each. Without
--images and --dataset, a run folder is looked at with the images that it was evaluated on. What of
it all an untrained model has, --untrained says: one like it at initial values, drawn by --seed.
"""

import argparse
import dataclasses
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from vit_jax.commands.arguments import positive
from vit_jax.commands.load_options import add_load_arguments, load_arguments
from vit_jax.config.data import DataConfig
from vit_jax.errors import ConfigError, DataError, ModelError, RunFolderError, nearest
from vit_jax.tasks import tasks_with_pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vit_jax.analysis.images import Images
    from vit_jax.analysis.output import Result
    from vit_jax.interop.load import Loaded
    from vit_jax.models.resnet import ResNet
    from vit_jax.models.vit import ViT

OVERRIDES = "--model."
OF_TASKS = tuple(tasks_with_pictures())
WHAT = ("filters", "positions", "distance", "rollout", "receptive_field", *OF_TASKS)
_WITH_IMAGES = WHAT[2:]

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("model", metavar="CHECKPOINT", help="file, run folder, hf:// or gs://")
    parser.add_argument("--what", help=f"some of {','.join(WHAT)}; default: all that apply")
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER",
        help="default: report/analysis in a run folder, else ./analysis (analysis-untrained)",
    )  # fmt: skip
    parser.add_argument("--formats", default="png,svg", help="of pictures: png, svg, pdf")
    group = parser.add_argument_group("images")
    group.add_argument("--images", nargs="+", type=Path, metavar="PATH", help="files, folders")
    group.add_argument("--dataset", metavar="NAME", help="TFDS name; or folder or CSV file")
    group.add_argument("--split", help="default: test, or what the run evaluates on")
    group.add_argument("--data_dir", help="TFDS folder; default: as data.data_dir")
    group.add_argument("--num_images", type=positive, default=128, help="at most (128)")
    group.add_argument(
        "--num_pictures",
        type=positive,
        default=8,
        help=f"of the images, for {', '.join(('rollout', *OF_TASKS))} (8)",
    )
    group.add_argument(
        "--num_gradients", type=positive, default=16, help="of the images, for receptive_field (16)"
    )
    group.add_argument(
        "--crop", choices=("central", "resize"),
        help="the central square, or squash; default: as the weights were evaluated",
    )  # fmt: skip
    parser.add_argument("--batch_size", type=positive, default=16, help="images at once (16)")
    parser.add_argument(
        "--untrained", action="store_true", help="one like it at initial values, to compare"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of receptive_field's directions, --untrained (0)"
    )
    add_load_arguments(parser)


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    asked = _chosen("--what", args.what, WHAT) if args.what is not None else None
    formats = _chosen("--formats", args.formats, ("png", "svg", "pdf"))
    if args.images and args.dataset:
        raise ConfigError("--images and --dataset", "one of them", "leave one out")
    of_task = next((name for name in OF_TASKS if name in (asked or ())), None)
    if args.untrained and of_task is not None:
        raise ConfigError(
            f"--untrained with {of_task}, which shows what a run has learned",
            ",".join(name for name in WHAT if name not in OF_TASKS), "leave one out",
        )  # fmt: skip

    from vit_jax.interop.load import load

    loaded = load(args.model, **load_arguments(args, overrides))
    if args.untrained:
        loaded = dataclasses.replace(loaded, model=_initial(loaded, args.seed))
    else:
        loaded.report.print()
    run_folder = _run_folder(args.model)
    chosen = _applicable(loaded, asked, None if args.untrained else run_folder)
    images = None
    if any(what in _WITH_IMAGES for what in chosen):
        images = _images(args, loaded, run_folder)
    output = args.output
    if output is None:
        name = "analysis-untrained" if args.untrained else "analysis"
        output = Path(name) if run_folder is None else run_folder / "report" / name
    output = _made(output.expanduser())
    for what in chosen:
        _analyze(what, args, loaded, images, output, formats)
    _describe(args, loaded, images, chosen, output)
    print(f"written to {output}")
    return 0


def _initial(loaded: "Loaded", seed: int) -> "ViT | ResNet":
    """Returns a model like the loaded one at initial values: not those it was trained from."""
    from vit_jax.models.registry import create_model

    return create_model(
        num_classes=loaded.num_classes, image_size=loaded.image_size, seed=seed,
        **loaded.options.to_mapping(),
    )  # fmt: skip


def _chosen(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    """Returns the known names of a comma-separated list, in the order of `known`."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{option}={text} with {name!r}", f"some of {', '.join(known)}",
                f"did you mean {nearest(name, known)!r}?",
            )  # fmt: skip
    return [name for name in known if name in names]


def _applicable(loaded: "Loaded", asked: list[str] | None, run_folder: Path | None) -> list[str]:
    """Returns what can be done with this model; what was asked for and cannot be is an error."""
    from vit_jax.analysis.batches import with_attention
    from vit_jax.analysis.position import position_similarity

    def check(what: str) -> None:
        if what == "positions":
            position_similarity(loaded.model)
        if what in ("distance", "rollout"):
            with_attention(loaded.model, what)
        if what in OF_TASKS:
            _check_task(what, run_folder)

    found = []
    for what in asked or WHAT:
        try:
            check(what)
        except ModelError as error:
            if asked is not None:
                raise
            if what not in OF_TASKS:
                log.info("left out: %s", error.got)
        else:
            found.append(what)
    return found


def _run_folder(model: str) -> Path | None:
    """Returns the run folder that a checkpoint lies in, if it does."""
    path = Path(model).expanduser().absolute()
    for folder in (path, *path.parents[:2]):
        if (folder / "config.json").is_file() and (folder / "checkpoints").is_dir():
            return folder
    return None


def _check_task(name: str, run_folder: Path | None) -> None:
    """Raises ModelError unless the checkpoint lies in a run folder of this task."""
    from vit_jax.run.folder import read_config

    task = None if run_folder is None else read_config(run_folder).task
    if task != name:
        raise ModelError(
            f"{name} of " + ("no run folder" if task is None else f"a run of {task}"),
            f"the run folder of a run with task {name}",
            "ask for something else, or give another run",
        )


def _images(args: argparse.Namespace, loaded: "Loaded", run_folder: Path | None) -> "Images":
    from vit_jax.analysis.images import make_view, read_files, read_source
    from vit_jax.data.sources import open_source

    transform = make_view(loaded.image_size, loaded.view, args.crop)
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
            "no images to look at", "--images=PATH, or --dataset=NAME",
            "give one of them, or --what=filters,positions, which need none",
        )  # fmt: skip
    return read_source(open_source(data, split), split, args.num_images, transform)


def _dataset(name: str, data_dir: str | None) -> DataConfig:
    """Returns the data section that a name on the command line stands for."""
    path = Path(name).expanduser()
    if not path.exists():
        return DataConfig(name=name, data_dir=data_dir, global_batch_size=1)
    kind = "folder" if path.is_dir() else "csv"
    return DataConfig(source=kind, name=path.name, data_dir=str(path), global_batch_size=1)


def _analyze(
    what: str,
    args: argparse.Namespace,
    loaded: "Loaded",
    images: "Images | None",
    output: Path,
    formats: list[str],
) -> None:
    from vit_jax.analysis.output import write_files, write_result
    from vit_jax.commands.analyze_summary import print_summary

    if what in OF_TASKS:
        from vit_jax.tasks.task import load_pictures

        run_folder, checkpoint = _run_folder(args.model), Path(args.model).expanduser()
        assert images is not None
        assert run_folder is not None
        pixels = images.some(args.num_pictures).pixels
        picture = load_pictures(what)(run_folder, checkpoint, pixels, args.batch_size)
        write_files(what, picture.figure, picture.rows, picture.arrays, output, formats)
        print(f"{what}: {picture.summary}")
        return
    result, figure = _result_and_figure(what, args, loaded, images)
    write_result(what, result, figure, output, formats)
    print_summary(result)


def _result_and_figure(
    what: str, args: argparse.Namespace, loaded: "Loaded", images: "Images | None"
) -> tuple["Result", "Figure"]:
    from vit_jax import analysis
    from vit_jax.analysis import figures

    model = loaded.model
    if what == "filters":
        result = analysis.embedding_filters(model)
        return result, figures.draw_filters(result)
    if what == "positions":
        result = analysis.position_similarity(model)
        return result, figures.draw_positions(result)
    assert images is not None
    if what == "distance":
        result = analysis.attention_distance(model, images.normalized, batch_size=args.batch_size)
        return result, figures.draw_distance(result, f"{len(images.names)} images")
    if what == "rollout":
        few = images.some(args.num_pictures)
        result = analysis.attention_rollout(model, few.normalized, batch_size=args.batch_size)
        return result, figures.draw_rollout(result, few.pixels)
    few = images.some(args.num_gradients)
    result = analysis.receptive_field(
        model, few.normalized, batch_size=args.batch_size, seed=args.seed
    )
    return result, figures.draw_receptive_field(result, max(loaded.image_size), loaded.options.name)


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise RunFolderError(
            f"--output={folder}, where a file is in the way", "a folder", "choose another"
        ) from None
    return folder


def _describe(
    args: argparse.Namespace,
    loaded: "Loaded",
    images: "Images | None",
    chosen: list[str],
    output: Path,
) -> None:
    """Writes analysis.json: of which model and images the files beside it are."""
    about = {
        "checkpoint": args.model,
        "untrained": args.untrained,
        "model": dict(loaded.options.to_mapping()),
        "image_size": list(loaded.image_size),
        "what": chosen,
        "images": None
        if images is None
        else {
            "from": images.origin,
            "distance": len(images.names),
            "rollout": list(images.some(args.num_pictures).names),
            **{name: list(images.some(args.num_pictures).names) for name in OF_TASKS},
            "receptive_field": len(images.some(args.num_gradients).names),
        },
        "seed": args.seed,
    }
    (output / "analysis.json").write_text(json.dumps(about, indent=2) + "\n")
