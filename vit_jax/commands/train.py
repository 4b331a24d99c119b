"""Train a model, or resume a run.

    python -m vit_jax train --config=configs/quickstart.py
    python -m vit_jax train --config=FILE.py:ARG --workdir=DIR --config.optimizer.learning_rate=1e-3

The same command on the same folder resumes the run; if the run is finished, it only says so.
Without --workdir the folder is runs/RECIPE-DATE, and the same command continues an unfinished run.
SIGTERM, Ctrl-C, SIGUSR1, SIGUSR2, SIGXCPU or SIGHUP saves and exits with code 75. For several
processes, start the same command on every host. They find each other through SLURM, a TPU pod,
Kubernetes or Open MPI, or through --coordinator, --num_processes and --process_id.
"""

import argparse
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

from vit_jax.commands.process import add_process_arguments, started
from vit_jax.config.file import load_config
from vit_jax.config.run import Config
from vit_jax.errors import EXIT_STOPPED, ConfigError
from vit_jax.storage.paths import user_path
from vit_jax.train.signals import Stopped, StopSignals

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("--config", required=True, help="name of a recipe, FILE.py or FILE.py:ARG")
    parser.add_argument(
        "--workdir", type=user_path, help="run folder; default: runs/RECIPE-DATE, a new one"
    )
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="use only kernels whose results are equal in every run: slower on GPU, no change on"
        " CPU and TPU",
    )
    parser.add_argument(
        "--new_code",
        action="store_true",
        help="resume a run whose code or packages have changed since it was last run; the result is"
        " then not bit for bit that of a run that never stopped",
    )
    add_process_arguments(parser)


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    if args.deterministic:
        # XLA reads this when the first device is used. It then does not choose kernels by timing
        # them, and uses none that sum in an undefined order.
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true".strip()
    # Set up before the imports, so that a signal during the imports stops the run too.
    with StopSignals() as stop:
        config = load_config(args.config, overrides, partial(_auto_model, args.workdir))
        with started(args, config, lambda: stop.requested):
            workdir = args.workdir or _default_workdir(args.config)
            return _train(config, workdir, stop, args.began_s, new_code=args.new_code)


def _default_workdir(config: str) -> Path:
    """Returns the run folder of a command without --workdir, and says which it is.

    Raises:
        ConfigError: several processes, which could choose different ones.
    """
    import jax

    from vit_jax.run.default_folder import default_folder

    if jax.process_count() > 1:
        raise ConfigError(
            f"{jax.process_count()} processes without --workdir",
            "one run folder that all processes share",
            "add --workdir=DIR",
        )
    folder = default_folder(config)
    how = "continues there" if folder.exists() else "--workdir chooses another"
    log.info("run folder: %s (%s)", folder, how)
    return folder


def _auto_model(workdir: Path | None, config: Config) -> dict[str, Any]:
    from vit_jax.train.init_from import model_of_weights

    return model_of_weights(config, workdir)


def _train(
    config: Config, workdir: Path, stop: StopSignals, began_s: float, *, new_code: bool
) -> int:
    from vit_jax.parallel.processes import is_first_host
    from vit_jax.plugins import modules_of, passed_plugins
    from vit_jax.report.confusion import draw_confusions
    from vit_jax.report.run_curves import draw_curves
    from vit_jax.run.own_code import own_code
    from vit_jax.train.loop import train
    from vit_jax.train.progress import print_summary

    try:
        result = train(config, workdir, stop, began_s=began_s, new_code=new_code)
    except Stopped as stopped:
        log.info("stopped and saved at step %d; run the same command again to resume", stopped.step)
        return EXIT_STOPPED
    if is_first_host():
        picture = workdir / "report" / "curves.png"
        if config.logging.curves and not picture.exists():
            draw_curves(workdir, mixed=bool(config.data.augment.operations("mix")))
        draw_confusions(workdir)
        print_summary(f"finished: {workdir}", result)
        if picture.exists():
            print(f"curves: {picture}")
        for mistakes in sorted((workdir / "report").glob("mistakes-*.png")):
            print(f"worst mistakes: {mistakes}")
        options = "".join(
            f" --plugin={name}" for name in passed_plugins() or modules_of(own_code(config))
        )
        print(f"next: python -m vit_jax report {workdir}{options}")
    return 0
