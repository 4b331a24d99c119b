"""The data of the HTML page: its charts, and for each run what a click on it shows.

What all runs have in common is stored once, and curves have few points, so that the page of
hundreds of runs stays small.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vit_jax.report.chart import short, thin
from vit_jax.report.content import Content
from vit_jax.report.exit_codes import why_ended
from vit_jax.report.frame import differing
from vit_jax.report.labels import natural_key
from vit_jax.report.run import Run, flatten
from vit_jax.run.job_folder import last_log_lines

# Points of the curves of all runs together, and at most and at least of one curve.
_POINTS, _MOST, _LEAST = 40_000, 200, 20
# Curves of a run: those whose names match an earlier pattern first.
_MAX_CURVES = 6
_CURVES = (
    r"train/loss",
    r"eval/[^/]*/accuracy_top1",
    r"eval/[^/]*/loss",
    r"fewshot/.*accuracy_top1",
    r"train/learning_rate",
    r"train/(?!.*(per_second|_s$|_mb$)).*",
)
# Bookkeeping in which the page compares runs nevertheless.
_ALSO_COMPARED = ("seed", "init_from", "checkpoint")
# A published page need not name the machines.
_NOT_SHOWN = ("hostname",)
# Lines of the log of a finished run, and of one without a result.
_FEW_LINES, _LINES = 6, 30
_LONGEST_LINE = 300
# Files of a run folder that the page links to.
_FILES = ("config.json", "env.json", "metrics.jsonl", "result.json", "log.txt", "report/curves.png")


def page_data(content: Content, folder: Path) -> dict[str, Any]:
    """Returns the data of the page, which will lie in `folder`.

    Runs in the folder above it, or below that, become links.
    """
    runs = content.runs
    index = {run: i for i, run in enumerate(runs)}
    names = sorted({name for run in runs for name in run.figures}, key=natural_key)
    config, settings = _shared([run.config for run in runs])
    environment, machines = _shared(
        [{k: v for k, v in flatten(run.environment).items() if k not in _NOT_SHOWN} for run in runs]
    )
    curves = [_curve_names(run) for run in runs]
    most = max(_LEAST, min(_MOST, _POINTS // max(1, sum(map(len, curves)))))
    compared = {*differing([run.settings for run in runs]), *_ALSO_COMPARED}
    compared &= {key for one in settings for key in one}
    labels = differing([run.labels for run in runs])
    made = {
        "config": config,
        "environment": environment,
        "compared": [*(f"label {name}" for name in labels), *sorted(compared)],
        "metrics": names,
        "runs": [
            {
                "name": run.name,
                "state": run.state,
                "seed": run.seed,
                "labels": run.labels,
                "why": _why(run),
                "settings": settings[i],
                "environment": machines[i],
                "figures": [_number(run.figures.get(name)) for name in names],
                "curves": {name: _curve(run, name, most) for name in curves[i]},
                "log": _log(run),
                **_links(run.path, folder),
            }
            for i, run in enumerate(runs)
        ],
        "charts": {p.file: [one.to_json(index) for one in p.panels] for p in content.pictures},
    }
    return _without(made, f"{content.above}/") if content.above else made


def _without(value: Any, prefix: str) -> Any:
    """Returns JSON in which paths begin below a folder: it does not show where runs were stored."""
    if isinstance(value, str):
        return value.replace(prefix, "")
    if isinstance(value, dict):
        return {key: _without(inner, prefix) for key, inner in value.items()}
    return [_without(inner, prefix) for inner in value] if isinstance(value, list) else value


def to_script(data: Any) -> str:
    """Returns JSON that may stand inside a script element, whatever its texts are."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, default=str)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _shared(mappings: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns what most have in common, and how each differs from it; null: it has no such key."""
    every = [_finite(one) for one in mappings]
    common: dict[str, Any] = {}
    for key in sorted({key for one in every for key in one}):
        values = [json.dumps(one[key], default=str) for one in every if key in one]
        if len(values) * 2 > len(every):
            common[key] = json.loads(max({*values}, key=values.count))
    own = []
    for one in every:
        different = {k: v for k, v in one.items() if k not in common or v != common[k]}
        own.append(different | {k: None for k in common if k not in one})
    return common, own


def _finite(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a mapping without inf and NaN, which JSON does not have: they become texts."""
    bad = {float("inf"), float("-inf")}
    return {k: str(v) if isinstance(v, float) and (v != v or v in bad) else v
            for k, v in mapping.items()}  # fmt: skip


def _number(value: Any) -> Any:
    """Returns a figure with full precision, as in runs.csv; JSON has no infinity."""
    return value if value is None or abs(value) < float("inf") else None


def _curve_names(run: Run) -> list[str]:
    found: dict[str, None] = {}
    for pattern in _CURVES:
        matches = (name for name in run.measured if re.fullmatch(pattern, name))
        found |= dict.fromkeys(name for name in sorted(matches, key=natural_key))
    return [name for name in found if run.measured[name]][:_MAX_CURVES]


def _curve(run: Run, metric: str, most: int) -> list[list[Any]]:
    points = run.curve(metric)
    points = points.iloc[thin(len(points), most)]
    return [[short(x) for x in points.index], [short(float(y)) for y in points]]


def _why(run: Run) -> str:
    """Returns why a run has no result, if that is known."""
    if run.finished:
        return "; ".join(run.problems)
    return "; ".join([*run.problems, *filter(None, [why_ended(run.attempt), run.failure])])


def _log(run: Run) -> list[str]:
    lines: Iterable[str] = last_log_lines(run.path, _FEW_LINES if run.finished else _LINES)
    return [line[:_LONGEST_LINE] for line in lines]


def _links(path: Path, folder: Path) -> dict[str, Any]:
    """Returns the address of a run folder, relative to the page, and those of its files."""
    above = folder.absolute().parent
    if type(path) is not type(above) or not path.is_relative_to(above):
        return {}
    inside = "/".join(map(quote, path.relative_to(above).parts))
    files = [name for name in _FILES if (path / name).is_file()]
    return {"url": f"../{inside}/" if inside else "../", "files": files}
