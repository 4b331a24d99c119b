"""Run many jobs, asked for in one Python file, on this machine or on a cluster.

    python -m vit_jax sweep --sweep=FILE.py[:ARG] --workdir=FOLDER
    python -m vit_jax sweep --sweep=FILE.py --workdir=FOLDER --at_once=4
    python -m vit_jax sweep --sweep=FILE.py --workdir=FOLDER --executor=slurm --slurm.partition=gpu
    python -m vit_jax sweep --sweep=FILE.py --workdir=FOLDER --executor=commands

FILE.py has get_sweep(): a list or generator of (config, overrides), Job and Selection, see
`vit_jax.sweep`. Every job is a run folder below FOLDER/jobs. The same command again goes on: what
is finished is not run again. Ctrl-C stops the jobs, which save, and exits with code 75. Jobs
outlive a launcher that is killed, and are found again.

Options of SLURM are submitit's: --slurm.gpus_per_node=8, --slurm.timeout_min=240, ...; jobs that
reach their time limit, or are preempted, go on from their checkpoint.

Exit codes: 0 all finished; 1 some jobs failed; 2 something to fix; 75 stopped.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vit_jax.commands.arguments import positive
from vit_jax.errors import EXIT_STOPPED, ConfigError, nearest
from vit_jax.sweep.launcher import EXIT_FAILED, only_launcher
from vit_jax.sweep.ledger import Ledger
from vit_jax.sweep.plan import Plan
from vit_jax.sweep.sweep_file import read_sweep
from vit_jax.sweep.table import summary
from vit_jax.train.signals import StopSignals

# What comes behind it is an option of the cluster.
OVERRIDES = "--slurm."
_ENDS = {
    0: "finished",
    EXIT_FAILED: "some jobs failed; fix them and add --retry_failed",
    EXIT_STOPPED: "stopped; the same command goes on",
}
_EXECUTORS = ("local", "slurm", "commands")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("--sweep", required=True, help="FILE.py or FILE.py:ARG")
    parser.add_argument("--workdir", required=True, type=Path, help="folder of the sweep")
    parser.add_argument(
        "--executor", default="local", metavar="NAME",
        help="local: this machine; slurm: a cluster; commands: prints them (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--at_once", type=positive, metavar="N",
        help="most jobs at the same time; locally (1) they share the machine's devices",
    )  # fmt: skip
    parser.add_argument(
        "--retry_failed", action="store_true", help="run jobs that failed before again"
    )


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    if args.executor not in _EXECUTORS:
        raise ConfigError(
            f"unknown executor {args.executor!r}", f"one of {', '.join(_EXECUTORS)}",
            f"did you mean {nearest(args.executor, _EXECUTORS)!r}?",
        )  # fmt: skip
    if overrides and args.executor != "slurm":
        raise ConfigError(
            f"--slurm.{overrides[0]} with --executor={args.executor}", "--executor=slurm",
            "leave it out, or change the executor",
        )  # fmt: skip
    sweep = read_sweep(args.sweep)
    plan = Plan(sweep, args.workdir.expanduser().absolute())
    with only_launcher(plan.folder):
        if args.executor == "commands":
            return _print_commands(plan, args)
        return _launch(plan, args, overrides)


def _launch(plan: Plan, args: argparse.Namespace, overrides: list[str]) -> int:
    from vit_jax.sweep.launcher import Launcher
    from vit_jax.sweep.table import TableView

    stop = StopSignals(
        "stopping: jobs save and end (Ctrl-C again: leave, they do so by themselves)", "left"
    )
    with stop, TableView() as view:
        engine = _build_engine(plan, args, overrides)
        ledger = _open_ledger(plan, args, view.say)
        if engine.words:
            view.say(f"{args.at_once} at once: {engine.words}")
        code = Launcher(ledger, engine, view, lambda: stop.requested).run()
        view.close(ledger.board)
    view.say(f"{_ENDS[code]}: {summary(list(ledger.board.rows.values()))}")
    return code


def _build_engine(plan: Plan, args: argparse.Namespace, overrides: list[str]) -> Any:
    if args.executor == "slurm":
        from vit_jax.sweep.slurm import SlurmEngine, slurm_options

        options = slurm_options(plan.sweep.slurm, overrides)
        return SlurmEngine(str(plan.folder), options, args.at_once)
    from vit_jax.sweep.local import LocalEngine

    return LocalEngine(args.at_once or 1)


def _print_commands(plan: Plan, args: argparse.Namespace) -> int:
    from vit_jax.sweep.printed import command_lines

    ledger = _open_ledger(plan, args, lambda line: print(f"# {line}"))
    for row in ledger.board.rows.values():
        if row.state != "finished" and not row.job.undecided:
            ledger.write_about(row.job)
    for line in command_lines(plan, ledger.board):
        print(line)
    return 0


def _open_ledger(plan: Plan, args: argparse.Namespace, say: Callable[[str], None]) -> Ledger:
    asked = {
        "sweep": args.sweep,
        "executor": args.executor,
        "started": time.time(),
        "report": plan.sweep.report,
    }
    return Ledger(plan, asked=asked, retry_failed=args.retry_failed, say=say)
