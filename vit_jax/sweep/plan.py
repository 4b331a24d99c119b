"""A sweep laid out: every job with its folder, its checked config and what it waits for."""

import dataclasses
import graphlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vit_jax.config.file import load_config, run_python
from vit_jax.config.run import Config
from vit_jax.errors import SweepError, UserError, nearest
from vit_jax.schema import parse_override
from vit_jax.sweep.jobs import REFERENCE, Job, Selection
from vit_jax.sweep.names import check_folders, derive_names
from vit_jax.sweep.selection import check_choice
from vit_jax.sweep.sweep_file import Sweep


@dataclasses.dataclass(frozen=True)
class PlannedJob:
    """A job whose name is known, and its settings, too, unless a choice is still to be made.

    Attributes:
        name: unique in the sweep.
        folder: its run folder.
        job: as asked for; references are folders.
        config: what its config file and overrides mean; None where it does not train.
        needs: names of the jobs that must be finished before.
        stage: "search", "final" or None.
        metric: what its selection looks at.
        selection: how its settings were chosen.
        undecided: name of the selection that is still to choose its settings.
    """

    name: str
    folder: Path
    job: Job
    config: Config | None
    needs: tuple[str, ...]
    stage: str | None = None
    metric: str | None = None
    selection: dict[str, Any] | None = None
    undecided: str | None = None

    @property
    def result(self) -> Path:
        """The file whose presence means that the job is finished."""
        return self.folder / "result.json"

    def command(self, python: str = sys.executable) -> list[str]:
        """Returns the words of the command that runs it."""
        words = [python, "-m", "vit_jax", self.job.command]
        words += [f"--config={self.job.config}"] if self.job.config else []
        words += [f"--workdir={self.folder}"]
        words += [f"--config.{text}" for text in override_texts(self.job.overrides)]
        return words + list(self.job.arguments)

    def about(self, spec: str) -> dict[str, Any]:
        """Returns the content of job.json."""
        return {
            "sweep": spec,
            "name": self.name,
            "command": self.job.command,
            "config": self.job.config,
            "overrides": dict(self.job.overrides),
            "arguments": list(self.job.arguments),
            "labels": dict(self.job.labels),
            "stage": self.stage,
            "needs": list(self.needs),
            "selection": self.selection,
        }


@dataclasses.dataclass(frozen=True)
class Choice:
    """A selection laid out.

    Attributes:
        selection: as asked for.
        candidates: names of its candidates.
        finals: names of its final runs.
    """

    selection: Selection
    candidates: tuple[str, ...]
    finals: tuple[str, ...]


class Plan:
    """All jobs of a sweep, each after those that it needs.

    Args:
        sweep: what is asked for.
        folder: of the sweep.

    Raises:
        UserError: a config that is wrong, a reference to an unknown job, jobs that wait for each
            other, names that clash, or a choice that cannot or must not be made.
    """

    def __init__(self, sweep: Sweep, folder: Path):
        self.sweep, self.folder = sweep, folder
        self.choices: dict[str, Choice] = {}
        self._candidates: dict[str, Job] = {}
        self._named = self._name_all()
        check_folders(list(self._named))
        made = {name: self._planned(name, job) for name, job in self._named.items()}
        self.jobs = {name: made[name] for name in _in_order(made)}
        for choice in self.choices.values():
            self._check_choice(choice)

    def decide(self, group: str, made: dict[str, Any]) -> None:
        """Gives the final runs of a selection their settings.

        Args:
            group: name of the selection.
            made: the choice, as job.json tells it.
        """
        choice = self.choices[group]
        for name, job in _final_jobs(choice, self._candidates[made["chosen"]]).items():
            self.jobs[name] = dataclasses.replace(
                self._planned(name, job), selection=made, undecided=None
            )

    def _name_all(self) -> dict[str, Job]:
        """Returns name -> job; that of a final run is made from the first candidate."""
        plain = [entry for entry in self.sweep.entries if isinstance(entry, Job)]
        names = iter(derive_names(plain))
        named: dict[str, Job] = {}

        def add(name: str, job: Job) -> None:
            if name in named:
                raise SweepError(f"two jobs named {name!r}", "every name once", "rename one")
            named[name] = job

        for entry in self.sweep.entries:
            if isinstance(entry, Job):
                add(next(names), entry)
                continue
            if entry.name in self.choices:
                raise SweepError(
                    f"two selections named {entry.name!r}", "every name once", "rename one"
                )
            below = [f"search/{entry.name}/{n}" for n in derive_names(entry.candidates)]
            finals = tuple(f"final/{entry.name}/seed{seed}" for seed in entry.seeds)
            choice = Choice(entry, tuple(below), finals)
            self.choices[entry.name] = choice
            for name, job in zip(below, entry.candidates, strict=True):
                self._candidates[name] = job
                add(name, dataclasses.replace(job, labels={**entry.labels, **job.labels}))
            for name, job in _final_jobs(choice, entry.candidates[0]).items():
                add(name, job)
        return named

    def _planned(self, name: str, job: Job) -> PlannedJob:
        needs: dict[str, None] = {}
        resolved = dataclasses.replace(
            job,
            name=name,
            overrides={k: self._resolved(v, name, needs) for k, v in job.overrides.items()},
            arguments=[self._resolved_argument(a, name, needs) for a in job.arguments],
        )
        stage, metric, undecided = job.stage, None, None
        for group, choice in self.choices.items():
            if name in choice.candidates:
                stage, metric = "search", choice.selection.metric
            elif name in choice.finals:
                stage, undecided = "final", group
                needs |= dict.fromkeys(choice.candidates)
        config = _load(name, resolved)
        folder = self.folder / "jobs" / name
        return PlannedJob(
            name, folder, resolved, config, tuple(needs), stage, metric, undecided=undecided
        )

    def _resolved(self, value: Any, name: str, needs: dict[str, None]) -> Any:
        """Returns the folder that a "job:NAME" stands for, and notes the need; else the value."""
        if not isinstance(value, str) or not value.startswith(REFERENCE):
            return value
        other = value.removeprefix(REFERENCE)
        if other not in self._named:
            raise SweepError(
                f"job {name!r} refers to {value!r}, and no job has this name",
                f"one of the {len(self._named)} jobs of the sweep",
                f"did you mean '{REFERENCE}{nearest(other, self._named)}'?",
            )
        needs[other] = None
        return str(self.folder / "jobs" / other)

    def _resolved_argument(self, argument: str, name: str, needs: dict[str, None]) -> str:
        option, equals, value = argument.partition("=")
        if equals and not argument.startswith(REFERENCE):  # Names may have a "=", too.
            return f"{option}={self._resolved(value, name, needs)}"
        return self._resolved(argument, name, needs)

    def _check_choice(self, choice: Choice) -> None:
        """Loads the configs of the final runs of every candidate, too: any may be chosen."""
        search = [self.jobs[name].config for name in choice.candidates]
        final = [
            self._planned(name, job).config
            for candidate in choice.candidates
            for name, job in _final_jobs(choice, self._candidates[candidate]).items()
        ]
        check_choice(
            choice.selection, [c for c in search if c], [c for c in final if c]
        )  # fmt: skip


def override_texts(overrides: Mapping[str, Any]) -> list[str]:
    """Returns overrides as KEY=VALUE, as they stand behind "--config." on the command line.

    >>> override_texts({"seed": 1, "ema_decay": None, "data.name": "digits", "model.scan": True})
    ['seed=1', 'ema_decay=none', 'data.name=digits', 'model.scan=true']
    """
    words = {None: "none", True: "true", False: "false"}
    return [
        f"{key}={words[value] if value is None or isinstance(value, bool) else value}"
        for key, value in overrides.items()
    ]


def _final_jobs(choice: Choice, candidate: Job) -> dict[str, Job]:
    """Returns name -> final run, with the settings of a candidate."""
    selection = choice.selection
    kept = {k: v for k, v in candidate.overrides.items() if k not in selection.final_overrides}
    return {
        name: dataclasses.replace(
            candidate,
            name=name,
            config=selection.final_config or candidate.config,
            overrides={**kept, **selection.final_overrides, "seed": seed},
            labels=dict(selection.labels),
        )
        for name, seed in zip(choice.finals, selection.seeds, strict=True)
    }


def _load(name: str, job: Job) -> Config | None:
    """Returns the checked config of a training job, checks that of another; errors name the job."""
    texts = override_texts(job.overrides)
    try:
        if job.command == "train" and job.config is not None:
            return load_config(job.config, texts)
        if job.config is not None and not job.config.endswith(".json"):
            run_python(job.config, "get_config", "config")
        for text in texts:
            key, _, value = text.partition("=")
            parse_override(Config, key, value)
    except UserError as error:
        raise type(error)(f"job {name!r}: {error.got}", error.expected, error.fix) from error
    return None


def _in_order(jobs: Mapping[str, PlannedJob]) -> Sequence[str]:
    """Returns the names, as given but for those that must come after others."""
    sorter = graphlib.TopologicalSorter({name: job.needs for name, job in jobs.items()})
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        circle = " -> ".join(repr(name) for name in reversed(error.args[1]))
        raise SweepError(
            f"jobs that wait for each other: {circle}", "none that needs itself",
            "take one of these references out",
        ) from None  # fmt: skip
    done: dict[str, None] = {}

    def add(name: str) -> None:
        for need in jobs[name].needs:
            if need not in done:
                add(need)
        done[name] = None

    for name in jobs:
        if name not in done:
            add(name)
    return list(done)
