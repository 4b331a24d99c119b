"""Size and cost of every listed model at its default image size, read from a table.

    python -m vit_jax.models.costs

writes the table again, `costs.csv`. Tracing a model takes about a second, so the list of all models
takes a minute without it. `pytest -m slow tests/models/test_costs.py` compares the table with the
code.
"""

import csv
import dataclasses
import functools
from pathlib import Path

from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import default_image_size, family_of, list_models, model_options
from vit_jax.models.summary import fitting_image_size, summarize

_FILE = Path(__file__).with_suffix(".csv")
# Classes of the models in the table that have a head.
_CLASSES = 1000


@dataclasses.dataclass(frozen=True)
class Cost:
    """Size and cost of a model."""

    name: str
    image_size: int  # Side in pixels.
    tokens: int | None  # Class token and registers included; None: a model without tokens.
    parameters: int
    macs: int  # Multiply-accumulates of one image's forward pass.
    activation_bytes: int  # Memory that a training step keeps, per image.


def known_cost(options: ModelConfig, *, num_classes: int, image_size: int) -> Cost | None:
    """Returns the cost that the table has; None: it has another size or other options."""
    cost = _table().get(options.name)
    if cost is None or cost.image_size != image_size or options != model_options(options.name):
        return None
    return cost if num_classes == _classes(options) else None


def compute_cost(options: ModelConfig, *, num_classes: int, image_size: int) -> Cost:
    """Computes the cost of a model."""
    found = summarize(options, num_classes=num_classes, image_size=image_size)
    return Cost(
        options.name,
        found.image_size,
        found.tokens,
        found.parameters,
        found.macs,
        found.activations.total_bytes,
    )


def default_cost(name: str) -> Cost:
    """Computes the cost of a model at its default image size, as in the table."""
    options = model_options(name)
    size = fitting_image_size(options, default_image_size(name))
    return compute_cost(options, num_classes=_classes(options), image_size=size)


def _classes(options: ModelConfig) -> int:
    return _CLASSES if family_of(options.name).has_classes else 0


@functools.cache
def _table() -> dict[str, Cost]:
    with _FILE.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return {
        name: Cost(name, int(size), int(tokens) if tokens else None, *map(int, rest))
        for name, size, tokens, *rest in rows
    }


def _write_table() -> None:
    rows = [dataclasses.astuple(default_cost(name)) for name in list_models()]
    with _FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in dataclasses.fields(Cost)])
        writer.writerows(rows)


if __name__ == "__main__":
    _write_table()
