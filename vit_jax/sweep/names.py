"""Names of jobs that were given none: what tells them apart."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_jax.errors import SweepError
from vit_jax.sweep.jobs import REFERENCE, Job

_LONGEST_PART = 48


def folder_name(text: str) -> str:
    """Returns a name, such as a model's, as one folder of a job's name.

    >>> folder_name("R50+ViT-B/16")
    'R50-ViT-B-16'
    """
    return text.replace("+", "-").replace("/", "-")


def derive_names(jobs: Sequence[Job]) -> list[str]:
    """Returns the name of every job: its own, or one made from what differs among the unnamed.

    Args:
        jobs: of one sweep or one selection.

    Raises:
        SweepError: two jobs of one name.

    >>> derive_names([Job("a.py", {"seed": 0, "x.y": 1}), Job("a.py", {"seed": 1, "x.y": 1})])
    ['seed=0', 'seed=1']
    >>> derive_names([Job("configs/a.py:B/16"), Job("b.py", {"x.rate": 0.1}), Job("b.py")])
    ['a-B-16', 'b,rate=0.1', 'b']
    """
    unnamed = [job for job in jobs if job.name is None]
    keys = _differing([dict(job.overrides) for job in unnamed])
    commands = len({job.command for job in unnamed}) > 1
    configs = len({job.config for job in unnamed}) > 1 or (not keys and not commands)
    arguments = len({tuple(job.arguments) for job in unnamed}) > 1
    short = _short_keys(keys)
    names = []
    for job in jobs:
        parts = [job.command] if commands else []
        parts += [_config_word(job.config)] if configs and job.config else []
        parts += [f"{short[key]}={_word(job.overrides[key])}" for key in keys
                  if key in job.overrides]  # fmt: skip
        parts += [_word(argument).lstrip("-") for argument in job.arguments] if arguments else []
        names.append(job.name or ",".join(parts) or "base")
    _check_different(names, jobs)
    return names


def _differing(overrides: list[dict[str, Any]]) -> list[str]:
    keys = list(dict.fromkeys(key for member in overrides for key in member))
    return [k for k in keys if len({(k in o, _canonical(o.get(k))) for o in overrides}) > 1]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Returns for each key the shortest end of it that no other key has."""
    short = {}
    for key in keys:
        parts = key.split(".")
        ends = [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]
        others = [k for k in keys if k != key]
        taken = (e for e in ends if not any(k == e or k.endswith("." + e) for k in others))
        short[key] = next(taken, key)
    return short


def _config_word(config: str) -> str:
    path, _, arg = config.partition(":")
    return _word(Path(path).stem + (f"-{arg}" if arg else ""))


def _word(value: Any) -> str:
    """Returns a value as a part of a folder's name."""
    text = value if isinstance(value, str) else _canonical(value)
    text = re.sub(r"[^A-Za-z0-9._=+-]+", "-", text.removeprefix(REFERENCE)).strip("-.") or "none"
    if len(text) > _LONGEST_PART:
        text = f"{text[: _LONGEST_PART - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return text


def _check_different(names: Sequence[str], jobs: Sequence[Job]) -> None:
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if name in seen:
            both = f"jobs {seen[name] + 1} and {index + 1}"
            if jobs[index] == jobs[seen[name]]:
                raise SweepError(f"{both} are the same", "every job once", "take one out")
            raise SweepError(
                f"{both} are both {name!r}", "every job under a name of its own",
                "name them, as in Job(config, overrides, name=...)",
            )  # fmt: skip
        seen[name] = index


def check_folders(names: Sequence[str]) -> None:
    """Raises SweepError where a job's folder would lie inside that of another.

    >>> check_folders(["a", "ab", "b/c"])
    """
    known = set(names)
    for name in names:
        parents = [str(parent) for parent in Path(name).parents]
        inside = next((p for p in parents if p in known), None)
        if inside is not None:
            raise SweepError(
                f"job {name!r} would lie in the folder of job {inside!r}",
                "folders beside each other", f"rename {inside!r}, e.g. to '{inside}/base'",
            )  # fmt: skip
