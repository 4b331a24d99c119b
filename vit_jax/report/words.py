"""Names and figures as a person would write them."""

import math
import re
from typing import Any

# Between the values of joined fields.
JOIN = " · "


def family(model: Any) -> str | None:
    """Returns the kind of a model by its name.

    >>> [family(name) for name in ("ViT-B/16", "R50+ViT-B/16", "BiT-R50x1")]
    ['ViT', 'hybrid', 'ResNet']
    """
    if not isinstance(model, str):
        return None
    if re.match(r"R\d*\+ViT", model):
        return "hybrid"
    return "ResNet" if model.startswith("BiT") or model.startswith("ResNet") else "ViT"


def number(text: str) -> Any:
    """Returns a whole number written in a text, else the text."""
    return int(text) if text.isdigit() else text


def show(value: Any) -> str:
    """Returns a value as a person would write it."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(show, value))
    return str(value)


def join(names: list[str], values: list[Any]) -> str | None:
    """Returns the values of joined fields as one; None: there is none.

    >>> join(["dataset", "shots"], ["pets", 5])
    'pets · 5-shot'
    """
    parts = [f"{v}-shot" if n == "shots" else show(v) for n, v in zip(names, values, strict=True)]
    return JOIN.join(part for part in parts if part) or None


def is_share(metric: str) -> bool:
    """Whether a metric is a share, shown in percent."""
    return "accuracy" in metric.rsplit("/", 1)[-1] or "/accuracy_class/" in metric


def lower_is_better(metric: str) -> bool:
    """Whether smaller figures of a metric are better ones."""
    last = metric.rsplit("/", 1)[-1]
    return "loss" in last or last.endswith(("_s", "_mb", "exaflops", "_error"))


_WORDS = {
    "accuracy_top1": "top-1 accuracy",
    "accuracy_top5": "top-5 accuracy",
    "accuracy_per_class_mean": "mean accuracy per class",
    "roc_auc": "area under the ROC curve",
    "l2": "L2 penalty",
    "pretrain_examples": "pre-training examples",
    "pretrain_exaflops": "pre-training compute, exaFLOPs",
    "train_examples": "training examples",
    "train_exaflops": "training compute, exaFLOPs",
    "examples_seen": "examples seen",
    "wall_time_s": "wall time, s",
    "model.name": "model",
    "convolution.heads": "heads",
    "data.name": "dataset",
    "shots": "examples of each class",
}


def title_of(metric: str) -> str:
    """Returns a metric's name as a heading.

    >>> title_of("eval/test/accuracy_top1"), title_of("knn/{dataset}/accuracy_top1")
    ('Top-1 accuracy, test', 'Nearest-neighbour top-1 accuracy')
    """
    if "+" in metric:
        first, *others = [title_of(part) for part in metric.split("+")]
        return JOIN.join([first, *map(lower_first, others)])
    if "." in metric and "/" not in metric and metric not in _WORDS:
        return metric  # A key of the config.
    first, *middle, last = metric.split("/") if "/" in metric else ("", metric)
    text = _WORDS.get(last, last.replace("_", " "))
    heads = {"fewshot": "few-shot ", "knn": "nearest-neighbour ", "linear_probe": "linear-probe "}
    tail = [p.replace("_shot", "-shot") for p in middle if not p.startswith("{")]
    text = heads.get(first, "") + text + "".join(f", {part}" for part in tail)
    return text[:1].upper() + text[1:]


def number_text(value: float, metric: str, like: float | None = None) -> str:
    """Returns a figure as text: shares in percent with two digits, others with four.

    Args:
        value: the figure.
        metric: its name.
        like: the mean that a standard deviation belongs to: it gets as many decimals.
    """
    if is_share(metric):
        return f"{100 * value:.2f}"
    size = abs(value if like is None else like)
    if size >= 10_000:
        return f"{value:,.0f}"
    decimals = 4 if size < 1 else 3 if size < 10 else 2 if size < 100 else 1
    return f"{value:.{decimals}f}"


def legend_title(field: str) -> str:
    """Returns what stands above the members of a field; models speak for themselves."""
    return "" if field.partition("+")[0] in ("model", "model.name", "family") else title_of(field)


def lower_first(text: str) -> str:
    """Returns a heading for the middle of a sentence; abbreviations stay.

    >>> lower_first("Wall time, s"), lower_first("L2 penalty")
    ('wall time, s', 'L2 penalty')
    """
    return text if text[1:2].isupper() or text[1:2].isdigit() else text[:1].lower() + text[1:]
