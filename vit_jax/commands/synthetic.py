"""Learn a synthetic task: what attention can learn that convolution cannot.

    python -m vit_jax synthetic --task=association --model=attention --workdir=runs/association
    python -m vit_jax synthetic --task=double_if --model=cnn --length=64 --workdir=runs/count
    python -m vit_jax synthetic --task=convolution --workdir=runs/ring --config.convolution.heads=3

Tasks: convolution (a random one, learned by attention with a bias for each offset), association
(mark the tokens that equal U times the first), double_if (count the tokens b if the first is a, the
tokens d if it is c). Models: attention; cnn and dilated_cnn of the same size; constructed, which is
attention with weights set by hand that solve the task. Examples are made from the seed. Everything
else is --config.KEY=VALUE, see vit_jax/config/synthetic.py.

The figures go to a run folder, and the same command again says that it is finished; one that was
stopped begins again, as a run takes a minute or so.
"""

import argparse
import json
import logging
import time
from pathlib import Path
from typing import Any, get_args

from vit_jax.commands.arguments import positive, whole
from vit_jax.config.file import set_key
from vit_jax.config.run import LoggingConfig
from vit_jax.config.synthetic import ModelName, SyntheticConfig, TaskName
from vit_jax.errors import EXIT_STOPPED, ConfigError
from vit_jax.schema import parse_override
from vit_jax.train.signals import StopSignals

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("--task", required=True, choices=get_args(TaskName))
    parser.add_argument("--model", choices=get_args(ModelName), help="attention is the default")
    parser.add_argument("--workdir", required=True, type=Path, help="run folder")
    parser.add_argument("--length", type=positive, help="tokens (32)")
    parser.add_argument("--seed", type=whole, help="of task, examples and first weights (0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, no table")


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from vit_jax.run.folder import RunFolder

    config = config_of(args, overrides)
    first = "stopping; the same command begins again (Ctrl-C again to end at once)"
    with StopSignals(first, "interrupted") as stop, RunFolder(args.workdir, config) as folder:
        result = folder.result
        if result is not None:
            log.info("run in %s is finished already; nothing to do", folder.path)
        else:
            folder.write_config()
            result = _run(folder, config, stop)
            if result is None:
                return EXIT_STOPPED
        _show(args, config, result)
    return 0


def config_of(args: argparse.Namespace, overrides: list[str]) -> SyntheticConfig:
    """Returns the config that arguments and "KEY=VALUE" overrides ask for.

    Raises:
        ConfigError: unknown key, wrong type or value.
    """
    mapping: dict[str, Any] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(
                f"override '--config.{override}'", "--config.KEY=VALUE", "add '=VALUE'"
            )
        set_key(mapping, key, parse_override(SyntheticConfig, key, text))
    flags = {"task": args.task, "model": args.model, "length": args.length, "seed": args.seed}
    mapping |= {key: value for key, value in flags.items() if value is not None}
    return SyntheticConfig.from_mapping(mapping)


def _run(folder: Any, config: SyntheticConfig, stop: StopSignals) -> dict[str, Any] | None:
    """Trains, measures and writes; None: stopped."""
    from vit_jax.run.metrics import MetricsWriter
    from vit_jax.synthetic.experiment import Experiment
    from vit_jax.synthetic.figures import write_offset_weights
    from vit_jax.synthetic.networks import count_parameters

    begin = time.perf_counter()
    experiment = Experiment(config)
    log.info(
        "%s: %s, %d parameters, %d tokens",
        config.task, config.model, count_parameters(experiment.model), config.length,
    )  # fmt: skip
    logging_config = LoggingConfig(tensorboard=False)
    with MetricsWriter(folder.path, logging_config, start_step=-1, run_config={}) as writer:
        for step, loss in experiment.train():
            writer.write(step, {"train/loss": loss})
            log.info("step %d/%d  loss %.4f", step, experiment.steps, loss)
            if stop.requested:
                return None
        figures = experiment.measure()
        writer.write(experiment.steps, {k: v for k, v in figures.items() if "/" in k})
    if config.task == "convolution":
        title = f"{config.model}, {config.convolution.heads} heads"
        write_offset_weights(experiment.offset_weights(), folder.path / "report", title)
    result = {"step": experiment.steps, **figures, "wall_time_s": time.perf_counter() - begin}
    folder.write_json("result.json", result)
    return result


def _show(args: argparse.Namespace, config: SyntheticConfig, result: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps(result))
        return
    if config.task == "convolution":
        print(f"error {result['eval/test/relative_error']:.2e} of the variance of the output")
        print(f"attention on the kernel's taps {result['kernel/attention_on_taps']:.2%}")
        print(f"taps among the offsets with the most attention {result['kernel/taps_found']:.0%}")
        print(f"heads with more than half on one tap {result['kernel/heads_on_one_tap']:.0%}")
        print(args.workdir / "report" / "attention.png")
        return
    from rich.console import Console

    from vit_jax.tables import plain_table

    print(f"test accuracy {result['eval/test/accuracy_top1']:.2%}")
    print(f"an output depends on tokens at most {result['reach']} away")
    table = plain_table("distance from the first token", right=("accuracy",))
    for name, value in result.items():
        if name.startswith("distance/"):
            table.add_row(name.split("/")[1], f"{value:.2%}")
    Console().print(table)
