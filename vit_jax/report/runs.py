"""Finds run folders and reads their files."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.config.evaluation import METRICS
from vit_jax.errors import RunFolderError, UserError, first_few
from vit_jax.plugins import missing_modules
from vit_jax.report.labels import natural_key
from vit_jax.report.run import COLUMNS, Run, flatten
from vit_jax.report.run_files import SweepFile, read_optional
from vit_jax.run.find import find_runs
from vit_jax.schema import default_values
from vit_jax.storage.bucket_path import PACKAGES
from vit_jax.storage.paths import user_path

log = logging.getLogger(__name__)

_BUCKETS = tuple(f"{scheme}://" for scheme in PACKAGES)

# Columns that need no other run.
_OWN_COLUMNS = [name for name in COLUMNS if not name.startswith("pretrain_")]
# A longer chain of initialisations must be a cycle.
_MAX_ANCESTORS = 20


class Runs(NamedTuple):
    """Everything found below some folders."""

    runs: list[Run]  # sorted by name
    sweeps: dict[Path, dict[str, Any]]  # sweep folder -> its sweep.json
    roots: list[Path]  # the folders that were searched
    left_out: tuple[Path, ...] = ()  # of runs whose files have content of a wrong type

    def shown_path(self, path: str | Path) -> str:
        """Returns a path below the folder above all runs: reports do not show where they lay."""
        above, path = self.above, user_path(str(path))
        inside = above is not None and path.is_relative_to(above)
        return path.relative_to(above).as_posix() if above and inside else str(path)

    @property
    def above(self) -> Path | None:
        """The folder that contains the innermost folder of all runs; None: there is none."""
        inner = _folder_above([run.path for run in self.runs])
        return None if inner is None else inner.parent


def read_runs(folders: Sequence[Path]) -> Runs:
    """Reads every run in the given folders and below them."""
    runs: dict[Path, Run] = {}
    sweeps: dict[Path, dict[str, Any]] = {}
    left_out: list[Path] = []
    roots = [folder.expanduser().absolute() for folder in folders]
    for folder, root in zip(folders, roots, strict=True):
        if not root.is_dir():
            raise RunFolderError(
                f"no folder {folder}", "run folders, or folders that contain them", "check the path"
            )
        paths, sweep_folders = find_runs(root)
        if not paths:
            raise RunFolderError(
                f"no run in {folder}",
                "a folder with config.json and metrics.jsonl, or job.json",
                "pass the --workdir of `train`, or a folder above it",
            )
        # The folder may lie inside a sweep.
        above = [p for p in (root, *root.parents) if (p / "sweep.json").is_file()][:1]
        for path in above + sweep_folders:
            problems = list[str]()
            sweeps[path] = read_optional(path / "sweep.json", problems, SweepFile)
            for problem in problems:
                log.warning("%s: %s", path, problem)
        for path in paths:
            name = path.name if path == root else path.relative_to(root).as_posix()
            if path.resolve() not in runs:
                _add_run(runs, path, name, left_out)
    if not runs:
        raise RunFolderError(
            "no run can be read: there are damaged files in"
            f" {first_few(list(map(str, left_out)), 3)}",
            "run folders with intact files",
            "restore the files, or give other folders",
        )
    names = [run.name for run in runs.values()]
    for path, run in runs.items():
        if names.count(run.name) > 1:
            above = _folder_above(list(runs))
            run.name = path.relative_to(above).as_posix() if above else str(path)
    for run in runs.values():
        _link_ancestors(run, runs)
    _warn_of_unknown_metrics(list(runs.values()))
    _fill_in_defaults([run for run in runs.values() if "model.name" in run.config])
    by_name = sorted(runs.values(), key=lambda run: natural_key(run.name))
    return Runs(by_name, sweeps, roots, tuple(left_out))


def _add_run(runs: dict[Path, Run], path: Path, name: str, left_out: list[Path]) -> None:
    """Reads a run, or leaves it out with a warning: one damaged run does not end a report."""
    try:
        run = Run(path, name)
        for column in _OWN_COLUMNS:  # The tables need them, to group the runs.
            hash(getattr(run, column))
    except (UserError, AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        log.warning("%s is left out: its files have wrong values (%s)", path, error)
        left_out.append(path)
        return
    for problem in run.problems:
        log.warning("%s: %s", path, problem)
    runs[path.resolve()] = run


def _warn_of_unknown_metrics(runs: Sequence[Run]) -> None:
    """Warns of metrics from outside the package whose code is not loaded."""
    seen = set[str]()
    for run in runs:
        unknown = [n for n in run.more_metrics if n not in seen and not METRICS.knows(n)]
        seen.update(unknown)
        for name in unknown:
            options = " ".join(f"--plugin={module}" for module in missing_modules(run.path))
            log.warning(
                "%s: larger values of %r are taken to be better, because its code is not loaded%s",
                run.path,
                name,
                options and f"; add {options} if you trust it",
            )


def _folder_above(paths: Sequence[Path]) -> Path | None:
    """Returns the innermost folder that is or contains all paths; None: there is none."""
    candidates = (path for path in (paths[0], *paths[0].parents) if path.name)
    return next((c for c in candidates if all(p.is_relative_to(c) for p in paths)), None)


def _fill_in_defaults(runs: Sequence[Run]) -> None:
    """Gives models the default of the options that only other families have."""
    keys = {key for run in runs for key in run.config if key.startswith("model.")}
    if all(run.config.keys() >= keys for run in runs):
        return
    from vit_jax.models.image_families import any_image_config  # Has the options of all families.

    defaults = flatten(default_values(any_image_config(), "model."))
    for run in runs:
        missing = keys & defaults.keys() - run.config.keys()
        run.config |= {key: defaults[key] for key in sorted(missing)}


def _link_ancestors(run: Run, known: Mapping[Path, Run]) -> None:
    """Fills in the ancestors of a run; ancestors outside `known` are read from their folders."""
    current = run
    while (origin := current.init_from) is not None:
        parent = _locate(origin, current, known)
        if parent is None:
            there = "://" in origin or user_path(origin).exists()
            what = "is not a run folder" if there else "no longer exists"
            run.unknown_init = f"{origin} {what}: its examples and compute are not known"
            return
        if len(run.ancestors) == _MAX_ANCESTORS:
            run.unknown_init = "the run is initialised from itself"
            return
        run.ancestors.append(parent)
        run.shares.append(_share_trained(origin, parent))
        current = parent


def _share_trained(origin: str, parent: Run) -> float:
    """Returns the share of the parent's steps before the checkpoint at `origin`."""
    step = re.search(r"/checkpoints/(\d+)/*$", origin)
    return 1.0 if step is None or not parent.step else min(int(step[1]) / parent.step, 1.0)


def _locate(origin: str, run: Run, known: Mapping[Path, Run]) -> Run | None:
    """Returns the run whose folder, or whose checkpoint, is at `origin`; None if there is none.

    If the folder of a whole sweep was moved, the run is found by its job name.
    """
    if "://" in origin and not origin.startswith(_BUCKETS):
        return None
    folder = user_path(origin)
    if "checkpoints" in folder.parts:  # RUN/checkpoints/STEP
        folder = folder.parents[folder.parts[::-1].index("checkpoints")]
    # A relative path starts at the folder in which the run was started, which is not known: first
    # the folders above the run are tried, then the current one.
    above = [] if folder.is_absolute() else [parent / folder for parent in run.path.parents]
    for place in (*above, folder.absolute()):
        if place.resolve() in known:
            return known[place.resolve()]
        if (place / "config.json").is_file():
            return Run(place, place.name)
    same_sweep = [r for r in known.values() if r.job and r.job.get("sweep") == run.job.get("sweep")]
    moved = [r for r in same_sweep if f"/jobs/{r.name}/" in f"{folder.as_posix()}/"]
    return max(moved, key=lambda r: len(r.name), default=None)
