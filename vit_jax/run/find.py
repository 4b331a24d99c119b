"""Finds run folders and sweep folders on a disk or in a bucket."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from vit_jax.storage.bucket_path import BucketPath

# A folder with config.json and at least one of these is a run folder.
_RUN_FILES = {"env.json", "metrics.jsonl", "result.json"}
SUPERSEDED = "superseded"
"""Folder of a sweep with final runs of earlier selections, which nothing shows."""

# Folders inside a run folder that contain no runs.
_NOT_RUNS = ("checkpoints", "tensorboard", "report", "features")


def find_runs(root: Path) -> tuple[list[Path], list[Path]]:
    """Returns the run folders and the sweep folders at or below a folder."""
    runs, sweeps = list[Path](), list[Path]()
    for place, files in _folders(root):
        if any(
            run in place.parents and place.relative_to(run).parts[0] in _NOT_RUNS for run in runs
        ):
            continue
        if "job.json" in files or ("config.json" in files and _has_run_file(files)):
            runs.append(place)
        if "sweep.json" in files:
            sweeps.append(place)
    return runs, sweeps


def _folders(root: Path) -> Iterator[tuple[Path, set[str]]]:
    """Yields the folders at or below a folder and the files in them, without hidden folders."""
    if isinstance(root, BucketPath):  # One listing of all objects.
        found = defaultdict[Path, set[str]](set)
        for path, _ in root.find():
            found[path.parent].add(path.name)
        for place in sorted(found):
            parts = place.relative_to(root).parts
            if SUPERSEDED not in parts and not any(part.startswith(".") for part in parts):
                yield place, found[place]
        return
    seen = [root.resolve()]
    for place, folders, files in os.walk(root, followlinks=True):
        if (path := Path(place)).is_symlink() and path != root:
            target = path.resolve()
            # Nothing twice, and no circles.
            if any(target.is_relative_to(one) or one.is_relative_to(target) for one in seen):
                folders.clear()
                continue
            seen.append(target)
        is_run = "job.json" in files or ("config.json" in files and _has_run_file({*files}))
        skipped = (SUPERSEDED, *(_NOT_RUNS if is_run else ()))
        folders[:] = [f for f in folders if not f.startswith(".") and f not in skipped]
        yield root / place, {*files}


def _has_run_file(files: set[str]) -> bool:
    segment = re.compile(r"metrics-\d{6}\.jsonl")
    return bool(_RUN_FILES & files) or any(map(segment.fullmatch, files))
