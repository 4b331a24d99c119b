"""Evaluate a run folder, or any weights on the test sets that papers print.

    python -m vit_jax eval --workdir=runs/quickstart
    python -m vit_jax eval --workdir=runs/quickstart --config.evaluation.splits.train=train
    python -m vit_jax eval B_16.npz --preset=imagenet,imagenet_real,imagenet_v2 --data_dir=DATA
    python -m vit_jax eval B_16.npz --preset=table2 --data_dir=DATA

Every example counts exactly once. CHECKPOINT is anything that `predict` reads. Presets are
imagenet, imagenet_real, imagenet_v2, imagenet_a, imagenet_r, imagenet_sketch and objectnet; `all`
of them; and `table2`, the columns of Table 2 of the ViT paper. They need weights with ImageNet's
1000 classes, and datasets that are prepared in --data_dir under their TFDS names; ObjectNet is
unpacked there. With `all` and `table2`, a dataset that is not there is named below the table
instead. A preset is also a split of a config: --config.evaluation.splits.real=imagenet_real.
"""

import argparse
import dataclasses
import logging
import math
from typing import TYPE_CHECKING

from vit_jax.commands.arguments import positive_int
from vit_jax.commands.load_options import add_load_arguments, load_arguments
from vit_jax.commands.process import add_process_arguments, started
from vit_jax.config.evaluation import PresetsConfig
from vit_jax.config.file import load_config
from vit_jax.config.mesh import MeshConfig
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, NonFiniteError, first_few
from vit_jax.schema import differences
from vit_jax.storage.files import json_text
from vit_jax.storage.paths import check_output_folder, user_path

if TYPE_CHECKING:
    from vit_jax.evaluation.presets import Score

log = logging.getLogger(__name__)

_BATCH_SIZE = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument(
        "checkpoint", nargs="?", help="file, folder, run folder; hf://, gs://, s3://"
    )
    parser.add_argument("--preset", metavar="NAME,...", help="test sets, see above")
    parser.add_argument("--data_dir", help="folder of datasets for --preset")
    parser.add_argument(
        "--batch_size",
        type=positive_int,
        help=f"images per batch for --preset ({_BATCH_SIZE} per device)",
    )
    parser.add_argument("--workdir", type=user_path, help="run folder")
    parser.add_argument(
        "--step", type=int, help="step of the checkpoint (default: the run's result)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table"
    )
    add_load_arguments(parser)
    add_process_arguments(parser)


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from vit_jax.run.folder import read_config

    if args.checkpoint is not None or args.preset is not None:
        return _run_presets(args, overrides)
    if args.workdir is None:
        raise ConfigError(
            "nothing to evaluate",
            "--workdir=RUN, or CHECKPOINT --preset=NAME,...",
            "see python -m vit_jax eval --help",
        )
    check_output_folder(args.workdir, ["report"])
    own = read_config(args.workdir)
    config = load_config(str(args.workdir / "config.json"), overrides)
    if not config.evaluation.all_splits and not config.task.evaluates_datasets:
        raise ConfigError(
            "no split to evaluate", "evaluation.splits", "add --config.evaluation.splits.test=test"
        )
    with started(args, config):
        _evaluate(args, config, own)
    return 0


def _run_presets(args: argparse.Namespace, overrides: list[str]) -> int:
    """Evaluates any weights on presets."""
    from vit_jax.evaluation.presets import ALL, TABLE_2, evaluate_presets, preset_rows
    from vit_jax.interop.load import load
    from vit_jax.parallel.mesh import make_mesh, num_batch_shards
    from vit_jax.parallel.processes import is_first_host

    if args.checkpoint is None or args.preset is None or args.workdir is not None:
        checkpoint = args.checkpoint or "B_16.npz"
        raise ConfigError(
            "CHECKPOINT without --preset, or --preset without CHECKPOINT",
            "a run, or weights with the test sets to measure them on",
            f"use eval --workdir={checkpoint} for a run, or eval {checkpoint}"
            " --preset=imagenet_real for weights",
        )
    if overrides:
        raise ConfigError(
            f"--config.{overrides[0]} with --preset", "arguments of --preset", "leave it out"
        )
    names = args.preset.split(",")
    rows = preset_rows(names)
    with started(args, PresetsConfig(checkpoint=args.checkpoint, presets=tuple(names))):
        mesh = make_mesh(MeshConfig())
        loaded = load(args.checkpoint, **load_arguments(args, []))
        if is_first_host():
            loaded.report.print()
        scores = evaluate_presets(
            loaded,
            rows,
            checkpoint=args.checkpoint,
            data_dir=args.data_dir,
            mesh=mesh,
            batch_size=args.batch_size or _BATCH_SIZE * num_batch_shards(mesh),
            needs_all=not {ALL, TABLE_2} & set(names),
        )
        if is_first_host():
            _print_scores(args, loaded.options.name, scores)
    return 0


def _print_scores(args: argparse.Namespace, model: str, scores: "list[Score]") -> None:
    if args.json:
        rows = [dataclasses.asdict(score) for score in scores]
        content = {"checkpoint": args.checkpoint, "model": model, "presets": rows}
        print(json_text(content, what="the scores"))
        return
    from rich.console import Console

    from vit_jax.tables import plain_table

    print(f"{model} from {args.checkpoint}")
    table = plain_table("test set", right=("images", "top-1", "95 % interval", "top-5"))
    notes = []
    for score in scores:
        if score.accuracy is None or score.interval is None or score.accuracy_top5 is None:
            table.add_row(score.title, "", "", "", "")
            notes.append(f"{score.title}: {score.note}")
            continue
        low, high = score.interval
        table.add_row(
            score.title,
            f"{score.examples:,}",
            f"{score.accuracy:.2%}",
            f"{low:.2%} to {high:.2%}",
            f"{score.accuracy_top5:.2%}",
        )
    Console().print(table)
    for note in notes:
        print(note)


def _other_settings(config: Config, own: Config) -> dict[str, list[str]]:
    """Returns "eval/SPLIT" -> the settings of its evaluation that are not the run's own."""
    rows = [(key, now) for key, now, _ in differences(config, own)]
    rows = [row for row in rows if not row[0].startswith(("evaluation.", "mesh."))]
    if config.data.data_dir != own.data.data_dir:
        rows.append(("data.data_dir", config.data.data_dir))
    of_all, known = [f"{key}={now}" for key, now in rows], own.evaluation.all_splits
    return {
        f"eval/{name}": of_all + [f"{name}={split}"] * (known.get(name, split) != split)
        for name, split in config.evaluation.all_splits.items()
    }


def _evaluate(args: argparse.Namespace, config: Config, own: Config) -> None:
    from vit_jax.data.benchmarks import NUM_CLASSES, find_benchmark, open_benchmark
    from vit_jax.data.class_names import match_classes
    from vit_jax.data.sources import class_count, open_source
    from vit_jax.parallel.mesh import make_mesh, platform_of
    from vit_jax.parallel.processes import is_first_host
    from vit_jax.report.confusion import draw_confusions
    from vit_jax.run.checkpoints import result_params
    from vit_jax.run.folder import read_class_names
    from vit_jax.run.job_folder import read_optional_json
    from vit_jax.run.result import EVALUATIONS, RESULT, SETTINGS, WEIGHTS, read_result
    from vit_jax.storage.files import write_json
    from vit_jax.train.inputs import eval_batch_size, open_splits
    from vit_jax.train.kernel_check import with_stored_kernel
    from vit_jax.train.program import build_program
    from vit_jax.train.progress import print_summary

    given, mesh = config, make_mesh(config.mesh)
    config = with_stored_kernel(config, args.workdir, platform_of(mesh))
    has_classes = config.task.uses_labels
    head = read_class_names(args.workdir) if has_classes else (), f"run {args.workdir}"
    split = next(iter(config.evaluation.all_splits.values()), config.data.train_split)
    preset = find_benchmark(split)
    if preset is None:
        source = match_classes(open_source(config.data, split), *head)
        num_classes = class_count(source, config.data.num_classes)
    else:
        source = open_benchmark(preset[0], config.data, preset[1]).source
        num_classes = config.data.num_classes or NUM_CLASSES
    program = build_program(
        config, mesh, num_classes=num_classes, num_examples=len(source), source=source
    )
    evaluator = open_splits(
        config,
        program,
        config.evaluation.all_splits,
        report=args.workdir / "report",
        suffix="" if args.step is None else f"-step-{args.step}",
        head=head,
    )
    params, _ = result_params(args.workdir, program.abstract.params, args.step)
    figures = evaluator(program.eval_step, params, frozen=program.load_frozen()) or {}
    if program.task.open_evaluator is not None:
        evaluate_more = program.task.open_evaluator(mesh, eval_batch_size(config))
        figures |= evaluate_more(params, lambda: False) or {}
    bad = [name for name, value in figures.items() if not math.isfinite(value)]
    if bad:
        raise NonFiniteError(
            f"{first_few([f'{name} = {figures[name]}' for name in bad], 3)}",
            "finite figures",
            "evaluate another step with --step, or check the weights and the data",
        )
    if not is_first_host():
        return
    evaluator.write_mistakes()
    result = read_result(args.workdir) if args.step is None else None
    if result is not None:
        path, weights = args.workdir / EVALUATIONS, {WEIGHTS: result.get(WEIGHTS)}
        before = read_optional_json(path) or {}
        kept = before if before.get(WEIGHTS) == weights[WEIGHTS] else {}
        settings = kept.get(SETTINGS, {}) | _other_settings(given, own)
        write_json(path, kept | weights | figures | {SETTINGS: settings})
        log.info("the figures are in %s; report shows those that %s lacks", path, RESULT)
    if config.measures_classes(num_classes):
        draw_confusions(args.workdir)
    if args.json:
        print(json_text(figures, what="the figures"))
    else:
        print_summary(f"evaluation: {args.workdir}", figures)
