"""Expands a sweep into jobs: names, folders, checked configs, and which job needs which."""

import copy
import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vit_jax.config.file import read_mapping, set_key
from vit_jax.config.run import Config
from vit_jax.errors import SweepError, UserError, nearest
from vit_jax.schema import parse_override
from vit_jax.sweep.definition import REFERENCE, Job, Selection, Sweep
from vit_jax.sweep.selection import check_selection

_LONGEST_VALUE = 48


@dataclasses.dataclass(frozen=True)
class PlannedJob:
    """A job with its name, folder and checked config.

    Attributes:
        name: unique in the sweep.
        folder: run folder.
        job: as defined, with references replaced by folders.
        config: checked config of a training job; None for other commands.
        settings: what config file and overrides set, before defaults; None for other commands.
        needs: names of the jobs that have to finish first.
        stage: "search", "final" or None.
        selection: name of the selection that the job belongs to.
        choice: how its settings were selected, as job.json records it.
    """

    name: str
    folder: Path
    job: Job
    config: Config | None
    settings: dict[str, Any] | None
    needs: tuple[str, ...]
    stage: str | None = None
    selection: str | None = None
    choice: dict[str, Any] | None = None

    @property
    def undecided(self) -> bool:
        """Whether its settings depend on a selection that has not been made yet."""
        return self.selection is not None and self.stage == "final" and self.choice is None

    @property
    def result(self) -> Path:
        """File that a finished run has written."""
        return self.folder / "result.json"

    def command(self, python: str = sys.executable) -> list[str]:
        """Returns the command line that runs the job."""
        words = [python, "-m", "vit_jax", self.job.command]
        words += [f"--config={self.job.config}"] if self.job.config else []
        words += [f"--workdir={self.folder}"]
        words += [f"--config.{text}" for text in override_texts(self.job.overrides)]
        return [*words, *self.job.arguments]

    def record(self, spec: str) -> dict[str, Any]:
        """Returns the content of job.json.

        Args:
            spec: the sweep's "FILE.py:ARG".
        """
        record = {
            "sweep": spec,
            "name": self.name,
            "command": self.job.command,
            "config": self.job.config,
            "overrides": dict(self.job.overrides),
            "arguments": list(self.job.arguments),
            "labels": dict(self.job.labels),
            "stage": self.stage,
            "needs": list(self.needs),
            "selection": self.choice,
            "settings": self.settings,
        }
        return json.loads(json.dumps(record))


@dataclasses.dataclass(frozen=True)
class PlannedSelection:
    """A selection with the names of its jobs."""

    selection: Selection
    candidates: tuple[str, ...]
    finals: tuple[str, ...]


class Plan:
    """All jobs of a sweep; each comes after the jobs that it needs.

    Args:
        sweep: content of the sweep file.
        folder: of the sweep.

    Attributes:
        jobs: name -> job.
        selections: name -> selection.

    Raises:
        UserError: a config is invalid, a reference names no job, jobs need each other in a circle,
            names clash, or a selection uses the examples that are reported.
    """

    def __init__(self, sweep: Sweep, folder: Path):
        self.sweep, self.folder = sweep, folder
        self.selections: dict[str, PlannedSelection] = {}
        self._recipes: dict[str, dict[str, Any]] = {}
        self._roles: dict[str, tuple[str, str]] = {}  # job -> stage and selection
        self._defined = self._name_jobs()
        _check_folders(list(self._defined))
        jobs = {name: self._plan_job(name, job) for name, job in self._defined.items()}
        self.jobs = _sort_by_needs(jobs)
        for planned in self.selections.values():
            finals = [next(iter(_final_jobs(planned, self._defined[c]).items()), None)
                      for c in planned.candidates]  # fmt: skip
            check_selection(
                planned.selection,
                [config for c in planned.candidates if (config := self.jobs[c].config)],
                [config for f in finals if f and (config := self._plan_job(*f).config)],
            )

    def decide(self, name: str, choice: dict[str, Any]) -> None:
        """Gives the final runs of a selection the settings of the selected candidate.

        Args:
            name: of the selection.
            choice: as job.json records it.
        """
        planned = self.selections[name]
        for final, job in _final_jobs(planned, self._defined[choice["chosen"]]).items():
            self.jobs[final] = dataclasses.replace(self._plan_job(final, job), choice=choice)

    def _name_jobs(self) -> dict[str, Job]:
        """Returns name -> job; final runs have the settings of the first candidate for now."""
        names = iter(derive_names([e for e in self.sweep.entries if isinstance(e, Job)]))
        defined: list[tuple[str, Job]] = []
        for entry in self.sweep.entries:
            if isinstance(entry, Job):
                defined.append((next(names), entry))
                continue
            candidates = [f"search/{entry.name}/{name}" for name in derive_names(entry.candidates)]
            finals = tuple(f"final/{entry.name}/seed{seed}" for seed in entry.seeds)
            planned = PlannedSelection(entry, tuple(candidates), finals)
            self.selections[entry.name] = planned
            self._roles |= dict.fromkeys(candidates, ("search", entry.name))
            self._roles |= dict.fromkeys(finals, ("final", entry.name))
            for name, job in zip(candidates, entry.candidates, strict=True):
                labels = {**entry.labels, **job.labels}
                defined.append((name, dataclasses.replace(job, labels=labels)))
            defined += _final_jobs(planned, entry.candidates[0]).items()
        _check_unique([name for name, _ in defined], [job for _, job in defined])
        return dict(defined)

    def _plan_job(self, name: str, job: Job) -> PlannedJob:
        stage, selection = self._roles.get(name, (job.stage, None))
        needs: dict[str, None] = {}

        def resolve(value: Any) -> Any:
            if not isinstance(value, str) or not value.startswith(REFERENCE):
                return value
            other = value.removeprefix(REFERENCE)
            if other not in self._defined:
                raise SweepError(
                    f"job {name!r} refers to {value!r}, and no job has this name",
                    f"one of the {len(self._defined)} jobs of the sweep",
                    f"did you mean '{REFERENCE}{nearest(other, self._defined)}'?",
                )
            needs[other] = None
            return str(self.folder / "jobs" / other)

        def resolve_argument(argument: str) -> str:
            option, equals, value = argument.partition("=")
            if equals and not argument.startswith(REFERENCE):  # A job's name may contain "=".
                return f"{option}={resolve(value)}"
            return resolve(argument)

        job = dataclasses.replace(
            job,
            name=name,
            overrides={key: resolve(value) for key, value in job.overrides.items()},
            arguments=[resolve_argument(argument) for argument in job.arguments],
        )
        if selection is not None and stage == "final":
            needs |= dict.fromkeys(self.selections[selection].candidates)
        config, settings = self._load(name, job)
        folder = self.folder / "jobs" / name
        return PlannedJob(name, folder, job, config, settings, tuple(needs), stage, selection)

    def _load(self, name: str, job: Job) -> tuple[Config | None, dict[str, Any] | None]:
        """Checks a job's config file and overrides, as its command will; errors name the job."""
        try:
            mapping: dict[str, Any] = {}
            if job.config is not None and (job.command == "train" or job.config[-5:] != ".json"):
                if job.config not in self._recipes:
                    self._recipes[job.config] = read_mapping(job.config)
                mapping = copy.deepcopy(self._recipes[job.config])
            settings = copy.deepcopy(mapping)
            for text, raw in zip(override_texts(job.overrides), job.overrides.items(), strict=True):
                key, _, value = text.partition("=")
                set_key(mapping, key, parse_override(Config, key, value, mapping))
                set_key(settings, *raw)
            if job.command == "train":
                return Config.from_mapping(mapping), settings
        except UserError as error:
            raise type(error)(f"job {name!r}: {error.got}", error.expected, error.fix) from error
        return None, None


def override_texts(overrides: Mapping[str, Any]) -> list[str]:
    """Returns overrides as KEY=VALUE, as they follow "--config." on the command line.

    >>> override_texts({"seed": 1, "ema_decay": None, "data.name": "digits", "model.scan": True})
    ['seed=1', 'ema_decay=none', 'data.name=digits', 'model.scan=true']
    """
    words = {None: "none", True: "true", False: "false"}
    return [
        f"{key}={words[value] if value is None or isinstance(value, bool) else value}"
        for key, value in overrides.items()
    ]


def derive_names(jobs: Sequence[Job]) -> list[str]:
    """Returns each job's own name, or one made of the overrides in which the unnamed jobs differ.

    Args:
        jobs: of one sweep or one selection.

    >>> derive_names([Job("a.py", {"seed": 0, "x.y": 1}), Job("a.py", {"seed": 1, "x.y": 1})])
    ['seed=0', 'seed=1']
    >>> derive_names([Job("configs/a.py:B/16"), Job("b.py", {"x.rate": 0.1}), Job("b.py")])
    ['a-B-16', 'b,rate=0.1', 'b']
    """
    unnamed = [job for job in jobs if job.name is None]
    values: dict[str, set[str | None]] = {key: set() for job in unnamed for key in job.overrides}
    for key, seen in values.items():
        seen |= {_text(j.overrides[key]) if key in j.overrides else None for j in unnamed}
    keys = [key for key, seen in values.items() if len(seen) > 1]
    several_configs = len({job.config for job in unnamed}) > 1 or not keys
    names = []
    for job in jobs:
        path, _, arg = (job.config or job.command).partition(":")
        config = Path(path).stem + (f"-{arg}" if arg else "")
        parts = [_folder_word(config)] if several_configs else []
        parts += [f"{_short_key(key, keys)}={_folder_word(_text(job.overrides[key]))}"
                  for key in keys if key in job.overrides]  # fmt: skip
        names.append(job.name or ",".join(parts) or "base")
    return names


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _short_key(key: str, keys: Sequence[str]) -> str:
    """Returns the shortest end of a dotted key that no other key has."""
    parts = key.split(".")
    ends = [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]
    others = [f".{k}" for k in keys if k != key]
    return next((end for end in ends if not any(k.endswith(f".{end}") for k in others)), key)


def _folder_word(text: str) -> str:
    """Returns a value as part of a folder's name."""
    text = re.sub(r"[^A-Za-z0-9._=+-]+", "-", text.removeprefix(REFERENCE)).strip("-.") or "none"
    if len(text) > _LONGEST_VALUE:
        text = f"{text[: _LONGEST_VALUE - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return text


def _final_jobs(planned: PlannedSelection, candidate: Job) -> dict[str, Job]:
    """Returns name -> final run with the settings of a candidate."""
    selection, changed = planned.selection, planned.selection.final_overrides
    kept = {key: value for key, value in candidate.overrides.items() if key not in changed}
    return {
        name: dataclasses.replace(
            candidate,
            name=name,
            config=selection.final_config or candidate.config,
            overrides={**kept, **changed, "seed": seed},
            labels=dict(selection.labels),
        )
        for name, seed in zip(planned.finals, selection.seeds, strict=True)
    }


def _check_unique(names: Sequence[str], jobs: Sequence[Job]) -> None:
    first: dict[str, Job] = {}
    for name, job in zip(names, jobs, strict=True):
        if name in first and job == first[name]:
            raise SweepError(f"job {name!r} is defined twice", "each job once", "remove one")
        if name in first:
            raise SweepError(
                f"two different jobs are named {name!r}",
                "a name for each",
                "name them, as in Job(config, overrides, name=...)",
            )
        first[name] = job


def _check_folders(names: Sequence[str]) -> None:
    """Checks that no job's folder lies inside another job's folder."""
    for name in names:
        for parent in map(str, Path(name).parents):
            if parent in names:
                raise SweepError(
                    f"the folder of job {name!r} lies inside the folder of job {parent!r}",
                    "separate folders",
                    f"rename {parent!r}, e.g. to '{parent}/base'",
                )


def _sort_by_needs(jobs: Mapping[str, PlannedJob]) -> dict[str, PlannedJob]:
    """Returns the jobs in their order, each moved behind the jobs that it needs."""
    done: dict[str, PlannedJob] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            circle = " -> ".join(map(repr, [*path[path.index(name) :], name]))
            raise SweepError(
                f"jobs need each other: {circle}", "no circle", "remove one of these references"
            )
        if name not in done:
            for need in jobs[name].needs:
                visit(need, (*path, name))
            done[name] = jobs[name]

    for name in jobs:
        visit(name, ())
    return done
