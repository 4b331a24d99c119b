"""Finds run folders and reads their files."""

import dataclasses
import functools
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vit_jax.errors import RunFolderError
from vit_jax.report.labels import is_number, natural
from vit_jax.run.metrics import read_metrics

# A folder with a config.json and any of these is a run.
_RUN_FILES = ("env.json", "metrics.jsonl", "result.json")
# Folders inside a run folder that hold no runs.
_NOT_RUNS = ("checkpoints", "tensorboard", "report", "features")
STATES = ("finished", "running", "unfinished", "failed", "diverged", "not started")
# Exit codes after which the same command continues the run: success, stopped after saving a
# checkpoint, lost a host, SIGTERM, SIGINT.
_NOT_FAILED = (0, 75, 76, -15, -2)
_LOG_BYTES = 4096
# Config keys that say what a run was initialised from.
_INIT_KEYS = ("init_from", "init_from.path", "init.from", "checkpoint", "fewshot.checkpoint")
# A longer chain of initialisations is a circle.
_MAX_ANCESTORS = 20


@dataclasses.dataclass(eq=False)
class Run:
    """The files of one run folder; a file that is missing reads as empty.

    Attributes:
        path: the folder.
        name: the job's name in its sweep, else the path below the folder that was searched.
        config: config.json with dotted keys.
        environment: env.json.
        metrics: lines of metrics.jsonl.
        result: result.json; None if the run is not finished.
        job: job.json, written by a sweep.
        attempt: what the sweep recorded about the job's latest attempt.
        num_classes: from classes.json; None if unknown.
        subset: subset.json.
        problems: files that could not be read, and why.
        ancestors: the runs this one was initialised from, nearest first.
        unknown_init: why the ancestors are not known; "" if they are.
    """

    path: Path
    name: str = ""
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: dict[str, Any] = dataclasses.field(default_factory=dict)
    metrics: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    result: dict[str, Any] | None = None
    job: dict[str, Any] = dataclasses.field(default_factory=dict)
    attempt: dict[str, Any] = dataclasses.field(default_factory=dict)
    num_classes: int | None = None
    subset: dict[str, Any] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)
    ancestors: list["Run"] = dataclasses.field(default_factory=list)
    unknown_init: str = ""

    @property
    def labels(self) -> dict[str, Any]:
        """The labels that the sweep file gave the job."""
        return self.job.get("labels") or {}

    @property
    def stage(self) -> str | None:
        """The job's stage in its sweep: "search", "final" or None."""
        return self.job.get("stage")

    @property
    def seed(self) -> Any:
        """The seed, from the config or else from the labels."""
        return self.config.get("seed", self.labels.get("seed"))

    @property
    def finished(self) -> bool:
        """Whether the run has a result."""
        return self.result is not None

    @functools.cached_property
    def state(self) -> str:
        """One of STATES."""
        if self.finished:
            return "finished"
        if self.divergence_reports:
            return "diverged"
        code = self.attempt.get("exit_code")
        if self.attempt.get("failure") or (code is not None and code not in _NOT_FAILED):
            return "failed"
        if self.attempt and self.attempt.get("ended") is None and _may_be_running(self.attempt):
            return "running"
        return "unfinished" if self.metrics or self.environment else "not started"

    @property
    def divergence_reports(self) -> list[Path]:
        """The reports that training wrote when the loss was no longer finite."""
        return sorted(self.path.glob("report/divergence-*.txt"))

    @property
    def step(self) -> int | None:
        """The last step in the files."""
        if self.result is not None and "step" in self.result:
            return self.result["step"]
        return max((row["step"] for row in self.metrics), default=None)

    @functools.cached_property
    def figures(self) -> dict[str, float]:
        """The final value of every metric; the latest one if the run is not finished."""
        latest = {k: v for row in self.metrics for k, v in row.items() if k not in ("step", "time")}
        merged = latest | (self.result or {})
        return {k: v for k, v in merged.items() if is_number(v) and math.isfinite(v)}

    @property
    def wall_time_s(self) -> float | None:
        """Seconds from the start to the end, or to the last line of metrics.jsonl."""
        if self.result is not None and "wall_time_s" in self.result:
            return self.result["wall_time_s"]
        times = [row["time"] for row in self.metrics if "time" in row]
        return max(times) - min(times) if times else None

    @property
    def device(self) -> str | None:
        """The devices it ran on, e.g. "8 x TPU v4, 2 hosts"."""
        if "device_kind" not in self.environment:
            return None
        hosts = self.environment.get("host_count", 1)
        count, kind = self.environment.get("device_count", 1), self.environment["device_kind"]
        return f"{count} x {kind}" + (f", {hosts} hosts" if hosts > 1 else "")

    @property
    def short_revision(self) -> str:
        """The first ten digits of the git revision, and whether there were local changes."""
        first, _, dirty = (self.environment.get("git_revision") or "").partition("-")
        return first[:10] + (f"-{dirty}" if dirty else "")

    @property
    def init_from(self) -> str | None:
        """The path or URL of the weights it started from; None for random weights."""
        paths = (self.config.get(key) for key in _INIT_KEYS)
        return next((path for path in paths if isinstance(path, str) and path), None)

    def log_tail(self, lines: int = 12) -> list[str]:
        """Returns the last lines of the job's log, if its sweep kept one."""
        path = self.path / "log.txt"
        if not path.is_file():
            return []
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            text = file.read().decode(errors="replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]


@dataclasses.dataclass(frozen=True)
class Runs:
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
        """Returns a path relative to the folder above all runs.

        A report can thus be passed on without showing where the runs were stored. Other paths are
        returned as they are.
        """
        above = Path("/")
        if self.runs:
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
                f"no folder {folder}", "run folders, or folders that contain some", "check the path"
            )
        # The folder may lie inside a sweep.
        for place in (root, *root.parents):
            if (place / "sweep.json").is_file():
                sweeps[place] = _read_json(place / "sweep.json", [])
                break
        paths = _find(root, sweeps)
        if not paths:
            raise RunFolderError(
                f"no run in {folder}", "a folder with config.json and metrics.jsonl, or job.json",
                "pass the --workdir of `train`, or a folder above it",
            )  # fmt: skip
        for path in paths:
            runs.setdefault(path.resolve(), read_run(path, root))
    names = [run.name for run in runs.values()]
    for path, run in runs.items():
        if names.count(run.name) > 1:
            run.name = os.path.relpath(path, Path(os.path.commonpath(list(runs))))
    for run in list(runs.values()):
        _link_ancestors(run, runs)
    return Runs(sorted(runs.values(), key=lambda run: natural(run.name)), sweeps, roots)


def read_run(path: Path, root: Path | None = None) -> Run:
    """Reads one run folder.

    Args:
        path: the folder.
        root: the folder that was searched; names runs that belong to no sweep.
    """
    problems: list[str] = []
    job = _read_json(path / "job.json", problems)
    below = path.relative_to(root).as_posix() if root is not None and path != root else path.name
    names = _read_json(path / "classes.json", problems).get("names")
    return Run(
        path=path,
        name=str(job.get("name") or below),
        config=flat(_read_json(path / "config.json", problems)),
        environment=_read_json(path / "env.json", problems),
        metrics=[row for row in read_metrics(path / "metrics.jsonl") if "step" in row],
        result=_read_json(path / "result.json", problems) or None,
        job=job,
        attempt=_read_json(path / ".sweep" / "attempt.json", problems),
        num_classes=len(names) if names else None,
        subset=_read_json(path / "subset.json", problems),
        problems=problems,
    )


def flat(mapping: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns a nested dict with dotted keys; an empty dict counts as a value.

    >>> flat({"a": {"b": 1, "c": {}}, "d": [2]})
    {'a.b': 1, 'a.c': {}, 'd': [2]}
    """
    found = {}
    for key, value in mapping.items():
        nested = isinstance(value, dict) and value
        found |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def _find(root: Path, sweeps: dict[Path, dict[str, Any]]) -> list[Path]:
    """Returns the run folders below `root`, and adds the sweeps it comes across to `sweeps`."""
    found = []
    for place, folders, files in os.walk(root):
        path = Path(place)
        if "sweep.json" in files:
            sweeps[path] = _read_json(path / "sweep.json", [])
        is_run = "job.json" in files or (
            "config.json" in files and any(name in files for name in _RUN_FILES)
        )
        if is_run:
            found.append(path)
        skipped = _NOT_RUNS if is_run else ()
        folders[:] = [f for f in folders if not f.startswith(".") and f not in skipped]
    return found


def _link_ancestors(run: Run, known: Mapping[Path, Run]) -> None:
    """Fills in the runs that a run was initialised from; runs outside of `known` are read."""
    current = run
    while (origin := current.init_from) is not None:
        parent = _locate(origin, current, known)
        if parent is None:
            there = "://" in origin or Path(origin).expanduser().exists()
            what = "is not a run folder" if there else "no longer exists"
            run.unknown_init = f"{origin} {what}: its examples and compute are not known"
        elif len(run.ancestors) == _MAX_ANCESTORS:
            run.unknown_init = "the run is initialised from itself"
        if parent is None or run.unknown_init:
            return
        run.ancestors.append(parent)
        current = parent


def _locate(origin: str, run: Run, known: Mapping[Path, Run]) -> Run | None:
    """Returns the run whose folder or checkpoint `origin` is, or None.

    If the folder of a whole sweep was moved, the run is found by its job name.
    """
    if "://" in origin:
        return None
    folder = Path(origin).expanduser()
    if "checkpoints" in folder.parts:  # RUN/checkpoints/STEP
        last = len(folder.parts) - 1 - folder.parts[::-1].index("checkpoints")
        folder = Path(*folder.parts[:last])
    places = [folder.absolute()]
    if not folder.is_absolute():
        places += [parent / folder for parent in run.path.parents]
    for place in places:
        if place.resolve() in known:
            return known[place.resolve()]
        if (place / "config.json").is_file():
            return read_run(place)
    same_sweep = [r for r in known.values() if r.job and r.job.get("sweep") == run.job.get("sweep")]
    moved = [r for r in same_sweep if f"/jobs/{r.name}/" in f"{folder.as_posix()}/"]
    return max(moved, key=lambda r: len(r.name), default=None)


def _read_json(path: Path, problems: list[str]) -> dict[str, Any]:
    """Returns the object in a file; {} if there is none or it cannot be read."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        problems.append(f"{path.name}: {error}")
        return {}
    if not isinstance(content, dict):
        problems.append(f"{path.name} holds a {type(content).__name__}, not an object")
        return {}
    return content


def _may_be_running(attempt: dict[str, Any]) -> bool:
    """Whether a job's process is alive; assumed on another machine, where it cannot be checked."""
    if attempt.get("host") != platform.node():
        return True
    try:
        os.kill(int(attempt.get("pid") or 0), 0)
    except (OSError, ValueError):
        return False
    return True
