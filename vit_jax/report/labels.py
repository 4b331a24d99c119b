"""Formats names and values for tables and pictures."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from vit_jax.config.fewshot import UNTRAINED
from vit_jax.evaluation.metric_kinds import class_of, kind_of

# Between the values of joined columns.
JOIN = " · "
_TITLES = {
    "pretrain_examples": "pre-training examples",
    "train_examples": "training examples",
    "examples_seen": "examples seen",
    "model.name": "model",
    "convolution.heads": "heads",
    "data.name": "dataset",
    "shots": "examples of each class",
}
# A smaller share of a value than this is due to rounding.
_ROUNDING = 1e-9
BLOCK_MEANS = "block means"
# In the order of their colours.
FAMILIES = ("ViT", "hybrid", "ResNet", "Mixer", BLOCK_MEANS)
# First part of a metric of frozen features -> how its title begins.
FROZEN_FEATURES = {
    "fewshot": "few-shot ",
    "knn": "nearest-neighbour ",
    "linear_probe": "linear-probe ",
    "zeroshot": "zero-shot ",
}


def family(model: Any) -> str | None:
    """Returns the family of a model name; a hybrid is a family of its own here.

    >>> [family(name) for name in ("ViT-B/16", "R50+ViT-B/16", "BiT-R50x1", "Bag-64/4")]
    ['ViT', 'hybrid', 'ResNet', 'Bag']
    """
    if not isinstance(model, str):
        return None
    return known_family(model) or re.split("[-_/]", model.removeprefix(UNTRAINED))[0]


def known_family(text: str) -> str | None:
    """Returns the family of a model name or of the family's own name; None: it is neither.

    >>> known_family("untrained:ViT-B/16"), known_family("hybrid"), known_family("10 %")
    ('ViT', 'hybrid', None)
    """
    if text in FAMILIES:
        return text
    text = text.removeprefix(UNTRAINED).removeprefix("untrained ")
    if re.match(r"R\d*\+ViT", text):
        return "hybrid"
    first = re.split(r"[^A-Za-z]", text, maxsplit=1)[0]
    named = {"BiT": "ResNet", "ResNet": "ResNet", "Mixer": "Mixer", "BlockMeans": BLOCK_MEANS}
    return "ViT" if first == "ViT" else named.get(first)


def is_number(value: Any) -> bool:
    """Whether a value is an int or float, and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def format_value(value: Any) -> str:
    """Returns a value as text: floats with four digits, None as an empty text."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(format_value, value))
    return str(value)


def natural_key(value: Any) -> tuple[tuple[int, float, str], ...]:
    """Returns a sort key that orders numbers inside a text by their size.

    >>> sorted(["seed10", "seed9"], key=natural_key)
    ['seed9', 'seed10']
    >>> sorted(["0.04", "0.006", "1e-3"], key=natural_key)
    ['1e-3', '0.006', '0.04']
    """
    if is_number(value) or re.fullmatch(r"\d+(\.\d+)?(e-?\d+)?", str(value)):
        return ((0, float(value), ""),)
    parts = re.split(r"(\d+)", str(value))
    return tuple((0, float(p), "") if p.isdecimal() else (1, 0.0, p) for p in parts if p)


def title_of(name: str) -> str:
    """Returns the heading for a metric or column.

    >>> title_of("eval/test@p{size}/accuracy_top1"), title_of("knn/{dataset}/accuracy_top1")
    ('Top-1 accuracy, test', 'Nearest-neighbour top-1 accuracy')
    >>> title_of("eval/test/accuracy_class/blossom"), title_of("eval/dev/accuracy_class/C++")
    ('Accuracy of blossom, test', 'Accuracy of C++, dev')
    >>> title_of("eval/test/accuracy_class/{class}")
    'Accuracy of a class, test'
    """
    before, of_class, class_name = class_of(name)
    if "+" in name and not of_class:
        first, *others = [title_of(part) for part in name.split("+")]
        return JOIN.join([first, *map(lower_first, others)])
    if "." in name and "/" not in name and name not in _TITLES:
        return name  # A config key.
    if of_class:
        name = f"{before}/accuracy"
    first, *middle, last = name.split("/") if "/" in name else ("", name)
    kind = kind_of(last)
    text = _TITLES.get(last) or kind.title or last.replace("_", " ")
    text = FROZEN_FEATURES.get(first, "") + text
    text += f" of {'a class' if class_name.startswith('{') else class_name}" if of_class else ""
    text += f", {kind.unit}" if kind.title and kind.unit not in ("", "%") else ""
    details = [part for part in middle if not part.startswith("{")]
    # "test@p{size}" has a value for each size of patches.
    details = [part.partition("@p{")[0].replace("_shot", "-shot") for part in details]
    text = ", ".join([text, *details])
    return text[:1].upper() + text[1:]


def lower_first(title: str) -> str:
    """Returns a title for the middle of a sentence; abbreviations keep their capitals.

    >>> lower_first("Wall time, s"), lower_first("L2 penalty")
    ('wall time, s', 'L2 penalty')
    """
    keep = title[1:2].isupper() or title[1:2].isdigit()
    return title if keep else title[:1].lower() + title[1:]


def format_metric(value: float, metric: str, like: float | None = None) -> str:
    """Returns a value of a metric as text; a fraction becomes a percentage with two decimals.

    It has as many decimals as `like`, e.g. the mean of a standard deviation, or one digit if these
    would be zeros only.

    >>> format_metric(-4e-5, "eval/test/loss", like=2.3), format_metric(2e-5, "accuracy_top1")
    ('-4e-05', '0.002')
    """
    if kind_of(metric).is_fraction:
        return _not_only_zeros(100 * value, ".2f", 100)
    size = abs(value if like is None else like)
    if size >= 10_000:
        return _not_only_zeros(value, ",.0f", size)
    if 0 < size < 1e-3:
        return f"{value:.2e}"
    decimals = 4 if size < 1 else 3 if size < 10 else 2 if size < 100 else 1
    return _not_only_zeros(value, f".{decimals}f", size)


def _not_only_zeros(value: float, spec: str, size: float) -> str:
    """Formats a value; in place of zeros only, one digit, unless it is rounding at this size."""
    text = f"{value:{spec}}"
    if text.strip("-0."):
        return text
    return text.lstrip("-") if abs(value) <= _ROUNDING * size else f"{value:.1g}"


def flops_unit(largest: float) -> tuple[float, str]:
    """Returns the factor from exaFLOPs to a unit in which a number is at least 1, and the unit.

    >>> flops_unit(4e-6)
    (1000000.0, 'teraFLOPs')
    """
    units = {1.0: "exaFLOPs", 1e3: "petaFLOPs", 1e6: "teraFLOPs", 1e9: "gigaFLOPs"}
    return next((unit for unit in units.items() if unit[0] * largest >= 1), (1e9, units[1e9]))


def short_number(value: Any, _: Any = None) -> str:
    """Returns a number as a tick label.

    >>> [short_number(x) for x in (0.012, 5, 999.9999, 1500, 1.3e6, 303e6, 2e9)]
    ['0.012', '5', '1k', '1.5k', '1.3M', '303M', '2B']
    """
    value = float(f"{value:.3g}")
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    if value and abs(value) < 1e-3:
        exponent = math.floor(math.log10(abs(value)))
        return f"{value / 10**exponent:.3g}e{exponent}"
    return f"{value:.3g}"


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = False
) -> str:
    """Returns a Markdown table; with `right`, all columns but the first are right-aligned."""
    rule = ["---", *(("---:" if right else "---") for _ in header[1:])]
    lines = [[cell.replace("|", "\\|") for cell in line] for line in (header, rule, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
