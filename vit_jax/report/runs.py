"""Finds run folders and reads what lies in them; nothing else is asked of a run."""

import dataclasses
import functools
import json
import math
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_jax.errors import RunFolderError
from vit_jax.run.metrics import read_metrics

# Beside a config.json, any of these makes a folder one of a run.
_SIGNS = ("env.json", "metrics.jsonl", "result.json")
# Folders inside a run folder in which no run lies.
_NOT_RUNS = ("checkpoints", "tensorboard", "report", "features")
_SWEEP_FILE = "sweep.json"
STATES = ("finished", "running", "unfinished", "failed", "diverged", "not started")
# Exit codes after which the same command goes on: done; stopped and saved; a host was lost; ended
# by SIGTERM, SIGINT.
_NOT_FAILED = (0, 75, 76, -15, -2)
_LOG_END = 4096


@dataclasses.dataclass(frozen=True)
class Run:
    """What one run folder says.

    Attributes:
        path: the folder.
        name: as its sweep calls it; else its path below the folder that was searched.
        config: config.json with dotted keys; empty where there is none.
        environment: env.json.
        rows: lines of metrics.jsonl.
        result: result.json; None: not finished.
        job: job.json, as a sweep writes it; empty where there is none.
        attempt: what the sweep notes of the latest time that the job was started.
        classes: number of classes; None: not said.
        subset: subset.json.
        problems: files that could not be read, and why.
    """

    path: Path
    name: str
    config: dict[str, Any]
    environment: dict[str, Any]
    rows: list[dict[str, Any]]
    result: dict[str, Any] | None
    job: dict[str, Any]
    attempt: dict[str, Any] = dataclasses.field(default_factory=dict)
    classes: int | None = None
    subset: dict[str, Any] = dataclasses.field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def labels(self) -> dict[str, Any]:
        """The words by which the sweep's author groups runs."""
        return self.job.get("labels") or {}

    @property
    def stage(self) -> str | None:
        """What its sweep makes it for: "search", "final" or None."""
        return self.job.get("stage")

    @property
    def seed(self) -> Any:
        """The seed of the config, or of the labels."""
        return self.config.get("seed", self.labels.get("seed"))

    @functools.cached_property
    def state(self) -> str:
        """How far it is: one of STATES."""
        if self.result is not None:
            return "finished"
        if list(self.path.glob("report/divergence-*.txt")):
            return "diverged"
        code = self.attempt.get("exit_code")
        if self.attempt.get("failure") or (code is not None and code not in _NOT_FAILED):
            return "failed"
        if self.attempt and self.attempt.get("ended") is None and _may_be_alive(self.attempt):
            return "running"
        return "unfinished" if self.rows or self.environment else "not started"

    def log_end(self, lines: int = 12) -> list[str]:
        """Returns the last lines of what the job printed, where a sweep has kept it."""
        path = self.path / "log.txt"
        if not path.is_file():
            return []
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_END))
            text = file.read().decode(errors="replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return self.result is not None

    @property
    def step(self) -> int | None:
        """The last step that is on file."""
        if self.result is not None and "step" in self.result:
            return self.result["step"]
        return max((row["step"] for row in self.rows), default=None)

    @functools.cached_property
    def figures(self) -> dict[str, float]:
        """The final figures; of a run that is not finished, the latest of each."""
        latest = {k: v for row in self.rows for k, v in row.items() if k not in ("step", "time")}
        return {k: v for k, v in (latest | (self.result or {})).items() if _is_number(v)}

    @property
    def wall_time_s(self) -> float | None:
        """Seconds from start to end, or to the last line."""
        if self.result is not None and "wall_time_s" in self.result:
            return self.result["wall_time_s"]
        times = [row["time"] for row in self.rows if "time" in row]
        return max(times) - min(times) if times else None

    @property
    def device(self) -> str | None:
        """What it ran on, e.g. "8 x TPU v4, 2 hosts"."""
        if "device_kind" not in self.environment:
            return None
        hosts = self.environment.get("host_count", 1)
        count, kind = self.environment.get("device_count", 1), self.environment["device_kind"]
        return f"{count} x {kind}" + (f", {hosts} hosts" if hosts > 1 else "")


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search through folders found.

    Attributes:
        runs: in the order of their names.
        sweeps: sweep folder -> its sweep.json.
        roots: the folders that were searched.
    """

    runs: list[Run]
    sweeps: dict[Path, dict[str, Any]]
    roots: list[Path]


def find_runs(folders: Sequence[Path]) -> Found:
    """Reads every run in some folders and below them.

    Raises:
        RunFolderError: a folder that is not there or holds no run.
    """
    runs: dict[Path, Run] = {}
    sweeps: dict[Path, dict[str, Any]] = {}
    roots = [Path(folder).expanduser().absolute() for folder in folders]
    for folder, root in zip(folders, roots, strict=True):
        if not root.is_dir():
            raise RunFolderError(
                f"no folder {folder}", "run folders, or folders that hold some", "check the path"
            )
        # A folder inside a sweep belongs to it, too.
        for place in (root, *root.parents):
            if (place / _SWEEP_FILE).is_file():
                sweeps[place] = _read_json(place / _SWEEP_FILE, [])
                break
        paths = list(_walk(root, sweeps))
        if not paths:
            raise RunFolderError(
                f"no run in {folder}", "a folder with config.json and metrics.jsonl, or job.json",
                "name the --workdir of `train`, or a folder above it",
            )  # fmt: skip
        for path in paths:
            runs.setdefault(path.resolve(), read_run(path, root))
    names = [run.name for run in runs.values()]
    for path, run in runs.items():
        if names.count(run.name) > 1:
            shown = os.path.relpath(path, Path(os.path.commonpath(list(runs))))
            runs[path] = dataclasses.replace(run, name=shown)
    return Found(sorted(runs.values(), key=lambda run: natural(run.name)), sweeps, roots)


def read_run(path: Path, root: Path | None = None) -> Run:
    """Reads one run folder.

    Args:
        path: the folder.
        root: the folder that was searched, for a run without a name of its own.
    """
    problems: list[str] = []
    job = _read_json(path / "job.json", problems)
    inside = root is not None and path != root
    plain = path.relative_to(root).as_posix() if inside and root else path.name
    result = _read_json(path / "result.json", problems)
    names = _read_json(path / "classes.json", problems).get("names")
    return Run(
        path=path,
        name=str(job.get("name") or plain),
        config=flat(_read_json(path / "config.json", problems)),
        environment=_read_json(path / "env.json", problems),
        rows=[row for row in read_metrics(path / "metrics.jsonl") if "step" in row],
        result=result or None,
        job=job,
        attempt=_read_json(path / ".sweep" / "attempt.json", problems),
        classes=len(names) if names else None,
        subset=_read_json(path / "subset.json", problems),
        problems=tuple(problems),
    )


def shown_path(path: str | Path, runs: Sequence[Run]) -> str:
    """Returns a path as a report shows it: from above the folder that holds all its runs.

    So a report can be handed on: it does not tell where on a machine the runs lay. A path elsewhere
    stays as it is.
    """
    above = Path(os.path.commonpath([run.path for run in runs])).parent if runs else Path("/")
    inside = above != Path(above.anchor) and Path(path).is_relative_to(above)
    return Path(path).relative_to(above).as_posix() if inside else str(path)


def flat(mapping: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested dicts with dotted keys; empty ones are values.

    >>> flat({"a": {"b": 1, "c": {}}, "d": [2]})
    {'a.b': 1, 'a.c': {}, 'd': [2]}
    """
    found = {}
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def natural(text: Any) -> list[tuple[int, float, str]]:
    """Returns a key that sorts numbers in a text by their size.

    >>> sorted(["seed10", "seed9"], key=natural)
    ['seed9', 'seed10']
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return [(0, float(text), "")]
    parts = re.split(r"(\d+)", str(text))
    return [(0, float(p), "") if p.isdigit() else (1, 0.0, p) for p in parts if p]


def _walk(root: Path, sweeps: dict[Path, dict[str, Any]]) -> list[Path]:
    found = []
    for place, folders, files in os.walk(root):
        path, here = Path(place), set(files)
        if _SWEEP_FILE in here:
            sweeps[path] = _read_json(path / _SWEEP_FILE, [])
        is_run = "job.json" in here or ("config.json" in here and here.intersection(_SIGNS))
        if is_run:
            found.append(path)
        inside = _NOT_RUNS if is_run else ()
        folders[:] = [f for f in folders if not f.startswith(".") and f not in inside]
    return found


def _read_json(path: Path, problems: list[str]) -> dict[str, Any]:
    """Returns the object in a file; {} where there is none or it cannot be read."""
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


def _may_be_alive(attempt: dict[str, Any]) -> bool:
    """Whether the process of a job runs; of one on another machine nobody here knows."""
    if attempt.get("host") != platform.node():
        return True
    try:
        os.kill(int(attempt.get("pid") or 0), 0)
    except (OSError, ValueError):
        return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
