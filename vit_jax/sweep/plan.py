"""Expands a sweep into jobs with names, folders, checked configs and dependencies."""

import copy
import dataclasses
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vit_jax.config.file import apply_overrides, read_mapping
from vit_jax.config.run import Config
from vit_jax.errors import SweepError, UserError, WeightsError, nearest
from vit_jax.models.options import AUTO
from vit_jax.plugins import passed_plugins
from vit_jax.run.environment import changed_code
from vit_jax.sweep.jobs import Job, check_name, derive_names
from vit_jax.sweep.selection import Selection, check_selection
from vit_jax.sweep.sweep_file import Sweep

# "job:NAME" or "--option=job:NAME".
_REFERENCE = re.compile(r"([^=]*=|)job:(.*)")


@dataclasses.dataclass(frozen=True)
class PlannedJob:
    """A job with its name, folder and checked config."""

    name: str  # unique in the sweep
    folder: Path
    job: Job  # its definition, with references replaced by folders
    config: Config | None  # of a training job; None for other commands
    settings: dict[str, Any] | None  # of config file and overrides; None for other commands
    needs: tuple[str, ...]  # names of the jobs that must finish first
    selection: Selection | None  # that it belongs to
    choice: dict[str, Any] | None = None  # how its settings were selected, as in job.json
    problem: str | None = None  # why this final run cannot be run; None: it can
    new_code: bool = False  # whether it may continue with other code or packages

    @property
    def final_of(self) -> Selection | None:
        """The selection whose selected candidate it repeats; None: it is no final run."""
        return self.selection if self.job.stage == "final" else None

    @property
    def awaited_selection(self) -> Selection | None:
        """The selection that its settings depend on; None: there is none, or it has been made."""
        return self.final_of if self.choice is None and self.problem is None else None

    @property
    def result(self) -> Path:
        return self.folder / "result.json"

    def command(self, python: str = sys.executable) -> list[str]:
        words = [python, "-m", "vit_jax", self.job.command]
        words += [f"--plugin={name}" for name in passed_plugins()]
        words += [f"--config={self.job.config}"] if self.job.config else []
        words += [f"--workdir={self.folder}"]
        words += [f"--config.{text}" for text in override_texts(self.job.overrides)]
        words += ["--new_code"] if self.new_code and self.job.command == "train" else []
        return [*words, *self.job.arguments]

    def record(self, spec: str) -> dict[str, Any]:
        """Returns the content of job.json; `spec` is the sweep's "FILE.py:ARG"."""
        record = {
            "sweep": spec,
            **dataclasses.asdict(self.job),
            "needs": self.needs,
            "selection": self.choice,
            "settings": self.settings,
        }
        return json.loads(json.dumps(record))


class Plan:
    """All jobs of a sweep; each comes after the jobs that it needs.

    `jobs` and `selections` are by name. `new_code` says whether the sweep and its jobs may continue
    with other code or packages; the jobs also may if an earlier launch has accepted them.
    """

    def __init__(self, sweep: Sweep, folder: Path, *, new_code: bool = False):
        self.sweep, self.folder, self.new_code = sweep, folder, new_code
        self._passed_on = new_code or changed_code(folder)
        selections = [entry for entry in sweep.entries if isinstance(entry, Selection)]
        self.selections = {selection.name: selection for selection in selections}
        if len(self.selections) < len(selections):
            raise SweepError("two selections with the same name", "different names", "rename one")
        self._recipes: dict[str, dict[str, Any]] = {}  # config file -> its content
        self._defined = _name_jobs(sweep.entries)
        self.jobs = _sort_by_needs(
            {name: self._plan_job(name, *defined) for name, defined in self._defined.items()}
        )
        for planned in self.jobs.values():
            self._check_start(planned)
        for selection in selections:
            candidates = [self.jobs[name] for name in selection.candidate_jobs]
            # One final run per candidate is enough: the others differ only in their seed.
            finals = [
                self._plan_job(name, job, selection)
                for candidate in selection.candidate_jobs
                for name, job in list(selection.final_jobs(candidate).items())[:1]
            ]
            check_selection(
                selection,
                [job.config for job in candidates if job.config],
                [job.config for job in finals if job.config],
            )

    def jobs_of_choice(
        self, selection: Selection, choice: dict[str, Any], seeds: Sequence[int]
    ) -> dict[str, PlannedJob]:
        """Returns name -> final run of each seed, with the settings of a choice in job.json."""
        jobs = dataclasses.replace(selection, seeds=seeds).final_jobs(choice["chosen"])
        return {
            name: dataclasses.replace(self._plan_job(name, job, selection), choice=choice)
            for name, job in jobs.items()
        }

    def _check_start(self, planned: PlannedJob) -> None:
        """Raises SweepError if a training job starts from a job of the sweep with another model."""
        config = planned.config
        if config is None or config.init_from is None or config.model.name == AUTO:
            return
        for name in planned.needs:
            other = self.jobs[name]
            start = other.config
            if config.init_from != str(other.folder) or start is None or start.model.name == AUTO:
                continue
            from vit_jax.train.init_from import check_family  # Imports JAX.

            options = start.task.model_section(start.to_mapping())
            try:
                check_family(config.replace(init_from=f"job:{name}"), options)
            except WeightsError as error:
                where = f"job {planned.name!r}: its init_from "
                raise SweepError(where + error.got, error.expected, error.fix) from None

    def _plan_job(self, name: str, job: Job, selection: Selection | None) -> PlannedJob:
        needs: dict[str, None] = {}

        def resolve(value: Any) -> Any:
            found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
            if found is None:
                return value
            option, other = found.groups()
            # A final run of a seed that was removed may refer to a job that was, too.
            if other not in self._defined and name in self._defined:
                raise SweepError(
                    f"job {name!r} refers to {value!r}, and no job has this name",
                    f"one of the {len(self._defined)} jobs of the sweep",
                    f"did you mean 'job:{nearest(other, self._defined)}'?",
                )
            needs[other] = None
            return f"{option}{self.folder / 'jobs' / other}"

        job = dataclasses.replace(
            job,
            name=name,
            overrides={key: resolve(value) for key, value in job.overrides.items()},
            arguments=[resolve(argument) for argument in job.arguments],
        )
        if selection is not None and job.stage == "final":
            needs |= dict.fromkeys(selection.candidate_jobs)
        folder, (config, settings) = self.folder / "jobs" / name, self._load(name, job)
        return PlannedJob(
            name, folder, job, config, settings, tuple(needs), selection, new_code=self._passed_on
        )

    def _load(self, name: str, job: Job) -> tuple[Config | None, dict[str, Any] | None]:
        """Checks a job's config file and overrides; errors name the job."""
        try:
            settings: dict[str, Any] = {}
            if job.config is not None and (job.command == "train" or job.config[-5:] != ".json"):
                if job.config not in self._recipes:
                    self._recipes[job.config] = read_mapping(job.config)
                settings = copy.deepcopy(self._recipes[job.config])
            apply_overrides(settings, copy.deepcopy(job.overrides).items())
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


def _name_jobs(entries: Sequence[Job | Selection]) -> dict[str, tuple[Job, Selection | None]]:
    """Returns name -> (job, its selection).

    Final runs have the settings of the first candidate for now.
    """
    names = iter(derive_names([entry for entry in entries if isinstance(entry, Job)]))
    defined: dict[str, tuple[Job, Selection | None]] = {}
    for entry in entries:
        if isinstance(entry, Job):
            selection, jobs = None, {next(names): entry}
        else:
            selection, first = entry, next(iter(entry.candidate_jobs))
            jobs = entry.candidate_jobs | entry.final_jobs(first)
        for name, job in jobs.items():
            check_name(name, f"job '{name[:60]}...'" if len(name) > 60 else f"job {name!r}")
            if name in defined:
                kind = "equal" if job == defined[name][0] else "different"
                raise SweepError(
                    f"two {kind} jobs are named {name!r}",
                    "different jobs with different names",
                    "remove one, or name them, as in Job(config, overrides, name=...)",
                )
            defined[name] = job, selection
    for name in defined:
        for parent in map(str, Path(name).parents):
            if parent in defined:
                raise SweepError(
                    f"the folder of job {name!r} lies inside the folder of job {parent!r}",
                    "separate folders",
                    f"rename {parent!r}, e.g. to '{parent}/base'",
                )
    return defined


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
