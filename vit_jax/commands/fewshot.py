"""Evaluate frozen features: few-shot least squares, nearest neighbours, a linear probe.

    python -m vit_jax fewshot runs/quickstart --dataset=digits --crop=resize
    python -m vit_jax fewshot B_16.npz --dataset=cifar100 --data_dir=DATA --l2=1024
    python -m vit_jax fewshot runs/b16 --dataset=PHOTOS --shots=1,5 --method=least_squares,knn

CHECKPOINT is anything that `predict` reads: a file, a folder, a run folder (its moving average if
it has one), hf:// or gs://. `untrained:MODEL` is a new model, to compare with. --dataset is a TFDS
name, a folder of images or a CSV file, and may be repeated.
All other settings are keys of the config's fewshot section: --config=FILE reads them from a recipe,
--config.fewshot.KEY=VALUE sets one.

Shots are drawn from the training split, once for each seed. The hyperparameters l2, k and C are
chosen on held-out examples of the training split or on --held_out_split, never on the test split.
With --workdir the results are written to a run folder; running the same command again then reports
that it has finished.
"""

import argparse
import logging
import time
from typing import Any

from vit_jax.commands.arguments import positive_int
from vit_jax.commands.load_options import add_load_arguments, load_arguments
from vit_jax.commands.process import add_process_arguments, started
from vit_jax.config.data import DataConfig
from vit_jax.config.fewshot import FewshotRunConfig
from vit_jax.config.file import override_key, read_mapping
from vit_jax.config.run import Config, LoggingConfig
from vit_jax.errors import EXIT_STOPPED, ConfigError
from vit_jax.schema import parse_override
from vit_jax.storage.files import json_text
from vit_jax.storage.paths import user_path
from vit_jax.train.signals import StopSignals

log = logging.getLogger(__name__)

# --config.KEY=VALUE and --model.KEY=VALUE.
OVERRIDES = "--"
_BATCH_SIZE = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument(
        "checkpoint", nargs="?", help="file, folder, run folder; hf://, gs://, s3://"
    )
    parser.add_argument("--config", help="recipe or config.json with a fewshot section")
    parser.add_argument(
        "--dataset",
        action="append",
        default=[],
        metavar="NAME",
        help="TFDS name, folder of images or CSV file; may be repeated",
    )
    parser.add_argument("--data_dir", help="TFDS folder")
    parser.add_argument("--train_split", help="split to draw shots from (train)")
    parser.add_argument("--test_split", help="split to measure accuracy on (test)")
    parser.add_argument("--held_out_split", help="split to choose l2, k and C on")
    parser.add_argument(
        "--crop",
        choices=("squash_central", "central", "resize"),
        help="squash to a square and crop its middle, as big_vision does (the default); crop the"
        " central square; squash to a square",
    )
    parser.add_argument(
        "--shots", type=_numbers, metavar="K,...", help="examples per class (1,5,10,25)"
    )
    parser.add_argument(
        "--seeds", type=_numbers, metavar="SEED,...", help="seeds of the draws (0,1,2)"
    )
    parser.add_argument("--l2", type=float, help="regularisation, e.g. 1024; default: chosen")
    parser.add_argument(
        "--method", metavar="M,...", help="least_squares (the default), knn, linear_probe"
    )
    parser.add_argument("--features", choices=("pre_logits", "pooled"))
    parser.add_argument(
        "--batch_size", type=positive_int, help=f"images per batch ({_BATCH_SIZE} per device)"
    )
    parser.add_argument("--workdir", type=user_path, help="run folder for the results")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table"
    )
    add_load_arguments(parser)
    add_process_arguments(parser)


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    with StopSignals() as stop:
        config = _config(args, overrides)
        with started(args, config, lambda: stop.requested):
            return _evaluate(args, config, stop)


def _evaluate(args: argparse.Namespace, config: FewshotRunConfig, stop: StopSignals) -> int:
    from vit_jax.parallel.processes import StopAgreement, is_first_host, on_first_host
    from vit_jax.run.folder import RunFolder

    agreement = StopAgreement(lambda: stop.requested)
    if args.workdir is None:
        found = _measure(config, agreement)
        if found is None:
            return EXIT_STOPPED
        if is_first_host():
            _show(args, config, found[0])
        return 0
    with RunFolder(args.workdir, config) as folder:
        result = on_first_host("look for a result", lambda: folder.result)
        if result is not None:
            log.info("the run in %s has already finished; nothing to do", folder.path)
        else:
            folder.write_config()
            found = _measure(config, agreement)
            if found is None:
                return EXIT_STOPPED
            result, details = found
            if folder.is_writer:
                _write(folder, result, details)
    if is_first_host():
        _show(args, config, result)
    return 0


def _write(folder: Any, result: dict[str, Any], details: dict[str, Any]) -> None:
    """Writes metrics.jsonl, report/fewshot.json and then result.json."""
    from vit_jax.run.metrics import MetricsWriter

    figures = {k: v for k, v in result.items() if "/" in k}
    logging_config = LoggingConfig(tensorboard=False)
    with MetricsWriter(folder.path, logging_config, start_step=-1, run_config={}) as writer:
        writer.write(0, figures)
    folder.write_json("report/fewshot.json", details)
    folder.write_json("result.json", result)


def _measure(
    config: FewshotRunConfig, agreement: Any
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Returns the contents of result.json and report/fewshot.json; None if it was stopped."""
    import jax
    from flax import nnx

    from vit_jax.evaluation.features import shard_params
    from vit_jax.evaluation.frozen import FrozenEvaluator
    from vit_jax.interop.load import load
    from vit_jax.parallel.mesh import make_mesh, num_batch_shards
    from vit_jax.parallel.processes import is_first_host

    begin = time.perf_counter()
    mesh = make_mesh(config.mesh)
    loaded = load(config.checkpoint, **config.load)
    if is_first_host():
        loaded.report.print()
    params = nnx.to_pure_dict(nnx.state(loaded.model))
    batch_size = _BATCH_SIZE * num_batch_shards(mesh)
    data = DataConfig(name="", global_batch_size=batch_size, cache_mb=0)
    evaluator = FrozenEvaluator(
        config.fewshot, data, loaded.options, loaded.image_size, mesh, batch_size=batch_size
    )
    placed = shard_params(params, config.mesh, mesh)
    figures = evaluator(placed, agreement.reached)
    if figures is None:
        log.info("stopped; run the same command again")
        return None
    about = {
        "step": 0,
        "checkpoint": config.checkpoint,
        "model": loaded.options.name,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "wall_time_s": time.perf_counter() - begin,
    }
    return about | figures, evaluator.details


def _config(args: argparse.Namespace, overrides: list[str]) -> FewshotRunConfig:
    """Returns the recipe's fewshot section, changed by --config.KEY=VALUE and then by the flags."""
    mapping = _from_file(args.config) if args.config else {}
    model_overrides = []
    for override in overrides:
        prefix, _, rest = override.partition(".")
        if prefix == "model":
            model_overrides.append(rest)
            continue
        key, equals, text = rest.partition("=")
        if prefix != "config" or not equals:
            raise ConfigError(
                f"unknown argument '--{override}'",
                "the arguments of python -m vit_jax fewshot",
                "see python -m vit_jax fewshot --help",
            )
        value = parse_override(FewshotRunConfig, key, text)
        override_key(mapping, key, value, FewshotRunConfig)
    if args.checkpoint is not None:
        mapping["checkpoint"] = args.checkpoint
    if "checkpoint" not in mapping:
        raise ConfigError("no CHECKPOINT", "a file, folder or run folder", "give one")
    mapping["load"] = {**mapping.get("load", {}), **_load_options(args, model_overrides)}
    section = mapping.setdefault("fewshot", {})
    section["datasets"] = _datasets(args, section.get("datasets", {}))
    flags = {
        "shots": args.shots,
        "seeds": args.seeds,
        "l2": args.l2,
        "features": args.features,
        "batch_size": args.batch_size,
        "methods": args.method and args.method.split(","),
    }
    section.update({key: value for key, value in flags.items() if value is not None})
    config = FewshotRunConfig.from_mapping(mapping)
    if not config.fewshot.datasets:
        raise ConfigError(
            "no dataset",
            "one or more",
            "add --dataset=NAME, or --config=FILE with fewshot.datasets",
        )
    return config


def _from_file(spec: str) -> dict[str, Any]:
    """Returns the fewshot and mesh sections of a recipe, or an earlier config of this command."""
    mapping = read_mapping(spec)
    if "optimizer" not in mapping:
        return mapping
    config = Config.from_mapping(mapping)
    section = config.fewshot.to_mapping()
    for dataset in section["datasets"].values():
        dataset["data_dir"] = dataset["data_dir"] or config.data.data_dir
    return {"fewshot": section, "mesh": config.mesh.to_mapping()}


def _datasets(args: argparse.Namespace, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the datasets of --dataset or of the config, with the flags applied to each."""
    flags = {
        "train_split": args.train_split,
        "test_split": args.test_split,
        "held_out_split": args.held_out_split,
        "crop": args.crop,
    }
    flags = {key: value for key, value in flags.items() if value is not None}
    found: dict[str, Any] = {name: {**section, **flags} for name, section in given.items()}
    if args.dataset:
        found = {}
    for text in args.dataset:
        path = user_path(text)
        kind = "folder" if path.is_dir() else "csv" if path.is_file() else "tfds"
        own = path.stem if kind == "csv" else path.name if kind == "folder" else text
        name = own.split(":")[0].replace("/", "_")
        if name in found:
            raise ConfigError(
                f"two datasets are named {name!r}",
                "different names",
                "name them in fewshot.datasets of a config",
            )
        where = {} if kind == "tfds" else {"data_dir": str(path)}
        found[name] = {"name": own, "source": kind, **where, **flags}
    if args.data_dir is not None:
        for section in found.values():
            if section.get("source", "tfds") == "tfds":
                section["data_dir"] = args.data_dir
    return found


def _load_options(args: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    """Returns the arguments of `load` that differ from their defaults, as JSON values."""
    given = load_arguments(args, overrides)
    usual = {"position_resize": "zoom", "allow_missing": (), "allow_unexpected": ()}
    return {key: value for key, value in given.items() if value != usual.get(key)}


def _numbers(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers, such as 1,5,10")
    return [int(word) for word in words]


def _show(args: argparse.Namespace, config: FewshotRunConfig, result: dict[str, Any]) -> None:
    if args.json:
        print(json_text(result, what="the result"))
        return
    from rich.console import Console

    from vit_jax.tables import plain_table

    section = config.fewshot
    seeds = f"mean and standard deviation over {len(section.seeds)} seeds"
    print(f"{result['model']} from {config.checkpoint}: test accuracy (top-1), {seeds}")
    table = plain_table("dataset", right=("method", "accuracy", "+-", "chosen"))
    for name in section.datasets:
        for method in section.methods:
            for row in _rows(name, method, section.shots, result):
                table.add_row(name, *row)
    Console().print(table)


def _rows(
    name: str, method: str, shots: tuple[int, ...], result: dict[str, Any]
) -> list[tuple[str, str, str, str]]:
    if method == "knn":
        value, chosen = (result[f"knn/{name}/{key}"] for key in ("accuracy_top1", "neighbours"))
        return [("knn", f"{value:.2%}", "", f"k {chosen}")]
    if method == "linear_probe":
        value, chosen = (result[f"linear_probe/{name}/{key}"] for key in ("accuracy_top1", "c"))
        return [("linear probe", f"{value:.2%}", "", f"C {chosen:g}")]
    rows = []
    for count in shots:
        at = f"fewshot/{name}/{count}_shot"
        value, deviation, l2 = (
            result[f"{at}/{key}"] for key in ("accuracy_top1", "accuracy_top1_std", "l2")
        )
        rows.append((f"{count}-shot", f"{value:.2%}", f"{deviation:.2%}", f"l2 {l2:g}"))
    return rows
