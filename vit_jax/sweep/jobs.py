"""What a sweep file may ask for: jobs, and selections of the best of several."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from vit_jax.errors import SweepError, nearest

# Commands whose workdir is a run folder that they can go on in.
COMMANDS = ("train", "fewshot")
# An override or argument that is this and a job's name becomes the folder of that job.
REFERENCE = "job:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+,-]*(/[A-Za-z0-9][A-Za-z0-9._=+,-]*)*")


@dataclasses.dataclass(frozen=True)
class Job:
    """One run.

    A value "job:NAME" of an override (such as init_from) or argument becomes the folder of that job
    of the same sweep, which is then finished before this one starts. Few-shot evaluation of a run:

        Job(None, command="fewshot", arguments=["job:pretrain", "--dataset=digits"], name="shots")

    Attributes:
        config: "FILE.py" or "FILE.py:ARG"; None only for commands that need none.
        overrides: dotted config key -> value.
        name: folder below SWEEP_FOLDER/jobs; may contain "/". Made from what differs if None: name
            jobs of a sweep that is going to grow, so that they keep their folders.
        labels: words by which reports group, such as {"model": "ViT-B/16"}.
        command: what runs it.
        arguments: more arguments of the command, such as ("--deterministic",).
        stage: "final" if it is to be reported, "search" if it only serves a choice.

    Raises:
        SweepError: something of it cannot be.
    """

    config: str | None
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    name: str | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    command: str = "train"
    arguments: Sequence[str] = ()
    stage: Literal["search", "final"] | None = None

    def __post_init__(self):
        where = f"job {self.name!r}" if self.name else "a job"
        if self.command not in COMMANDS:
            raise SweepError(
                f"{where} with the command {self.command!r}", f"one of {', '.join(COMMANDS)}",
                f"did you mean {nearest(str(self.command), COMMANDS)!r}?",
            )  # fmt: skip
        if not isinstance(self.config, str) and (self.command == "train" or self.config):
            raise SweepError(
                f"{where} with the config {self.config!r}", "'FILE.py' or 'FILE.py:ARG'",
                "give the path of a config file",
            )  # fmt: skip
        if not isinstance(self.overrides, Mapping):
            raise SweepError(
                f"{where} with the overrides {self.overrides!r}", "a dict such as {'seed': 1}",
                "give one",
            )  # fmt: skip
        check_name(self.name, where)
        try:
            json.dumps([dict(self.overrides), dict(self.labels), list(self.arguments)])
        except TypeError as error:
            raise SweepError(
                f"{where} with a value that JSON cannot hold ({error})",
                "numbers, strings, booleans, None, lists and dicts", "use float() or str()",
            ) from None  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Selection:
    """A choice: candidates are run, and the best of them again with several seeds.

    The candidates are scored when all are finished; the first of the best is chosen. The final runs
    have its config and overrides, and then `final_config` and `final_overrides`: those that train
    on everything and evaluate the test split. Candidates are named search/NAME/..., the final runs
    final/NAME/seed0, final/NAME/seed1, ...

    Source: arXiv:2010.11929, section 4.1 and B.1.1: chosen on a dev split, reported on test.

    Attributes:
        name: of the choice; may contain "/".
        candidates: training jobs or (config, overrides) pairs.
        metric: of result.json, e.g. "eval/dev/accuracy_top1".
        mode: whether the largest or the smallest is best.
        seeds: one final run each; none: nothing is run.
        final_config: of the final runs; None: that of the candidate.
        final_overrides: over those of the candidate.
        labels: of all its jobs.
        on_failed: whether a candidate that failed keeps the others waiting, or is left out.
        choose_on_test: allows a metric on what the final runs are reported on.

    Raises:
        SweepError: something of it cannot be.
    """

    name: str
    candidates: Sequence[Any]
    metric: str
    mode: Literal["max", "min"] = "max"
    seeds: Sequence[int] = (0, 1, 2)
    final_config: str | None = None
    final_overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    on_failed: Literal["wait", "skip"] = "wait"
    choose_on_test: bool = False

    def __post_init__(self):
        where = f"selection {self.name!r}"
        if not self.name:
            raise SweepError("a selection without a name", "a name", "give it one")
        check_name(self.name, where)
        for field, allowed in (("mode", ("max", "min")), ("on_failed", ("wait", "skip"))):
            if getattr(self, field) not in allowed:
                raise SweepError(
                    f"{where} with {field}={getattr(self, field)!r}", f"one of {allowed}",
                    "correct it",
                )  # fmt: skip
        if len(set(self.seeds)) < len(self.seeds):
            raise SweepError(f"{where} with seeds {list(self.seeds)}", "each once", "drop one")
        object.__setattr__(self, "candidates", tuple(as_job(c, where) for c in self.candidates))
        if not self.candidates:
            raise SweepError(f"{where} of no candidates", "at least one", "add jobs to it")
        if any(job.command != "train" for job in self.candidates):
            raise SweepError(
                f"{where} among jobs that do not train", "training runs",
                "make them jobs of their own, which need final/NAME/seed0, ...",
            )  # fmt: skip


def as_job(entry: Any, where: str) -> Job:
    """Returns a job, made from a (config, overrides) pair where it is one.

    Raises:
        SweepError: neither.
    """
    if isinstance(entry, Job):
        return entry
    if isinstance(entry, tuple | list) and len(entry) == 2:
        return Job(entry[0], entry[1])
    raise SweepError(
        f"{where} with an entry {type(entry).__name__} {entry!r}",
        "a Job, a Selection or (config, overrides)", "make it one of these",
    )  # fmt: skip


def check_name(name: str | None, where: str) -> None:
    """Raises SweepError unless a name can be a folder below another."""
    if name is not None and (not isinstance(name, str) or not _NAME.fullmatch(name)):
        raise SweepError(
            f"{where} is named {name!r}",
            "letters, digits and . _ = + , - in parts joined by '/'", "rename it",
        )  # fmt: skip


def better(score: float | None, best: float | None, mode: str) -> bool:
    """Whether a score is better than the best so far; NaN and None are worse than any number.

    >>> better(0.5, 0.4, "max"), better(0.5, 0.5, "max"), better(0.5, None, "min")
    (True, False, True)
    >>> better(float("nan"), None, "max")
    False
    """
    if score is None or not math.isfinite(score):
        return False
    return best is None or (score > best if mode == "max" else score < best)
