"""Sweep files: Python files that list jobs and selections.

A sweep file has `get_sweep()` or `get_sweep(arg)`. It returns, or yields, `Job`s, `Selection`s and
plain (config, overrides) pairs. The file may also define

    SLURM           dict: options for --executor=slurm
    REPORT          dict: title, question, tables, plots and curves for the `report` command
    get_report(arg) instead of REPORT, if the report depends on ARG
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from vit_jax.config.file import run_python
from vit_jax.errors import SweepError
from vit_jax.report.requests import read_report
from vit_jax.sweep.jobs import Job, as_job
from vit_jax.sweep.selection import Selection


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The content of a sweep file."""

    spec: str  # "FILE.py" or "FILE.py:ARG"
    entries: tuple[Job | Selection, ...]
    slurm: dict[str, Any] = dataclasses.field(default_factory=dict)  # for --executor=slurm
    report: dict[str, Any] = dataclasses.field(default_factory=dict)  # for the `report` command


def read_sweep(spec: str) -> Sweep:
    """Reads the sweep file "FILE.py" or "FILE.py:ARG"."""
    path = spec.partition(":")[0]
    returned, names = run_python(spec, "get_sweep", "sweep")
    if isinstance(returned, str | dict | Job | Selection) or not isinstance(returned, Iterable):
        raise SweepError(
            f"get_sweep of {path} returned {type(returned).__name__}",
            "a list of Job, Selection or (config, overrides)",
            "return a list, or yield its members",
        )
    entries = tuple(e if isinstance(e, Selection) else as_job(e, path) for e in returned)
    if not entries:
        raise SweepError(f"get_sweep of {path} returned no jobs", "at least one", "add some")
    slurm = names.get("SLURM", {})
    if not isinstance(slurm, dict):
        raise SweepError(f"SLURM of {path} is {slurm!r}", "a dict of options", "make it a dict")
    if "REPORT" in names and "get_report" in names:
        raise SweepError(f"{path} has REPORT and get_report", "one of them", "remove one")
    what, report = "REPORT", names.get("REPORT", {})
    if "get_report" in names:
        what, report = "get_report", run_python(spec, "get_report", "sweep")[0]
    read_report(report, f"{what} of {path}")
    return Sweep(spec, entries, slurm, dict(report))
