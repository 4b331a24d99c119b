"""One run folder: its files, and the columns of a report that are computed from them.

To add a column, write a property of `Run` and add its name to COLUMNS.
"""

import functools
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd

from vit_jax.config.fewshot import UNTRAINED
from vit_jax.errors import FileError
from vit_jax.losses import formula_of
from vit_jax.models.options import SIZES, sized_name
from vit_jax.report.labels import FROZEN_FEATURES, family, is_number
from vit_jax.report.run_files import (
    ClassesFile,
    ConfigFile,
    DataFile,
    EnvironmentFile,
    JobFile,
    read_optional,
)
from vit_jax.run.environment import CHANGED_CODE, changed_code
from vit_jax.run.job_folder import Attempt
from vit_jax.run.metrics import read_metrics
from vit_jax.run.result import EVALUATIONS, RESULT, SETTINGS, WEIGHTS, read_result
from vit_jax.run.time_account import read_sessions, why_failed

STATES = ("finished", "running", "unfinished", "failed", "not started")
# Properties of `Run` that are columns. Columns of numbers are also metrics.
COLUMNS = (
    "name", "state", "stage", "model", "family", "dataset", "seed", "device", "revision", "step",
    "wall_time_s", "train_examples", "examples_seen", "train_exaflops", "pretrain_examples",
    "pretrain_exaflops",
)  # fmt: skip
# Config keys with the weights that a run was initialised from.
_INIT_KEYS = ("init_from", "checkpoint")
# Config keys that change where a run is stored or how it is logged, but not what is trained.
_BOOKKEEPING = re.compile(
    r"seed|(checkpoint|logging|profile)(\..*)?|.*\.(data_dir|num_threads|num_workers|hash"
    r"|cache_mb|cache_dir|cache_dir_gb)|mesh\..*|evaluation\.(batch_size|interval_.*)"
    r"|init_from.*|compiler_options.*|compile_cache|load.*"
)


class Run:
    """One run folder; a missing file counts as empty.

    The properties listed in COLUMNS are the columns of a report that are computed from a run. The
    `name` is used unless job.json has one.

    Attributes:
        config: config.json with dotted keys.
        metrics: metrics.jsonl, one row per line and one column per metric; the index is the step.
        result: result.json; {} if the run is not finished.
        job: job.json, written by a sweep.
        attempt: the latest start of a sweep's job; None: no sweep has started it.
        figures: the final value of every metric; the latest one if the run is not finished.
        not_finite: the metrics whose final value is infinite or NaN.
        ancestors: the runs this one was initialised from, nearest first.
        shares: of each ancestor, the share of its steps before the checkpoint that was taken.
        unknown_init: why some ancestors are unknown; "" if all are known.
        problems: files that could not be read, and why.
    """

    def __init__(self, path: Path, name: str = ""):
        self.path = path
        self.problems: list[str] = []
        self.config = flatten(self._read("config.json", ConfigFile))
        self.environment = self._read("env.json", EnvironmentFile)
        rows = read_metrics(path / "metrics.jsonl")
        self.metrics = pd.DataFrame(rows or {"step": []}).set_index("step")
        self.result = self._read_result()
        self.job = self._read("job.json", JobFile)
        attempt = self._read(".sweep/attempt.json")
        self.attempt = Attempt.from_mapping(attempt) if attempt else None
        self._data = self._read("data.json", DataFile)
        self.classes: list[str] = self._read("classes.json", ClassesFile).get("names") or []
        self.name = str(self.job.get("name") or name)
        self.labels: dict[str, Any] = self.job.get("labels") or {}
        self.finished = bool(self.result)
        latest = {k: v for row in rows for k, v in row.items() if k not in ("step", "time")}
        final = self.result.get("seconds", {})
        latest |= {f"seconds/{part}": seconds for part, seconds in final.items()}
        later = self._read(EVALUATIONS)
        if not self.finished or later.get(WEIGHTS) != self.result.get(WEIGHTS):
            later = {}
        settings = later.get(SETTINGS)
        self._later_settings: dict[str, list[str]] = settings if isinstance(settings, dict) else {}
        self._measured_in_training = latest.keys() | self.result.keys()
        numbers = {k: v for k, v in (later | latest | self.result).items() if is_number(v)}
        self.figures: dict[str, float] = {k: v for k, v in numbers.items() if math.isfinite(v)}
        self.not_finite = numbers.keys() - self.figures.keys()
        self.ancestors: list[Run] = []
        self.shares: list[float] = []
        self.unknown_init = ""

    def _read(self, name: str, kind: Any = None) -> dict[str, Any]:
        return read_optional(self.path / name, self.problems, kind)

    def _read_result(self) -> dict[str, Any]:
        try:
            return read_result(self.path, FileError) or {}
        except FileError as error:
            self.problems.append(_problem(self.path / RESULT, error))
            return {}

    @functools.cached_property
    def failure(self) -> str | None:
        """The error that ended its latest session, "" if not known; None: it has not failed."""
        return None if self.finished else why_failed(read_sessions(self.path))

    @property
    def measured(self) -> dict[str, int]:
        """Metric -> number of its values in metrics.jsonl."""
        return {str(name): int(times) for name, times in self.metrics.count().items()}

    def curve(self, metric: str) -> pd.Series:
        """Returns the values of a metric by step; empty if the run has not measured it."""
        return self.metrics.get(metric, pd.Series(dtype=float)).dropna()

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The config without the seed, and without keys that do not change what is trained."""
        return {k: v for k, v in self.config.items() if not _BOOKKEEPING.fullmatch(k)}

    @property
    def more_metrics(self) -> list[str]:
        """The names in `evaluation.metrics`."""
        names = self.config.get("evaluation.metrics")
        return [n for n in names if isinstance(n, str)] if isinstance(names, list) else []

    @functools.cached_property
    def start(self) -> dict[str, str]:
        """The weights that it started from or measured, without the seed in their paths."""
        paths = {key: self.config.get(key) for key in _INIT_KEYS}
        return {k: re.sub(r"seed\D?\d+", "seed", v) for k, v in paths.items() if isinstance(v, str)}

    @property
    def fingerprint(self) -> str | None:
        """What identifies its training examples; None: not known."""
        return self._data.get("fingerprint")

    @property
    def places(self) -> dict[str, Any]:
        """Config key -> folder or file of images, but not the folder of TFDS datasets."""
        keys = [key for key in self.config if key.endswith(".data_dir")]
        sources = {key: self.config.get(f"{key.removesuffix('data_dir')}source") for key in keys}
        return {key: self.config[key] for key in keys if sources[key] not in (None, "tfds")}

    def other_settings(self, metric: str) -> list[str]:
        """Settings with which `eval` measured a metric, as far as they differ from the run's."""
        if metric in self._measured_in_training:
            return []
        split = "/".join(metric.split("/")[:2]).partition("@")[0]
        return self._later_settings.get(split, [])

    @property
    def loss(self) -> str | None:
        """The task and the formula of the loss that its evaluations have; None: not known."""
        return formula_of(self.config) or None

    def test_data(self, metric: str) -> tuple[Any, Any, float | None, str | None]:
        """What is known of the images behind a metric: dataset, split, number, fingerprint."""
        kind, name, *_ = (*metric.split("/"), "")
        count = self.figures.get(f"{kind}/{name}/examples")
        if kind in FROZEN_FEATURES:
            of = f"fewshot.datasets.{name}"
            return self.config.get(f"{of}.name"), self.config.get(f"{of}.test_split"), count, None
        if kind != "eval":
            return None, None, None, None
        fingerprint = (self._data.get("evaluated") or {}).get(name)
        return self.dataset, self.evaluated_split(name), count, fingerprint

    def evaluated_split(self, name: str) -> str | None:
        """The split of the dataset that the evaluation `name` measures, as the config has it."""
        keys = [f"evaluation.{key}.{name}" for key in ("splits", "final_splits")]
        return next(filter(None, map(self.config.get, keys)), None)

    @property
    def init_from(self) -> str | None:
        """The path or URL of the weights it started from; None for random weights."""
        paths = (self.config.get(key) for key in _INIT_KEYS)
        found = next((path for path in paths if isinstance(path, str) and path), None)
        return None if found is None or found.startswith(UNTRAINED) else found

    @property
    def state(self) -> str:
        """One of STATES."""
        if self.finished:
            return "finished"
        if self.attempt is not None and self.attempt.why_failed:
            return "failed"
        if self.attempt is not None and self.attempt.may_be_running:
            return "running"
        if self.failure is not None:
            return "failed"
        return "unfinished" if len(self.metrics) or self.environment else "not started"

    @property
    def stage(self) -> str | None:
        """Stage of the sweep's job: "search" or "final"."""
        return self.job.get("stage")

    @property
    def model(self) -> Any:
        """Name of the model, from the labels, the config or the result, and sizes that differ."""
        name = self._find_name("model", "model.name")
        if not isinstance(name, str) or name != self.config.get("model.name"):
            return name
        return sized_name(name, {size: self.config.get(f"model.{size}") for size in SIZES})

    @property
    def family(self) -> str | None:
        return family(self.model)

    @property
    def dataset(self) -> Any:
        """Name of the dataset, from the labels, the config or the result."""
        found, place = self._find_name("dataset", "data.name"), self.config.get("data.data_dir")
        # Recipes for folders have this name for any folder.
        return Path(place).name if found == "folder" and isinstance(place, str) else found

    def _find_name(self, label: str, key: str) -> Any:
        configured = self.config.get(label, self.config.get(key, self.result.get(label)))
        return self.labels.get(label, configured)

    @property
    def seed(self) -> Any:
        """The seed, from the config or else from the labels."""
        return self.config.get("seed", self.labels.get("seed"))

    @property
    def device(self) -> str | None:
        """The devices it ran on, e.g. "8 x TPU v4, 2 hosts"."""
        if "device_kind" not in self.environment:
            return None
        hosts = self.environment.get("host_count", 1)
        count, kind = self.environment.get("device_count", 1), self.environment["device_kind"]
        return f"{count} x {kind}" + (f", {hosts} hosts" if hosts > 1 else "")

    @property
    def revision(self) -> str | None:
        return self.environment.get("git_revision")

    @functools.cached_property
    def changed_code(self) -> str:
        """A note if it was resumed with other code or packages; "" if not."""
        return CHANGED_CODE if changed_code(self.path) else ""

    @property
    def step(self) -> int | None:
        """The last step in the files."""
        return self.result.get("step", max(self.metrics.index, default=None))

    @property
    def wall_time_s(self) -> float | None:
        """Seconds from the start to the end, or to the last line of metrics.jsonl."""
        times = self.curve("time")
        logged = float(times.max() - times.min()) if len(times) else None
        return self.result.get("wall_time_s", logged)

    @property
    def train_examples(self) -> int | None:
        """Number of distinct examples in the training split."""
        return self.result.get("train_examples")

    @property
    def examples_seen(self) -> int | None:
        """Steps times batch size."""
        return self.result.get("examples_seen")

    @property
    def train_exaflops(self) -> float | None:
        """Training compute in 1e18 FLOPs."""
        return self.result.get("train_exaflops")

    @property
    def pretrain_examples(self) -> int | None:
        """Largest number of examples of the runs it was initialised from, or else its own."""
        values = self._of_ancestors("train_examples")
        return None if values is None else max(values)

    @property
    def pretrain_exaflops(self) -> float | None:
        """Compute of the checkpoints it was initialised from, or else its own, in 1e18 FLOPs."""
        values = self._of_ancestors("train_exaflops")
        if values is None:
            return None
        return sum(v * share for v, share in zip(values, self.shares or [1], strict=True))

    def _of_ancestors(self, figure: str) -> list[Any] | None:
        """Returns a figure of each ancestor, or else its own; None: one is not known."""
        values = [getattr(run, figure) for run in self.ancestors or [self]]
        return None if self.unknown_init or None in values else values

    @property
    def unknown_pretraining(self) -> str:
        """Why its pre-training is not known; "" if it is."""
        known = None not in (self.pretrain_examples, self.pretrain_exaflops)
        if known or self.unknown_init or not self.ancestors:
            return self.unknown_init
        return f"{self.ancestors[0].name} does not say what it was trained on"


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


def _problem(path: Path, error: FileError) -> str:
    """Returns why a file cannot be read, without the path of its folder."""
    return error.got.replace(str(path), path.name)
