"""Jobs of a sweep: one run each, their names, and lists of overrides."""

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from vit_jax.errors import SweepError, nearest

# Commands that write a run folder and can resume.
COMMANDS = ("train", "fewshot")
_LONGEST_VALUE = 48  # in a derived name
# Limits of file systems and buckets, with room for the names of files.
_LONGEST_NAME, _LONGEST_NAMES = 200, 600
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
        check_choice(where, "command", self.command, COMMANDS)
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
        check_name(self.name, where)
        try:
            json.dumps([dict(self.overrides), dict(self.labels), list(self.arguments)])
        except TypeError as error:
            raise SweepError(
                f"{where} has a value that JSON cannot hold ({error})",
                "numbers, strings, booleans, None, lists and dicts",
                "convert it with float() or str()",
            ) from None


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


def as_job(entry: Any, where: str) -> Job:
    """Returns a job of a sweep file, which may be a (config, overrides) pair."""
    if isinstance(entry, Job):
        return entry
    if isinstance(entry, tuple | list) and len(entry) == 2:
        return Job(*entry)
    raise SweepError(
        f"{where} has an entry of type {type(entry).__name__}: {entry!r}",
        "a Job, a Selection or (config, overrides)",
        "replace it",
    )


def check_name(name: str | None, where: str) -> None:
    """Raises SweepError unless a name can be a path below the sweep's folder."""
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise SweepError(
            f"{where} is named {name!r}",
            "letters, digits and . _ = + , - in parts joined by '/'",
            "rename it",
        )
    longest = max((name or "").split("/"), key=len)
    if len(longest) > _LONGEST_NAME or len(name or "") > _LONGEST_NAMES:
        raise SweepError(
            f"{where} has a name of {len(name or ''):,} characters",
            f"at most {_LONGEST_NAME} between slashes, and {_LONGEST_NAMES} in all",
            "give the job a shorter name=",
        )


def check_choice(where: str, field: str, value: str, allowed: Sequence[str]) -> None:
    """Raises SweepError unless a field has one of the allowed values."""
    if value not in allowed:
        raise SweepError(
            f"{where} has the {field} {value!r}",
            f"one of {', '.join(allowed)}",
            f"did you mean {nearest(str(value), allowed)!r}?",
        )
