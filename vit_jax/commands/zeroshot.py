"""Classify images by captions of the classes, with an image and a text tower (zero-shot).

    python -m vit_jax zeroshot runs/clip --data=cifar10 --prompts=cifar10
    python -m vit_jax zeroshot SIGLIP_FOLDER --data=imagenet2012 --split=validation --prompts=lit
    python -m vit_jax zeroshot lit.npz --tokenizer=vocab.txt --data=PHOTOS --prompts="a photo of {}"

CHECKPOINT is the weights of CLIP, SigLIP or LiT: a run folder, a folder of transformers, or an npz
file. --tokenizer is their vocabulary: a sentencepiece .model, tokenizer.json, vocab.txt, or a
folder with one of these or with vocab.json and merges.txt. Without it, the command uses the one of
the run, or looks for it in the folder of CHECKPOINT.

--data is a TFDS dataset, a folder of images in one subfolder for each class, or a CSV file of
path,label. The class whose captions are most similar to an image is predicted; --prompts makes
captions from the names of classes.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit_jax.commands.arguments import non_negative_int, output_file, positive_int
from vit_jax.commands.load_options import add_load_arguments, load_model
from vit_jax.commands.process import add_process_arguments, started
from vit_jax.config.captions import CaptionsConfig
from vit_jax.config.data import DataConfig
from vit_jax.config.evaluation import ZeroShotConfig
from vit_jax.config.file import read_mapping
from vit_jax.config.mesh import MeshConfig
from vit_jax.errors import ConfigError, ModelError
from vit_jax.storage.files import json_text, write_json
from vit_jax.storage.paths import check_output_folder, user_path

if TYPE_CHECKING:
    from vit_jax.data.sources import Source
    from vit_jax.data.tokenizers import Tokenizer
    from vit_jax.evaluation.embeddings import EvaluatedImages
    from vit_jax.interop.load import Loaded
    from vit_jax.models.two_towers import TwoTowers

OVERRIDES = "--model."
_BATCH_SIZE = 64
_PROMPTS = "lit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("checkpoint", help="file, folder, run folder; hf://, gs://, s3://")
    parser.add_argument("--data", required=True, metavar="NAME", help="dataset, folder or file")
    parser.add_argument("--data_dir", help="TFDS folder")
    parser.add_argument("--split", help="(test; for a folder or file: train)")
    parser.add_argument("--label_key", help="feature with the class")
    parser.add_argument("--tokenizer", help="vocabulary: a file or folder")
    parser.add_argument(
        "--canonicalize",
        choices=("none", "lower", "punctuation"),
        help="lower case; also without punctuation (default: as the weights were trained)",
    )
    parser.add_argument(
        "--pad_token", type=non_negative_int, help="default: as the weights were trained"
    )
    parser.add_argument(
        "--prompts",
        help="imagenet (CLIP's 80), short (the best 7), lit, cifar10, name, a file with one a line,"
        f" or a text with {{}} ({_PROMPTS})",
    )
    parser.add_argument(
        "--classes", metavar="FILE", help="names of the classes, one a line, in label order"
    )
    parser.add_argument(
        "--batch_size", type=positive_int, help=f"images per batch ({_BATCH_SIZE} per device)"
    )
    parser.add_argument(
        "--report", type=user_path, metavar="FOLDER", help="write which images are right"
    )
    parser.add_argument("--output", type=output_file, help="JSON file for the results")
    parser.add_argument("--json", action="store_true", help="print one JSON object, no table")
    add_load_arguments(parser)
    add_process_arguments(parser)


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from vit_jax.parallel.processes import is_first_host

    if args.report is not None:
        check_output_folder(args.report)
    with started(args, ZeroShotConfig(checkpoint=args.checkpoint, data=args.data)):
        result = _evaluate(args, overrides)
        if is_first_host():
            if args.output is not None:
                write_json(args.output, result)
            if args.json:
                print(json_text(result, what="the result"))
            else:
                _print(result)
    return 0


def _evaluate(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    from flax import nnx

    from vit_jax.data.sources import open_source
    from vit_jax.data.tokenizers import load_tokenizer
    from vit_jax.evaluation.features import shard_params
    from vit_jax.evaluation.prompts import read_class_names, read_templates
    from vit_jax.models.two_towers import TwoTowers
    from vit_jax.parallel.mesh import check_batch_size, make_mesh, num_batch_shards
    from vit_jax.parallel.processes import is_first_host

    # The weights may be large: everything else is opened first.
    mesh = make_mesh(MeshConfig())
    data = _data(args, args.batch_size or _BATCH_SIZE * num_batch_shards(mesh))
    check_batch_size(mesh, data.global_batch_size, "--batch_size")
    templates = read_templates(args.prompts or _PROMPTS)
    given = _captions_config(args)
    load_tokenizer(user_path(str(given.tokenizer)), context_length=1)
    source = open_source(data, args.split)
    names = read_class_names(args.classes, source.class_names)
    loaded = load_model(args.checkpoint, args, overrides, quiet=not is_first_host())
    model = loaded.model
    if not isinstance(model, TwoTowers):
        raise ModelError(
            f"{loaded.options.name} from {args.checkpoint}",
            "a pair of an image and a text tower, such as CLIP",
            "use `eval` or `fewshot` for image models",
        )
    tokenizer = _tokenizer(args, given, loaded)
    images = _images(args, data, source, loaded, mesh)
    graphdef, state = nnx.split(model)
    params = shard_params(nnx.to_pure_dict(state), MeshConfig(), mesh)
    placed: TwoTowers = nnx.merge(graphdef, params)
    result = {
        "checkpoint": args.checkpoint,
        "model": loaded.options.name,
        "data": args.data,
        "split": args.split,
    }
    return result | _zero_shot(args, placed, tokenizer, images, names, templates)


def _zero_shot(
    args: argparse.Namespace,
    model: "TwoTowers",
    tokenizer: "Tokenizer",
    images: "EvaluatedImages",
    names: tuple[str, ...],
    templates: tuple[str, ...],
) -> dict[str, Any]:
    from vit_jax.evaluation.classification import PredictionTotals
    from vit_jax.evaluation.intervals import wilson_interval
    from vit_jax.evaluation.zeroshot import evaluate_zero_shot
    from vit_jax.parallel.processes import is_first_host

    totals = PredictionTotals(num_classes=len(names))
    found = evaluate_zero_shot(model, tokenizer, images, names, templates, totals=totals)
    assert found is not None
    if args.report is not None and is_first_host():
        args.report.mkdir(parents=True, exist_ok=True)
        totals.write(args.report, f"zeroshot-{args.split}")
    examples = int(found["examples"])
    return {
        "prompts": args.prompts or _PROMPTS,
        "templates": len(templates),
        "classes": len(names),
        "examples": examples,
        **{k: v for k, v in found.items() if k != "examples"},
        "interval": list(wilson_interval(found["accuracy_top1"], examples)),
        "chance": 1 / len(names),
    }


def _data(args: argparse.Namespace, batch_size: int) -> DataConfig:
    """Returns the data section of --data."""
    path = user_path(args.data)
    kind, name = "tfds", args.data
    if path.exists():
        kind = "folder" if path.is_dir() else "csv"
        name = path.stem
    args.split = args.split or ("test" if kind == "tfds" else "train")
    return DataConfig(
        source=kind,
        name=name,
        data_dir=args.data_dir if kind == "tfds" else str(path),
        label_key=args.label_key,
        global_batch_size=batch_size,
        cache_mb=0,
    )


def _captions_config(args: argparse.Namespace) -> CaptionsConfig:
    """Returns how texts become tokens, as the arguments or the config of a run say."""
    found = _config_of_run(args.checkpoint)
    changes: dict[str, Any] = {"feature": None, "templates": ()}
    for name in ("canonicalize", "pad_token"):
        if getattr(args, name) is not None:
            changes[name] = getattr(args, name)
    changes["tokenizer"] = args.tokenizer or found.tokenizer or _folder(args.checkpoint)
    return found.replace(**changes)


def _tokenizer(args: argparse.Namespace, config: CaptionsConfig, loaded: "Loaded") -> "Tokenizer":
    """Returns the tokenizer of the weights."""
    from vit_jax.data.captions import build_captions
    from vit_jax.data.tokenizers import published_conventions
    from vit_jax.models.two_towers import TwoTowersConfig

    options = loaded.options
    assert isinstance(options, TwoTowersConfig)
    if _config_of_run(args.checkpoint).tokenizer is None:
        usual = published_conventions(options.name, options.text.vocabulary_size)
        given = config.canonicalize, config.pad_token
        canonicalize, pad = (u if g is None else g for g, u in zip(given, usual, strict=True))
        config = config.replace(canonicalize=canonicalize, pad_token=pad)
    return build_captions(config, options.text).tokenizer


def _config_of_run(checkpoint: str) -> CaptionsConfig:
    """Returns the captions section of a run folder, or an empty one for other weights."""
    path = user_path(checkpoint.rstrip("/").removesuffix("/checkpoints")) / "config.json"
    if path.is_file() and (path.parent / "checkpoints").is_dir():
        found = read_mapping(str(path)).get("data", {}).get("captions")
        if found is not None:
            return CaptionsConfig.from_mapping(found)
    return CaptionsConfig()


def _folder(checkpoint: str) -> str:
    """Returns the folder of weights, where their vocabulary may be."""
    from vit_jax.interop.load import UNTRAINED
    from vit_jax.interop.locate import local_weights, weights_path

    if checkpoint.startswith(UNTRAINED):
        raise ConfigError("no tokenizer", "the vocabulary of the text tower", "set --tokenizer")
    path: Path = local_weights(weights_path(checkpoint))
    return str(path if path.is_dir() else path.parent)


def _images(
    args: argparse.Namespace, data: DataConfig, source: "Source", loaded: "Loaded", mesh: Any
) -> "EvaluatedImages":
    """Returns the images of a split with the preprocessing of the weights."""
    import numpy as np

    from vit_jax.data.arrays import labelled_image
    from vit_jax.data.loader import batch_spec
    from vit_jax.data.preprocess import preprocess_of
    from vit_jax.evaluation.embeddings import EvaluatedImages
    from vit_jax.parallel.mesh import host_rows

    height, width = loaded.image_size
    if height != width:
        raise ModelError(f"image size {height}x{width}", "a square image", "give --image_size")
    preprocess = preprocess_of(loaded.model)

    def transform(encoded: bytes, rng: np.random.Generator) -> np.ndarray:
        del rng
        return preprocess.pixels(encoded)

    spec = batch_spec(data, data.global_batch_size, host_rows(mesh, data.global_batch_size))
    preprocessing = labelled_image(transform, height, len(source.class_names))
    return EvaluatedImages(source, preprocessing, spec, mesh)


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console

    from vit_jax.tables import plain_table

    print(
        f"{result['model']} from {result['checkpoint']}: {result['data']}, split {result['split']},"
        f" {result['examples']:,} images"
    )
    table = plain_table("prompts", right=("top-1", "95 % interval", "top-5", "chance"))
    top5 = f"{result['accuracy_top5']:.2%}" if "accuracy_top5" in result else ""
    named = f"{result['prompts']} ({result['templates']})"
    shown = (f"{result['accuracy_top1']:.2%}", _interval(result["interval"]), top5)
    table.add_row(named, *shown, f"{result['chance']:.2%}")
    Console().print(table)


def _interval(ends: Any) -> str:
    low, high = ends
    return f"{low:.1%} to {high:.1%}"
