"""Sweep files: Python files with `get_sweep()` or `get_sweep(arg)`.

It returns a list, or is a generator, of `Job`s, `Selection`s and plain (config, overrides) pairs.
A file may also have SLURM, a dict of options for --executor=slurm, and REPORT, what `report` is to
make of the sweep: title, question, tables, plots, curves. Where that depends on ARG, as the metrics
of a small and of a full scale may, it is what `get_report(arg)` returns instead.
"""

import dataclasses
from typing import Any

from vit_jax.config.file import run_python
from vit_jax.errors import SweepError
from vit_jax.report.requests import read_report
from vit_jax.sweep.jobs import Job, Selection, as_job


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a sweep file asks for.

    Attributes:
        spec: "FILE.py" or "FILE.py:ARG".
        entries: in the order of the file.
        slurm: options of the cluster.
        report: for `report`; goes into sweep.json.
    """

    spec: str
    entries: tuple[Job | Selection, ...]
    slurm: dict[str, Any]
    report: dict[str, Any]


def read_sweep(spec: str) -> Sweep:
    """Reads a sweep file.

    Raises:
        ConfigError: no such file, no `get_sweep`, an error in it, or a wrong REPORT.
        SweepError: it asks for nothing, for something that is no job, or for two reports.
    """
    path = spec.partition(":")[0]
    made, names = run_python(spec, "get_sweep", "sweep")
    if isinstance(made, str | bytes | dict | Job | Selection) or not hasattr(made, "__iter__"):
        raise SweepError(
            f"get_sweep of {path} returned {type(made).__name__}",
            "a list of Job, Selection or (config, overrides)", "return one, or yield its members",
        )  # fmt: skip
    entries = tuple(e if isinstance(e, Selection) else as_job(e, path) for e in made)
    if not entries:
        raise SweepError(f"get_sweep of {path} asks for no jobs", "at least one", "add some")
    slurm = names.get("SLURM", {})
    if not isinstance(slurm, dict):
        raise SweepError(f"SLURM of {path} is {slurm!r}", "a dict of options", "make it one")
    return Sweep(spec, entries, slurm, _report(spec, names))


def _report(spec: str, names: dict[str, Any]) -> dict[str, Any]:
    """Returns what a sweep file asks of `report`, checked; {} where it asks for nothing."""
    path = spec.partition(":")[0]
    if "get_report" not in names:
        what, asked = "REPORT", names.get("REPORT", {})
    elif "REPORT" in names:
        raise SweepError(f"{path} has REPORT and get_report", "one of them", "leave one out")
    else:
        what, asked = "get_report", run_python(spec, "get_report", "sweep")[0]
    read_report(asked, f"{what} of {path}")
    return dict(asked)
