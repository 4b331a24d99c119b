"""List runs: state, step, score, time left.

    python -m vit_jax runs                      all runs below the folder runs/
    python -m vit_jax runs runs --sort=score --json
    watch -n 5 python -m vit_jax runs runs/sweep

A run may be training on this machine, on another one that shares the disk, or in a bucket.
"""

import argparse
import dataclasses
import json
import math
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vit_jax.errors import ConfigError, RunFolderError
from vit_jax.run.environment import CHANGED_CODE
from vit_jax.run.find import find_runs
from vit_jax.run.job_folder import read_all
from vit_jax.run.status import STATES, RunStatus, read_status
from vit_jax.run.time_account import ago_text
from vit_jax.storage.paths import user_path

if TYPE_CHECKING:
    from rich.table import Table

_COLOURS = {"failed": "red", "killed": "red", "running": "green"}
_SORTS = ("state", "name", "step", "score", "eta", "updated")
_WIDTH_WITHOUT_TERMINAL = 160


class _Row(NamedTuple):
    name: str
    status: RunStatus


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument(
        "folders",
        nargs="*",
        type=user_path,
        metavar="FOLDER",
        help="run folders, sweep folders, or folders above them; default: runs",
    )
    parser.add_argument(
        "--sort",
        choices=_SORTS,
        default="state",
        help="state: running first, then by score (default)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per run")


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from rich.console import Console

    if overrides:
        raise ConfigError(f"--config.{overrides[0]}", "no override", "leave it out")
    folders = args.folders or [user_path("runs")]
    rows = _read(folders, args.sort)
    if args.json:
        for row in rows:
            print(json.dumps({"run": row.name, **dataclasses.asdict(row.status)}))
        return 0
    console = Console()
    console = console if console.is_terminal else Console(width=_WIDTH_WITHOUT_TERMINAL)
    console.print(_table(rows))
    return 0


def _read(folders: list[Path], sort: str) -> list[_Row]:
    """Returns the status of every run at or below some folders, sorted.

    Raises:
        RunFolderError: a folder does not exist, or there is no run.
    """
    found: dict[Path, str] = {}
    for folder in folders:
        root = folder.expanduser().absolute()
        if not root.is_dir():
            raise RunFolderError(
                f"no folder {folder}",
                "run folders, or folders that contain them",
                "give the --workdir of `train` or `sweep`, or a folder above it",
            )
        for path in find_runs(root)[0]:
            name = path.name if path == root else path.relative_to(root).as_posix()
            found[path] = name if len(folders) == 1 else f"{folder}/{name}"
    if not found:
        raise RunFolderError(
            f"no run in {', '.join(map(str, folders))}",
            "a folder with runs",
            "start one with python -m vit_jax train --config=configs/quickstart.py",
        )
    statuses = read_all(read_status, list(found))
    rows = [_Row(name, status) for name, status in zip(found.values(), statuses, strict=True)]
    return sorted(rows, key=lambda row: _sort_key(row, sort))


def _sort_key(row: _Row, sort: str) -> tuple:
    """Returns the key of a row: the best score, the latest and the most advanced run first."""
    status = row.status
    score = math.inf if status.score is None else -status.score
    first = {
        "state": STATES.index(status.state),
        "name": 0,
        "step": -status.step,
        "score": score,
        "eta": math.inf if status.eta_s is None else status.eta_s,
        "updated": -(status.updated or 0),
    }[sort]
    numbered = [part for part in re.split(r"(\d+)", row.name) if part]
    parts = [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in numbered]
    return (first, parts) if sort == "name" else (first, score, parts)


def _table(rows: list[_Row]) -> "Table":
    """Returns a table of runs, with the number of runs in each state below it."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    states = [row.status.state for row in rows]
    counts = [f"{states.count(state)} {state}" for state in STATES if state in states]
    table = Table(box=box.SIMPLE_HEAD, caption=", ".join(counts), caption_justify="left")
    table.add_column("run", overflow="fold")
    for column in ("step", "score", "time", "eta", "updated"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for name, status in rows:
        state = f"{status.state}: {status.note}" if status.note else status.state
        state += f", {CHANGED_CODE}" if status.changed_code else ""
        ago = None if status.updated is None else max(time.time() - status.updated, 0)
        table.add_row(
            escape(name),
            status.steps_text,
            status.score_text,
            status.time_text,
            status.eta_text,
            "" if ago is None else ago_text(ago),
            f"[{_COLOURS.get(status.state, 'none')}]{escape(state)}[/]",
        )
    return table
