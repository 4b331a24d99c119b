"""Run many jobs, listed in one Python file, on this machine or on a cluster.

    python -m vit_jax sweep --sweep=FILE.py[:ARG]
    python -m vit_jax sweep --sweep=FILE.py --workdir=FOLDER --at_once=4
    python -m vit_jax sweep --sweep=FILE.py --workdir=FOLDER --executor=slurm --slurm.partition=gpu
    python -m vit_jax sweep --sweep=FILE.py --workdir=FOLDER --executor=commands

FILE.py defines get_sweep(), which returns or yields (config, overrides) pairs, Job and Selection;
see `vit_jax.sweep`. Every job has a run folder below FOLDER/jobs. Run the same command again to
resume; finished jobs are not run again. Ctrl-C stops the jobs, which save first, and exits with
code 75. If the launcher is killed, its jobs keep running, and the next launcher finds them.

--slurm.KEY=VALUE sets an option of submitit, such as --slurm.gpus_per_node=8 or
--slurm.timeout_min=240. Jobs that reach the time limit or are preempted resume from a checkpoint.

Exit codes: 0 all jobs finished; 1 some failed; 2 user error; 75 stopped.
"""

import argparse
import ast
import logging
import shlex
import time
from typing import Any

from vit_jax.commands.arguments import positive_int
from vit_jax.errors import EXIT_STOPPED, ConfigError, nearest
from vit_jax.run.default_folder import default_sweep_folder
from vit_jax.run.folder import check_scheme
from vit_jax.storage.paths import check_output_folder, user_path
from vit_jax.sweep.executor import EXECUTORS, build_executor
from vit_jax.sweep.plan import Plan
from vit_jax.sweep.scheduler import EXIT_FAILED, Scheduler, launcher_lock
from vit_jax.sweep.state import open_sweep, write_record
from vit_jax.sweep.sweep_file import read_sweep
from vit_jax.sweep.table import TableView, summary
from vit_jax.train.signals import StopSignals

log = logging.getLogger(__name__)

# Prefix of the options of the cluster.
OVERRIDES = "--slurm."
_PRINT = "commands"
_ENDS = {
    0: "finished",
    EXIT_FAILED: "some jobs failed; fix the cause and add --retry_failed",
    EXIT_STOPPED: "stopped; run the same command to resume",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("--sweep", required=True, help="FILE.py or FILE.py:ARG")
    parser.add_argument(
        "--workdir",
        type=user_path,
        help="folder of the sweep, also gs://...; default: the latest"
        " runs/FILE-DATE of this sweep, or a new one",
    )
    parser.add_argument(
        "--executor",
        default="local",
        metavar="NAME",
        help=f"{' or '.join(EXECUTORS)}; {_PRINT}: only print the commands (%(default)s)",
    )
    parser.add_argument(
        "--at_once",
        type=positive_int,
        metavar="N",
        help="most jobs at the same time; local jobs (1) share the machine's devices",
    )
    parser.add_argument("--retry_failed", action="store_true", help="run failed jobs again")
    parser.add_argument(
        "--new_code",
        action="store_true",
        help="continue a sweep, and resume its jobs, although code or packages have changed",
    )


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    names = (*EXECUTORS, _PRINT)
    if args.executor not in names:
        raise ConfigError(
            f"unknown executor {args.executor!r}",
            f"one of {', '.join(names)}",
            f"did you mean {nearest(args.executor, names)!r}?",
        )
    if overrides and args.executor != "slurm":
        raise ConfigError(
            f"--slurm.{overrides[0]} with --executor={args.executor}",
            "--executor=slurm",
            "remove it, or change the executor",
        )
    folder = (args.workdir or default_sweep_folder(args.sweep)).expanduser().absolute()
    if args.workdir is None:
        log.info("sweep folder: %s (--workdir chooses another)", folder)
    check_scheme(folder)
    check_output_folder(folder, ["jobs"])
    plan = Plan(read_sweep(args.sweep), folder, new_code=args.new_code)
    with launcher_lock(plan.folder):
        if args.executor == _PRINT:
            return _print_commands(plan)
        return _launch(plan, args, {**plan.sweep.slurm, **_parse_options(overrides)})


def _launch(plan: Plan, args: argparse.Namespace, options: dict[str, Any]) -> int:
    stop = StopSignals(
        "stopping: jobs save and end (Ctrl-C again: leave now, the jobs end by themselves)",
        "left",
        warnings=False,  # Closing the terminal ends the launcher, and the jobs go on.
    )
    with stop, TableView() as view:
        executor = build_executor(args.executor, plan.folder, args.at_once, options)
        view.at_once = executor.at_once
        found = open_sweep(plan, view.say, executor=args.executor, started=time.time())
        if args.executor == "local":  # The data of a cluster need not be visible from here.
            from vit_jax.sweep.data_check import check_data

            ended = ("finished",) if args.retry_failed else ("finished", "failed", "blocked")
            check_data(one.job for one in found.values() if one.state not in ended)
        if executor.description:
            view.say(f"{args.at_once} at once: {executor.description}")
        scheduler = Scheduler(plan, executor, view.say, view.show, lambda: stop.requested)
        code = scheduler.run(retry_failed=args.retry_failed)
        jobs = list(scheduler.jobs.values())
        view.close(jobs)
    view.say(f"{_ENDS[code]}: {summary(jobs)}")
    return code


def _print_commands(plan: Plan) -> int:
    """Prints the commands of all unfinished jobs, e.g. for a cluster or a shell.

    A job comes after the jobs that it needs. Final runs are printed when their selection is made.
    """
    status = open_sweep(plan, lambda line: print(f"# {line}"), executor=_PRINT, started=time.time())
    unfinished = [name for name in plan.jobs if status[name].state != "finished"]
    for job in plan.jobs.values():
        if job.awaited_selection or job.problem or job.name not in unfinished:
            continue
        write_record(plan, job)
        needs = [need for need in job.needs if need in unfinished]
        print(f"# {job.name}" + (f", after {', '.join(needs)}" if needs else ""))
        print(shlex.join(job.command(python="python")))
    for name, selection in plan.selections.items():
        if any(plan.jobs[final].awaited_selection for final in selection.final_names):
            print(
                f"# {len(selection.seeds)} final runs of {name!r}: run this command again when the"
                f" {len(selection.candidates)} candidates are finished"
            )
    return 0


def _parse_options(texts: list[str]) -> dict[str, Any]:
    """Parses KEY=VALUE options; values are Python literals, or else text."""
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"'{OVERRIDES}{text}'", f"{OVERRIDES}KEY=VALUE", "add '=VALUE'")
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key] = value
    return options
