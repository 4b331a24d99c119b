"""What a run was trained on, how much that took, and the same of the run that it started from."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError
from vit_jax.report.runs import Run, read_run

# More generations than this are a circle.
_MOST_GENERATIONS = 20


@dataclasses.dataclass(frozen=True)
class Effort:
    """Data and compute of a run and of its pre-training; None: not known.

    Attributes:
        train_examples: distinct examples of its training split.
        examples_seen: steps times batch size.
        train_exaflops: analytic, forward and backward, in 1e18 operations.
        pretrain_examples: `train_examples` of the run that this one starts from; of itself where it
            starts from nothing. Over several generations the largest.
        pretrain_exaflops: the same of `train_exaflops`; over several generations their sum.
        note: why something is not known; "": all is.
    """

    train_examples: int | None
    examples_seen: int | None
    train_exaflops: float | None
    pretrain_examples: int | None
    pretrain_exaflops: float | None
    note: str = ""


def efforts(runs: Iterable[Run]) -> dict[Path, Effort]:
    """Returns the effort of every run, by its folder; runs that they start from are looked up."""
    runs = list(runs)
    known = {run.path.resolve(): run for run in runs}
    return {run.path: _effort(run, known) for run in runs}


def started_from(run: Run) -> str | None:
    """Returns where a run's first parameters came from: a path or URL; None: from nothing."""
    for key in ("init_from", "init_from.path", "init.from", "checkpoint", "fewshot.checkpoint"):
        value = run.config.get(key)
        if isinstance(value, str) and value:
            return value
    return None


def _effort(run: Run, known: dict[Path, Run]) -> Effort:
    examples, seen, exaflops = own_effort(run)
    ancestors: list[Run] = []
    current = run
    for _ in range(_MOST_GENERATIONS):
        origin = started_from(current)
        if origin is None:
            break
        found = _locate(origin, current, known)
        if found is None:
            note = f"starts from {origin}, which is {_what_it_is(origin)}"
            return Effort(examples, seen, exaflops, None, None, note)
        ancestors.append(found)
        current = found
    else:
        return Effort(examples, seen, exaflops, None, None, "starts from itself, in a circle")
    if not ancestors:
        return Effort(examples, seen, exaflops, examples, exaflops)
    figures = [own_effort(ancestor) for ancestor in ancestors]
    sizes, costs = [f[0] for f in figures], [f[2] for f in figures]
    known_sizes = [size for size in sizes if size is not None]
    known_costs = [cost for cost in costs if cost is not None]
    complete = len(known_sizes) == len(known_costs) == len(ancestors)
    return Effort(
        examples, seen, exaflops,
        max(known_sizes) if len(known_sizes) == len(ancestors) else None,
        sum(known_costs) if len(known_costs) == len(ancestors) else None,
        "" if complete else f"{ancestors[0].name} does not say what it was trained on",
    )  # fmt: skip


def own_effort(run: Run) -> tuple[int | None, int | None, float | None]:
    """Returns distinct examples, examples seen and exaFLOPs of a run alone.

    result.json says so; of a run from before it did, or of one that is not finished, what follows
    from the config.
    """
    said = run.result or {}
    batch, step = run.config.get("data.global_batch_size"), run.step
    seen = said.get("examples_seen")
    if seen is None and batch and step and "optimizer.learning_rate" in run.config:
        seen = batch * step
    examples = said.get("train_examples", run.subset.get("examples"))
    exaflops = said.get("train_exaflops")
    if exaflops is None and seen is not None:
        per_image = _flops_per_image(run)
        exaflops = None if per_image is None else per_image * seen / 1e18
    return examples, seen, exaflops


def _flops_per_image(run: Run) -> int | None:
    from vit_jax.models.flops import forward_macs, training_flops
    from vit_jax.models.registry import model_options

    size = run.config.get("data.image_size")
    classes = run.config.get("data.num_classes") or run.classes
    if size is None or classes is None:
        return None
    try:
        mapping = json.loads((run.path / "config.json").read_text())
        if mapping.get("task", "classification") != "classification":  # Another head.
            return None
        model = model_options(**mapping["model"])
        return training_flops(forward_macs(model, num_classes=classes, image_size=(size, size)))
    except (UserError, KeyError, OSError):
        return None


def _locate(origin: str, run: Run, known: dict[Path, Run]) -> Run | None:
    """Returns the run whose folder or checkpoint `origin` names; None: it is not there.

    Where the folder of a whole sweep has moved, the run is found by the name it has there.
    """
    if "://" in origin:
        return None
    inside = Path(origin).expanduser()
    if "checkpoints" in inside.parts:  # RUN/checkpoints/STEP
        last = len(inside.parts) - 1 - inside.parts[::-1].index("checkpoints")
        inside = Path(*inside.parts[:last])
    places = [inside.absolute()]
    if not inside.is_absolute():
        places += [parent / inside for parent in run.path.parents]
    for place in places:
        if place.resolve() in known:
            return known[place.resolve()]
        if (place / "config.json").is_file():
            return read_run(place)
    wanted = f"{inside.as_posix()}/"
    same_sweep = [r for r in known.values() if r.job and r.job.get("sweep") == run.job.get("sweep")]
    moved = [r for r in same_sweep if f"/jobs/{r.name}/" in wanted]
    return max(moved, key=lambda r: len(r.name), default=None)


def _what_it_is(origin: str) -> str:
    if "://" in origin or Path(origin).expanduser().exists():
        return "not a run folder: its examples and compute are not known"
    return "gone: its examples and compute are not known"


def effort_fields(effort: Effort) -> dict[str, Any]:
    """Returns the figures of an effort by name, without the note."""
    fields = dataclasses.asdict(effort)
    del fields["note"]
    return fields
