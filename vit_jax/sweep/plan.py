"""Expands a sweep into jobs with names, folders, checked configs and dependencies."""

import copy
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vit_jax.config.file import override_key, read_mapping
from vit_jax.config.run import Config
from vit_jax.errors import SweepError, UserError, nearest
from vit_jax.sweep.selection import check_selection
from vit_jax.sweep.sweep_file import REFERENCE, Job, Selection, Sweep, derive_names


@dataclasses.dataclass(frozen=True)
class PlannedJob:
    """A job with its name, folder and checked config.

    Attributes:
        name: unique in the sweep.
        folder: run folder.
        job: its definition, with references replaced by folders.
        config: checked config of a training job; None for other commands.
        settings: values from the config file and overrides, without defaults; None for other
            commands.
        needs: names of the jobs that must finish first.
        selection: the selection that it belongs to.
        choice: how its settings were selected, as job.json records it.
    """

    name: str
    folder: Path
    job: Job
    config: Config | None
    settings: dict[str, Any] | None
    needs: tuple[str, ...]
    selection: Selection | None
    choice: dict[str, Any] | None = None

    @property
    def final_of(self) -> Selection | None:
        """The selection whose selected candidate it repeats; None: it is no final run."""
        return self.selection if self.job.stage == "final" else None

    @property
    def awaits_selection(self) -> bool:
        """Whether its settings depend on a selection that has not been made yet."""
        return self.final_of is not None and self.choice is None

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
            "stage": self.job.stage,
            "needs": list(self.needs),
            "selection": self.choice,
            "settings": self.settings,
        }
        return json.loads(json.dumps(record))


class Plan:
    """All jobs of a sweep; each comes after the jobs that it needs.

    Args:
        sweep: content of the sweep file.
        folder: of the sweep.

    Attributes:
        jobs: name -> job.
        selections: name -> selection.

    Raises:
        UserError: a config is invalid, a reference names no job, jobs depend on each other in a
            cycle, two jobs have the same name, or a selection uses examples of a reported split.
    """

    def __init__(self, sweep: Sweep, folder: Path):
        self.sweep, self.folder = sweep, folder
        selections = [entry for entry in sweep.entries if isinstance(entry, Selection)]
        self.selections = {selection.name: selection for selection in selections}
        if len(self.selections) < len(selections):
            raise SweepError("two selections with the same name", "different names", "rename one")
        self._recipes: dict[str, dict[str, Any]] = {}  # config file -> its content
        self._defined = _name_jobs(sweep.entries)
        _check_folders(list(self._defined))
        jobs = {name: self._plan_job(name, job) for name, job in self._defined.items()}
        self.jobs = _sort_by_needs(jobs)
        for selection in self.selections.values():
            # One final run per candidate is enough: the others differ only in their seed.
            finals = [selection.final_jobs(name) for name in selection.candidate_jobs]
            firsts = [self._plan_job(*next(iter(jobs.items()))) for jobs in finals if jobs]
            candidates = [self.jobs[name] for name in selection.candidate_jobs]
            check_selection(
                selection,
                [job.config for job in candidates if job.config],
                [job.config for job in firsts if job.config],
            )

    def apply_choice(self, name: str, choice: dict[str, Any]) -> None:
        """Sets the final runs of a selection to the settings of the selected candidate.

        Args:
            name: of the selection.
            choice: in the format of job.json.
        """
        for final, job in self.selections[name].final_jobs(choice["chosen"]).items():
            self.jobs[final] = dataclasses.replace(self._plan_job(final, job), choice=choice)

    def _plan_job(self, name: str, job: Job) -> PlannedJob:
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
        selection = None if job.selection is None else self.selections[job.selection]
        if selection is not None and job.stage == "final":
            needs |= dict.fromkeys(selection.candidate_jobs)
        folder, (config, settings) = self.folder / "jobs" / name, self._load(name, job)
        return PlannedJob(name, folder, job, config, settings, tuple(needs), selection)

    def _load(self, name: str, job: Job) -> tuple[Config | None, dict[str, Any] | None]:
        """Checks a job's config file and overrides; errors name the job."""
        try:
            settings: dict[str, Any] = {}
            if job.config is not None and (job.command == "train" or job.config[-5:] != ".json"):
                if job.config not in self._recipes:
                    self._recipes[job.config] = read_mapping(job.config)
                settings = copy.deepcopy(self._recipes[job.config])
            # The model's name first, because it decides which other keys the model section has.
            for key in sorted(job.overrides, key=lambda key: key != "model.name"):
                override_key(settings, key, copy.deepcopy(job.overrides[key]))
            if job.command == "train":
                return Config.from_mapping(settings), settings
        except UserError as error:
            raise type(error)(f"job {name!r}: {error.got}", error.expected, error.fix) from error
        return None, None


def override_texts(overrides: Mapping[str, Any]) -> list[str]:
    """Returns overrides as KEY=VALUE, the form that follows "--config." on the command line.

    >>> override_texts({"seed": 1, "ema_decay": None, "data.name": "digits", "model.scan": True})
    ['seed=1', 'ema_decay=none', 'data.name=digits', 'model.scan=true']
    """
    words = {None: "none", True: "true", False: "false"}
    return [
        f"{key}={words[value] if value is None or isinstance(value, bool) else value}"
        for key, value in overrides.items()
    ]


def _name_jobs(entries: Sequence[Job | Selection]) -> dict[str, Job]:
    """Returns name -> job; final runs have the settings of the first candidate for now."""
    names = iter(derive_names([entry for entry in entries if isinstance(entry, Job)]))
    named: list[tuple[str, Job]] = []
    for entry in entries:
        if isinstance(entry, Job):
            named.append((next(names), entry))
        else:
            named += entry.candidate_jobs.items()
            named += entry.final_jobs(next(iter(entry.candidate_jobs))).items()
    defined: dict[str, Job] = {}
    for name, job in named:
        if name in defined:
            raise SweepError(
                f"two {'equal' if job == defined[name] else 'different'} jobs are named {name!r}",
                "different jobs with different names",
                "remove one, or name them, as in Job(config, overrides, name=...)",
            )
        defined[name] = job
    return defined


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
    """Returns the jobs in the given order, but each after the jobs that it needs."""
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
