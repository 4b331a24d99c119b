import math

import pytest

from vit_jax.evaluation.metric_kinds import class_of, kind_of


@pytest.mark.parametrize(
    ("metric", "lower", "bounds", "images"),
    [
        ("eval/test/loss", True, (0, math.inf), ""),
        ("train/loss", True, (0, math.inf), ""),
        ("eval/test/accuracy_top1", False, (0, 1), "mean"),
        ("fewshot/pets/5_shot/accuracy_top1", False, (0, 1), "mean"),
        ("eval/test/accuracy_per_class_mean", False, (0, 1), "class mean"),
        ("eval/test/accuracy_class/loss", False, (0, 1), "class"),
        ("eval/test/accuracy_class/size_s", False, (0, 1), "class"),
        ("eval/test/accuracy_class/a/wall_time_s", False, (0, 1), "class"),
        ("eval/test/roc_auc", False, (0, 1), ""),
        ("wall_time_s", True, (0, math.inf), ""),
        ("train/data_wait_fraction", True, (0, math.inf), ""),
        ("train/skipped_examples", True, (0, math.inf), ""),
        ("seconds/steps", True, (0, math.inf), ""),
        ("eval/test/accuracy_balanced", False, (0, 1), ""),
        # Of a metric of one's own, larger is better unless the request says otherwise.
        ("eval/test/my_loss", False, (-math.inf, math.inf), ""),
        ("eval/test/images_per_s", False, (-math.inf, math.inf), ""),
        ("fewshot/pets/5_shot/accuracy_top1_std", False, (-math.inf, math.inf), ""),
        ("eval/test/accuracy_percent", False, (-math.inf, math.inf), ""),
    ],
)
def test_the_kind_of_a_metric(metric, lower, bounds, images):
    kind = kind_of(metric)
    assert (kind.lower, kind.bounds, kind.images) == (lower, bounds, images)


def test_a_class_keeps_its_slashes():
    assert class_of("eval/dev/accuracy_class/x/accuracy_class/y") == (
        "eval/dev", True, "x/accuracy_class/y",
    )  # fmt: skip
    assert class_of("eval/dev/loss") == ("eval/dev/loss", False, "")
