"""What each metric is: its better direction, bounds, unit, and where its intervals come from.

Reports, early stopping and selections ask `kind_of`. A metric that is measured on splits is a file
of `evaluation/metrics`; this table has all other figures.
"""

import contextlib
import math
from typing import Literal

from vit_jax.config.evaluation import METRICS
from vit_jax.evaluation.metrics import MetricKind

_CLASS = "accuracy_class/"


def _cost(title: str = "", unit: Literal["", "s", "MB", "exaFLOPs"] = "") -> MetricKind:
    return MetricKind(title, lower=True, bounds=(0.0, math.inf), unit=unit)


_ONE_CLASS = MetricKind("accuracy", bounds=(0.0, 1.0), unit="%", images="class")
_SECONDS = _cost(unit="s")
_ACCURACY = MetricKind(bounds=(0.0, 1.0), unit="%")
_SHARE = MetricKind(bounds=(0.0, 1.0))
_UNKNOWN = MetricKind()
# The last part of the name of a figure -> its kind.
_FIGURES = {
    **dict.fromkeys(("view_loss", "patch_loss", "teacher_loss", "label_loss"), _cost()),
    "l2": MetricKind("L2 penalty"),
    "relative_error": _cost(),
    "train_exaflops": _cost("training compute", "exaFLOPs"),
    "pretrain_exaflops": _cost("pre-training compute", "exaFLOPs"),
    "wall_time_s": _cost("wall time", "s"),
    "step_time_s": _cost("step time", "s"),
    "compile_time_s": _cost("compile time", "s"),
    "blocked_s": _cost("time blocked by saving", "s"),
    "features_s": _cost("time to compute features", "s"),
    "solving_s": _cost("time to solve", "s"),
    "rss_mb": _cost("memory of the host", "MB"),
    "peak_memory_mb": _cost("peak memory of the device", "MB"),
    **dict.fromkeys(("data_wait_fraction", "skipped_examples"), _cost()),
}


def kind_of(metric: str) -> MetricKind:
    """Returns the kind of a metric. What follows "accuracy_class/" is the name of a class.

    Of a metric that is in neither, larger values are better. One whose name begins with
    "accuracy" or "share_of_" is between 0 and 1.

    >>> kind_of("eval/test/loss").lower, kind_of("eval/test/accuracy_class/blossom_s").lower
    (True, False)
    """
    _, of_class, _ = class_of(metric)
    if of_class:
        return _ONE_CLASS
    first, _, last = metric.rpartition("/")
    if first.partition("/")[0] == "seconds":
        return _SECONDS
    if last in _FIGURES:
        return _FIGURES[last]
    with contextlib.suppress(KeyError):
        return METRICS[last].kind
    if last.startswith("accuracy") and not last.endswith(("_std", "_percent")):
        return _ACCURACY
    return _SHARE if last.startswith("share_of_") else _UNKNOWN


def class_of(metric: str) -> tuple[str, bool, str]:
    """Returns what precedes "accuracy_class/", whether the metric has that, and the class.

    Without it, the whole metric comes first.

    >>> class_of("eval/test/accuracy_class/a/b")
    ('eval/test', True, 'a/b')
    """
    before, found, name = f"/{metric}".partition(f"/{_CLASS}")
    return before.removeprefix("/"), bool(found), name
