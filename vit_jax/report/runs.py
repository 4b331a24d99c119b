"""Finds run folders and reads their files."""

import functools
import math
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.errors import FileError, RunFolderError
from vit_jax.report.labels import is_number, natural_key
from vit_jax.run.metrics import read_metrics
from vit_jax.schema import default_values
from vit_jax.storage.files import read_json

# A folder with config.json and at least one of these is a run folder.
_RUN_FILES = {"env.json", "metrics.jsonl", "result.json"}
# Folders inside a run folder that contain no runs.
_NOT_RUNS = ("checkpoints", "tensorboard", "report", "features")
# Config keys with the weights that a run was initialised from.
_INIT_KEYS = ("init_from", "init_from.path", "init.from", "checkpoint", "fewshot.checkpoint")
# Config keys that change where a run is stored or how it is logged, but not what is trained.
_BOOKKEEPING = re.compile(
    r"seed|(checkpoint|logging|divergence)(\..*)?|.*\.(data_dir|num_threads|num_workers|hash"
    r"|prefetch_batches)|mesh\..*|evaluation\.(batch_size|interval_.*)|init_from.*"
    r"|compiler_options.*|load.*"
)
# A longer chain of initialisations must be a cycle.
_MAX_ANCESTORS = 20


class Run:
    """The files of one run folder; a missing file counts as empty.

    Args:
        path: the folder.
        name: used unless job.json has one.

    Attributes:
        config: config.json with dotted keys.
        metrics: lines of metrics.jsonl.
        result: result.json; {} if the run is not finished.
        job: job.json, written by a sweep.
        attempt: what the sweep recorded about the job's latest attempt.
        figures: the final value of every metric; the latest one if the run is not finished.
        ancestors: the runs this one was initialised from, nearest first.
        unknown_init: why some ancestors are unknown; "" if all are known.
        problems: files that could not be read, and why.
    """

    def __init__(self, path: Path, name: str = ""):
        self.path = path
        self.problems: list[str] = []
        self.config = flatten(self._read("config.json"))
        self.environment = self._read("env.json")
        self.metrics = [row for row in read_metrics(path / "metrics.jsonl") if "step" in row]
        self.result = self._read("result.json")
        self.job = self._read("job.json")
        self.attempt = self._read(".sweep/attempt.json")
        self.subset = self._read("subset.json")
        self.classes: list[str] = self._read("classes.json").get("names") or []
        self.name = str(self.job.get("name") or name)
        self.labels: dict[str, Any] = self.job.get("labels") or {}
        self.finished = bool(self.result)
        latest = {k: v for row in self.metrics for k, v in row.items() if k not in ("step", "time")}
        self.figures: dict[str, float] = {
            k: v for k, v in (latest | self.result).items() if is_number(v) and math.isfinite(v)
        }
        self.ancestors: list[Run] = []
        self.unknown_init = ""

    def _read(self, name: str) -> dict[str, Any]:
        return _read_json(self.path / name, self.problems)

    @property
    def divergence_reports(self) -> list[Path]:
        """The reports that training wrote when it diverged."""
        return sorted(self.path.glob("report/divergence-*.txt"))

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The config without the seed, and without keys that do not change what is trained."""
        return {k: v for k, v in self.config.items() if not _BOOKKEEPING.fullmatch(k)}

    @property
    def init_from(self) -> str | None:
        """The path or URL of the weights it started from; None for random weights."""
        paths = (self.config.get(key) for key in _INIT_KEYS)
        return next((path for path in paths if isinstance(path, str) and path), None)

    def log_tail(self, lines: int = 12) -> list[str]:
        """Returns the last lines of the job's log, if its sweep kept one."""
        path = self.path / "log.txt"
        text = path.read_bytes()[-4096:].decode(errors="replace") if path.is_file() else ""
        return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]


class Runs(NamedTuple):
    """Everything found below some folders.

    Attributes:
        runs: sorted by name.
        sweeps: sweep folder -> its sweep.json.
        roots: the folders that were searched.
    """

    runs: list[Run]
    sweeps: dict[Path, dict[str, Any]]
    roots: list[Path]

    def shown_path(self, path: str | Path) -> str:
        """Returns a path relative to the folder above all runs; other paths stay as they are.

        So a report that is shared does not show where the runs were stored.
        """
        above = Path(os.path.commonpath([run.path for run in self.runs])).parent
        inside = above != Path(above.anchor) and Path(path).is_relative_to(above)
        return Path(path).relative_to(above).as_posix() if inside else str(path)


def read_runs(folders: Sequence[Path]) -> Runs:
    """Reads every run in the given folders and below them.

    Raises:
        RunFolderError: a folder does not exist or holds no run.
    """
    runs: dict[Path, Run] = {}
    sweeps: dict[Path, dict[str, Any]] = {}
    roots = [Path(folder).expanduser().absolute() for folder in folders]
    for folder, root in zip(folders, roots, strict=True):
        if not root.is_dir():
            raise RunFolderError(
                f"no folder {folder}", "run folders, or folders that contain them", "check the path"
            )
        paths, sweep_folders = _find(root)
        if not paths:
            raise RunFolderError(
                f"no run in {folder}",
                "a folder with config.json and metrics.jsonl, or job.json",
                "pass the --workdir of `train`, or a folder above it",
            )
        # The folder may lie inside a sweep.
        above = [p for p in (root, *root.parents) if (p / "sweep.json").is_file()][:1]
        for path in above + sweep_folders:
            sweeps[path] = _read_json(path / "sweep.json", [])
        for path in paths:
            name = path.name if path == root else path.relative_to(root).as_posix()
            runs.setdefault(path.resolve(), Run(path, name))
    names = [run.name for run in runs.values()]
    for path, run in runs.items():
        if names.count(run.name) > 1:
            run.name = os.path.relpath(path, Path(os.path.commonpath(list(runs))))
    for run in runs.values():
        _link_ancestors(run, runs)
    by_command: dict[Any, list[Run]] = defaultdict(list)
    for run in runs.values():
        if run.config:
            by_command[run.config.get("command")].append(run)
    for of_command in by_command.values():
        _fill_in_defaults(of_command)
    return Runs(sorted(runs.values(), key=lambda run: natural_key(run.name)), sweeps, roots)


def _find(root: Path) -> tuple[list[Path], list[Path]]:
    """Returns the run folders and the sweep folders at or below a folder."""
    runs, sweeps = [], []
    for place, folders, files in os.walk(root):
        is_run = "job.json" in files or ("config.json" in files and _RUN_FILES & {*files})
        runs += [Path(place)] if is_run else []
        sweeps += [Path(place)] if "sweep.json" in files else []
        skipped = _NOT_RUNS if is_run else ()
        folders[:] = [f for f in folders if not f.startswith(".") and f not in skipped]
    return runs, sweeps


def _fill_in_defaults(runs: Sequence[Run]) -> None:
    """Gives runs the default of this version for config keys that only other runs have.

    Runs of another version or model family lack keys. They are compared with those of the same
    command.
    """
    keys = {key for run in runs for key in run.config}
    if all(run.config.keys() == keys for run in runs):
        return
    from vit_jax.config.run import Config
    from vit_jax.models.registry import AutoConfig  # Has the options of all families.

    defaults = default_values(Config) | default_values(AutoConfig, "model.")
    for run in runs:
        own = {key[: dot.start()] for key in run.config for dot in re.finditer(r"\.|$", key)}
        missing = flatten({field: defaults[field] for field in defaults.keys() - own})
        run.config |= {key: value for key, value in missing.items() if key in keys}


def flatten(mapping: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns a nested dict with dotted keys; an empty dict counts as a value.

    >>> flatten({"a": {"b": 1, "c": {}}, "d": [2]})
    {'a.b': 1, 'a.c': {}, 'd': [2]}
    """
    found = {}
    for key, value in mapping.items():
        nested = isinstance(value, dict) and value
        found |= flatten(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def _link_ancestors(run: Run, known: Mapping[Path, Run]) -> None:
    """Fills in the ancestors of a run; ancestors outside `known` are read from their folders."""
    current = run
    while (origin := current.init_from) is not None:
        parent = _locate(origin, current, known)
        if parent is None:
            there = "://" in origin or Path(origin).expanduser().exists()
            what = "is not a run folder" if there else "no longer exists"
            run.unknown_init = f"{origin} {what}: its examples and compute are not known"
            return
        if len(run.ancestors) == _MAX_ANCESTORS:
            run.unknown_init = "the run is initialised from itself"
            return
        run.ancestors.append(parent)
        current = parent


def _locate(origin: str, run: Run, known: Mapping[Path, Run]) -> Run | None:
    """Returns the run whose folder, or whose checkpoint, is at `origin`; None if there is none.

    If the folder of a whole sweep was moved, the run is found by its job name.
    """
    if "://" in origin:
        return None
    folder = Path(origin).expanduser()
    if "checkpoints" in folder.parts:  # RUN/checkpoints/STEP
        folder = folder.parents[folder.parts[::-1].index("checkpoints")]
    relative = [] if folder.is_absolute() else [parent / folder for parent in run.path.parents]
    for place in (folder.absolute(), *relative):
        if place.resolve() in known:
            return known[place.resolve()]
        if (place / "config.json").is_file():
            return Run(place, place.name)
    same_sweep = [r for r in known.values() if r.job and r.job.get("sweep") == run.job.get("sweep")]
    moved = [r for r in same_sweep if f"/jobs/{r.name}/" in f"{folder.as_posix()}/"]
    return max(moved, key=lambda r: len(r.name), default=None)


def _read_json(path: Path, problems: list[str]) -> dict[str, Any]:
    """Returns the content of a file, or {}. Adds to `problems` why a file cannot be read."""
    try:
        return read_json(path) if path.is_file() else {}
    except FileError as error:
        problems.append(error.got.replace(str(path), path.name))
        return {}
