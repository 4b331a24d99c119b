"""The content of a sweep file: jobs, selections, and lists of overrides.

A sweep file is a Python file with `get_sweep()` or `get_sweep(arg)`. It returns, or yields, `Job`s,
`Selection`s and plain (config, overrides) pairs. It may also define

    SLURM           dict: options for --executor=slurm
    REPORT          dict: title, question, tables, plots and curves for the `report` command
    get_report(arg) instead of REPORT, if the report depends on ARG
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from vit_jax.config.file import run_python
from vit_jax.errors import SweepError, nearest
from vit_jax.report.requests import read_report

# Commands that write a run folder and can resume.
COMMANDS = ("train", "fewshot")
_LONGEST_VALUE = 48  # in a derived name
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+,-]*(/[A-Za-z0-9][A-Za-z0-9._=+,-]*)*")

Overrides = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Job:
    """One run.

    "job:NAME" as the value of an override (such as init_from) or of an argument stands for the
    folder of another job of the sweep. This job starts once that job is finished. For example,
    few-shot evaluation of a pretrained model:

        Job(None, command="fewshot", arguments=["job:pretrain", "--dataset=digits"], name="shots")

    Attributes:
        config: "FILE.py" or "FILE.py:ARG"; None for commands that take no config file.
        overrides: dotted config key -> value.
        name: folder below SWEEP_FOLDER/jobs; may contain "/". None: derived from the overrides in
            which the unnamed jobs differ. If you will add jobs to the sweep later, name its jobs,
            so that their folders stay the same.
        labels: columns by which reports group runs, such as {"model": "ViT-B/16"}.
        command: `vit_jax` command that runs the job.
        arguments: further arguments of the command, such as ("--deterministic",).
        stage: "final" for runs to report, "search" for candidates of a selection.

    Raises:
        SweepError: an attribute is invalid.
    """

    config: str | None
    overrides: Overrides = dataclasses.field(default_factory=dict)
    name: str | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    command: str = "train"
    arguments: Sequence[str] = ()
    stage: Literal["search", "final"] | None = None

    def __post_init__(self):
        where = f"job {self.name!r}" if self.name else "a job"
        _check_choice(where, "command", self.command, COMMANDS)
        if not isinstance(self.config, str) and (self.command == "train" or self.config):
            raise SweepError(
                f"{where} has the config {self.config!r}",
                "'FILE.py' or 'FILE.py:ARG'",
                "give the path of a config file",
            )
        if not isinstance(self.overrides, Mapping):
            raise SweepError(
                f"{where} has the overrides {self.overrides!r}",
                "a dict such as {'seed': 1}",
                "pass a dict",
            )
        _check_name(self.name, where)
        try:
            json.dumps([dict(self.overrides), dict(self.labels), list(self.arguments)])
        except TypeError as error:
            raise SweepError(
                f"{where} has a value that JSON cannot hold ({error})",
                "numbers, strings, booleans, None, lists and dicts",
                "convert it with float() or str()",
            ) from None


@dataclasses.dataclass(frozen=True)
class Selection:
    """Runs candidates, selects the best by a metric, and repeats it with several seeds.

    The selection is made when all candidates are finished; of equal scores, the first wins. The
    final runs use the config and overrides of the selected candidate. `final_config` and
    `final_overrides` override them, usually to train on the whole training split and to evaluate
    the test split. Candidates are named search/NAME/..., final runs final/NAME/seed0, ...

    Source: arXiv:2010.11929, sections 4.1 and B.1.1: hyperparameters are selected on a dev split;
    results are reported on the test split.

    Attributes:
        name: of the selection; may contain "/".
        candidates: training jobs or (config, overrides) pairs.
        metric: key of result.json, e.g. "eval/dev/accuracy_top1".
        mode: whether the largest or the smallest value is best.
        seeds: one final run per seed; empty: no final runs.
        final_config: config of the final runs; None: the candidate's.
        final_overrides: overrides of the final runs, on top of the candidate's.
        labels: of all jobs of the selection.
        on_failed: "wait": the selection waits until failed candidates have been run again; "skip":
            it ignores failed candidates.
        choose_on_test: allows selection by a metric on a split that the final runs report.

    Raises:
        SweepError: an attribute is invalid.
    """

    name: str
    candidates: Sequence[Any]
    metric: str
    mode: Literal["max", "min"] = "max"
    seeds: Sequence[int] = (0, 1, 2)
    final_config: str | None = None
    final_overrides: Overrides = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    on_failed: Literal["wait", "skip"] = "wait"
    choose_on_test: bool = False

    def __post_init__(self):
        where = f"selection {self.name!r}"
        _check_name(self.name, where)
        _check_choice(where, "mode", self.mode, ("max", "min"))
        _check_choice(where, "on_failed", self.on_failed, ("wait", "skip"))
        if len(set(self.seeds)) < len(self.seeds):
            raise SweepError(
                f"{where} has the seeds {list(self.seeds)}", "different seeds", "remove one"
            )
        object.__setattr__(self, "candidates", tuple(_as_job(c, where) for c in self.candidates))
        if not self.candidates:
            raise SweepError(f"{where} has no candidates", "at least one", "add some")
        if any(job.command != "train" for job in self.candidates):
            raise SweepError(
                f"{where} has candidates that do not train",
                "training runs",
                "make them jobs of their own that refer to job:final/NAME/seed0, ...",
            )
        if len(self.candidate_jobs) < len(self.candidates):
            raise SweepError(
                f"{where} has two candidates with the same name or settings",
                "different candidates with different names",
                "remove one, or pass them as Job(config, overrides, name=...)",
            )

    @functools.cached_property
    def candidate_jobs(self) -> dict[str, Job]:
        """Name -> candidate."""
        return {
            f"search/{self.name}/{name}": dataclasses.replace(
                job, labels={**self.labels, **job.labels}, stage="search"
            )
            for name, job in zip(derive_names(self.candidates), self.candidates, strict=True)
        }

    @property
    def final_names(self) -> list[str]:
        """Names of the final runs."""
        return [f"final/{self.name}/seed{seed}" for seed in self.seeds]

    def final_jobs(self, candidate: str) -> dict[str, Job]:
        """Returns name -> final run with the settings of a candidate."""
        job, changed = self.candidate_jobs[candidate], self.final_overrides
        kept = {key: value for key, value in job.overrides.items() if key not in changed}
        return {
            name: dataclasses.replace(
                job,
                config=self.final_config or job.config,
                overrides={**kept, **changed, "seed": seed},
                labels=dict(self.labels),
                stage="final",
            )
            for name, seed in zip(self.final_names, self.seeds, strict=True)
        }


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The content of a sweep file.

    Attributes:
        spec: "FILE.py" or "FILE.py:ARG".
        entries: jobs and selections, in the order of the file.
        slurm: options for --executor=slurm.
        report: what the `report` command shows.
    """

    spec: str
    entries: tuple[Job | Selection, ...]
    slurm: dict[str, Any] = dataclasses.field(default_factory=dict)
    report: dict[str, Any] = dataclasses.field(default_factory=dict)


def read_sweep(spec: str) -> Sweep:
    """Reads the sweep file "FILE.py" or "FILE.py:ARG".

    Raises:
        ConfigError: the file or `get_sweep` is missing, its code fails, or REPORT is invalid.
        SweepError: `get_sweep` returns no jobs, or the file defines two reports.
    """
    path = spec.partition(":")[0]
    returned, names = run_python(spec, "get_sweep", "sweep")
    if isinstance(returned, str | dict | Job | Selection) or not isinstance(returned, Iterable):
        raise SweepError(
            f"get_sweep of {path} returned {type(returned).__name__}",
            "a list of Job, Selection or (config, overrides)",
            "return a list, or yield its members",
        )
    entries = tuple(e if isinstance(e, Selection) else _as_job(e, path) for e in returned)
    if not entries:
        raise SweepError(f"get_sweep of {path} returned no jobs", "at least one", "add some")
    slurm = names.get("SLURM", {})
    if not isinstance(slurm, dict):
        raise SweepError(f"SLURM of {path} is {slurm!r}", "a dict of options", "make it a dict")
    if "REPORT" in names and "get_report" in names:
        raise SweepError(f"{path} has REPORT and get_report", "one of them", "remove one")
    what, report = "REPORT", names.get("REPORT", {})
    if "get_report" in names:
        what, report = "get_report", run_python(spec, "get_report", "sweep")[0]
    read_report(report, f"{what} of {path}")
    return Sweep(spec, entries, slurm, dict(report))


def derive_names(jobs: Sequence[Job]) -> list[str]:
    """Returns each job's name, or one derived from the overrides in which the unnamed jobs differ.

    >>> derive_names([Job("a.py", {"seed": 0, "x.y": 1}), Job("a.py", {"seed": 1, "x.y": 1})])
    ['seed=0', 'seed=1']
    >>> derive_names([Job("configs/a.py:B/16"), Job("b.py", {"x.rate": 0.1}), Job("b.py")])
    ['a-B-16', 'b,rate=0.1', 'b']
    """
    unnamed = [job for job in jobs if job.name is None]
    texts = [{key: _text(value) for key, value in job.overrides.items()} for job in unnamed]
    all_keys = dict.fromkeys(key for text in texts for key in text)
    keys = [key for key in all_keys if len({text.get(key) for text in texts}) > 1]
    several_configs = len({job.config for job in unnamed}) > 1 or not keys
    names = []
    for job in jobs:
        path, _, arg = (job.config or job.command).partition(":")
        config = Path(path).stem + (f"-{arg}" if arg else "")
        parts = [_folder_word(config)] if several_configs else []
        parts += [
            f"{_short_key(key, keys)}={_folder_word(_text(job.overrides[key]))}"
            for key in keys
            if key in job.overrides
        ]
        names.append(job.name or ",".join(parts) or "base")
    return names


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _short_key(key: str, keys: Sequence[str]) -> str:
    """Returns the shortest suffix of a dotted key that no other key has."""
    parts = key.split(".")
    ends = [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]
    others = [f".{k}" for k in keys if k != key]
    return next((end for end in ends if not any(k.endswith(f".{end}") for k in others)), key)


def _folder_word(text: str) -> str:
    """Returns a value in a form that can be part of a folder's name."""
    text = re.sub(r"[^A-Za-z0-9._=+-]+", "-", text.removeprefix("job:")).strip("-.") or "none"
    if len(text) > _LONGEST_VALUE:
        text = f"{text[: _LONGEST_VALUE - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return text


def vary(key: str, values: Iterable[Any]) -> list[dict[str, Any]]:
    """Returns one set of overrides per value of a key.

    >>> vary("seed", [0, 1])
    [{'seed': 0}, {'seed': 1}]
    """
    return [{key: value} for value in values]


def product(*lists: Iterable[Overrides]) -> list[dict[str, Any]]:
    """Returns the Cartesian product of lists of overrides; the last list varies fastest.

    >>> product(vary("a", [1, 2]), vary("b", [3, 4]))
    [{'a': 1, 'b': 3}, {'a': 1, 'b': 4}, {'a': 2, 'b': 3}, {'a': 2, 'b': 4}]

    Raises:
        SweepError: two lists set the same key.
    """
    combined = []
    for members in itertools.product(*lists):
        merged: dict[str, Any] = {}
        for key, value in itertools.chain.from_iterable(member.items() for member in members):
            if key in merged:
                raise SweepError(
                    f"two lists set {key!r}", "each key in one list", "remove it from one of them"
                )
            merged[key] = value
        combined.append(merged)
    return combined


def folder_name(text: str) -> str:
    """Returns a text, such as a model's name, in a form that can be a folder's name.

    >>> folder_name("R50+ViT-B/16")
    'R50-ViT-B-16'
    """
    return text.replace("+", "-").replace("/", "-")


def _as_job(entry: Any, where: str) -> Job:
    if isinstance(entry, Job):
        return entry
    if isinstance(entry, tuple | list) and len(entry) == 2:
        return Job(*entry)
    raise SweepError(
        f"{where} has an entry of type {type(entry).__name__}: {entry!r}",
        "a Job, a Selection or (config, overrides)",
        "replace it",
    )


def _check_name(name: str | None, where: str) -> None:
    """Checks that a name can be a path below the sweep's folder."""
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise SweepError(
            f"{where} is named {name!r}",
            "letters, digits and . _ = + , - in parts joined by '/'",
            "rename it",
        )


def _check_choice(where: str, field: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise SweepError(
            f"{where} has the {field} {value!r}",
            f"one of {', '.join(allowed)}",
            f"did you mean {nearest(str(value), allowed)!r}?",
        )
