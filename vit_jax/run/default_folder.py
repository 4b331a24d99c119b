"""The folder of a run or sweep without --workdir: runs/RECIPE-DATE."""

import datetime
import sys
from collections.abc import Callable
from pathlib import Path

from vit_jax.run.job_folder import is_running, read_optional_json
from vit_jax.run.result import RESULT
from vit_jax.storage.paths import user_path
from vit_jax.storage.private import without_private

RUNS = "runs"


def default_folder(config: str) -> Path:
    """Returns the folder of an unfinished run of the same command line, or else a new one.

    So the same command continues its run, as with --workdir. `config` is "FILE.py", "FILE.py:ARG",
    or the config.json of a run folder.
    """
    command = _without_new_code(without_private(sys.argv[1:]))

    def continues(path: Path) -> bool:
        environment = read_optional_json(path / "env.json") or {}
        same = _without_new_code(environment.get("command", [])[1:]) == command
        return same and not (path / RESULT).exists() and not is_running(path)

    return _newest_or_new(config, continues)


def _without_new_code(words: list[str]) -> list[str]:
    """Returns a command line without the flag that lets the same run continue."""
    return [word for word in words if word != "--new_code"]


def default_sweep_folder(sweep: str) -> Path:
    """Returns the newest folder of a sweep, whose finished jobs do not run again, or a new one."""

    def continues(path: Path) -> bool:
        return (read_optional_json(path / "sweep.json") or {}).get("sweep") == sweep

    return _newest_or_new(sweep, continues)


def _newest_or_new(file: str, continues: Callable[[Path], bool]) -> Path:
    name, folder = recipe_name(file), user_path(RUNS)
    for path in sorted(folder.glob(f"{name}-*"), key=lambda path: path.name, reverse=True):
        if continues(path):
            return path
    stem = f"{name}-{datetime.date.today().isoformat()}"
    names = [stem, *(f"{stem}-{n}" for n in range(2, 10_000))]
    return next(path for path in map(folder.joinpath, names) if not path.exists())


def recipe_name(config: str) -> str:
    """Returns a name for the runs of a config file.

    >>> recipe_name("configs/cifar10_small.py:R50+ViT-B/16"), recipe_name("runs/a/config.json")
    ('cifar10_small-R50+ViT-B-16', 'a')
    """
    path, _, arg = config.partition(":")
    place = user_path(path)
    name = place.absolute().parent.name if place.name == "config.json" else place.stem
    words = [name, *([arg] if arg else [])]
    kept = [c if c.isalnum() or c in "._=+-" else "-" for c in "-".join(words)]
    return "".join(kept)[:100]
