"""Evaluate the checkpoint of a run folder, every example exactly once.

python -m vit_jax eval --workdir=runs/quickstart
python -m vit_jax eval --workdir=runs/quickstart --step=1000 --config.evaluation.splits.train=train
"""

import argparse
import math
from pathlib import Path
from typing import Any

from vit_jax.commands.process import add_process_arguments, started
from vit_jax.config.file import load_config
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, NonFiniteError, first_few
from vit_jax.storage.files import json_text
from vit_jax.storage.paths import check_output_folder, user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("--workdir", required=True, type=user_path, help="run folder")
    parser.add_argument(
        "--step", type=int, help="step of the checkpoint (default: the run's result)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table"
    )
    add_process_arguments(parser)


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from vit_jax.run.folder import read_config

    check_output_folder(args.workdir, ["report"])
    read_config(args.workdir)  # Raises an error if there is no run.
    config = load_config(str(args.workdir / "config.json"), overrides)
    if not config.evaluation.all_splits:
        raise ConfigError(
            "no split to evaluate", "evaluation.splits", "add --config.evaluation.splits.test=test"
        )
    with started(args, config):
        _evaluate(args, config)
    return 0


def _evaluate(args: argparse.Namespace, config: Config) -> None:
    from vit_jax.data.sources import class_count, open_source
    from vit_jax.evaluation.splits import SplitEvaluator
    from vit_jax.parallel.mesh import make_mesh
    from vit_jax.parallel.processes import is_first_host
    from vit_jax.report.confusion import draw_confusions
    from vit_jax.run.checkpoints import result_params
    from vit_jax.train.program import build_program
    from vit_jax.train.progress import print_summary

    mesh = make_mesh(config.mesh)
    split = next(iter(config.evaluation.all_splits.values()))
    source = open_source(config.data, split)
    num_classes = class_count(source, config.data.num_classes)
    program = build_program(config, mesh, num_classes=num_classes, num_examples=len(source))
    evaluator = SplitEvaluator(
        config,
        config.evaluation.all_splits,
        mesh,
        preprocessing=program.task.eval_preprocessing,
        make_totals=program.task.make_totals,
        variants=program.evaluated_variants,
        report=args.workdir / "report",
        suffix="" if args.step is None else f"-step-{args.step}",
    )
    params, _ = result_params(args.workdir, program.abstract.params, args.step)
    _check_finite(args.workdir, params)
    figures = evaluator(program.eval_step, params, frozen=program.load_frozen()) or {}
    bad = [name for name, value in figures.items() if not math.isfinite(value)]
    if bad:
        raise NonFiniteError(
            f"{first_few([f'{name} = {figures[name]}' for name in bad], 3)}",
            "finite figures",
            "evaluate another step with --step, or check the weights and the data",
        )
    if not is_first_host():
        return
    if config.evaluation.by_class:
        draw_confusions(args.workdir)
    if args.json:
        print(json_text(figures, what="the figures"))
    else:
        print_summary(f"evaluation: {args.workdir}", figures)


def _check_finite(workdir: Path, params: Any) -> None:
    import jax
    import jax.numpy as jnp

    from vit_jax.named_tree import named_leaves

    test = jax.jit(lambda tree: jax.tree.map(lambda leaf: jnp.isfinite(leaf).all(), tree))
    bad = [name for name, finite in named_leaves(test(params)).items() if not finite]
    if bad:
        raise NonFiniteError(
            f"weights of {workdir} are NaN or infinite: {first_few(bad, 3)}",
            "finite weights",
            "evaluate another step with --step",
        )
