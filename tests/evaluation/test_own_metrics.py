"""Metrics from outside the package: their value, kind and refusals."""

import jax.numpy as jnp
import numpy as np
import pytest
from own_code import own_code  # noqa: F401
from small_config import small_mapping

import vit_jax
from vit_jax.config.evaluation import METRICS
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, PluginError
from vit_jax.evaluation.classification import prediction_metrics, predictions_of
from vit_jax.evaluation.metric_kinds import kind_of
from vit_jax.evaluation.metric_totals import MetricTotals
from vit_jax.losses import loss_class

pytestmark = pytest.mark.usefixtures("own_code")


def wrong(logits, labels):
    """The number of wrong predictions, which is no mean."""
    return (logits.argmax(1) != labels).sum()


def test_a_metric_of_your_own_sees_all_examples_that_count():
    vit_jax.register_metric(direction="lower", bounds=(0, 1e9), title="mistakes")(wrong)
    metrics = prediction_metrics(3, ("wrong",))
    totals = MetricTotals(metrics)
    for labels, mask in [([0, 1, 2], [True, True, True]), ([1, 0, 0], [True, True, False])]:
        logits = jnp.eye(3)  # Predictions 0, 1, 2.
        found = predictions_of(logits, jnp.array(labels), jnp.array(mask), loss_class({})())
        sums = {name: metric.sums(found) for name, metric in metrics.items()}
        host = {n: {k: np.asarray(v) for k, v in s.items()} for n, s in sums.items()}
        totals.add({**host, "examples": np.array(sum(mask))})
    assert totals.metrics()["wrong"] == 2
    assert totals.metrics()["examples"] == 5
    kind = kind_of("eval/test/wrong")
    assert (kind.lower, kind.title, kind.bounds) == (True, "mistakes", (0, 1e9))


def config_of(**changes):
    return Config.from_mapping(small_mapping(**changes))


def test_metrics_are_chosen_by_name_and_early_stopping_may_use_them():
    vit_jax.register_metric(direction="lower")(wrong)
    evaluation = {"splits": {"dev": "test"}, "interval_steps": 1, "metrics": ["wrong"]}
    early = {"metric": "eval/dev/wrong"}
    assert config_of(evaluation=evaluation, early_stopping=early).evaluation.metrics == ("wrong",)
    with pytest.raises(ConfigError, match=r"'evaluation.metrics.*' is 'wrang'.*mean 'wrong'"):
        config_of(evaluation={**evaluation, "metrics": ["wrang"]})
    with pytest.raises(ConfigError, match=r"'early_stopping.metric' is 'eval/dev/wrong'"):
        config_of(evaluation={**evaluation, "metrics": []}, early_stopping=early)
    with pytest.raises(ConfigError, match=r"'evaluation.metrics' .*which does not predict labels"):
        config_of(evaluation={"metrics": ["wrong"]}, task={"name": "mae"})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros(3), r"metric 'bad' .*returned array.*expected a number"),
        ("high", r"metric 'bad' .*returned 'high'"),
        (1.5, r"metric 'bad' .*returned 1.5; expected a number in \[0, 1\]"),
        (np.nan, None),
        (1 / 2, None),
        (None, None),
    ],
)
def test_a_metric_is_tried_on_made_up_predictions(value, words):
    seen = []

    def bad(logits, labels):
        seen.append((logits.shape, np.bincount(labels).tolist()))
        return value

    vit_jax.register_metric(direction="higher", bounds=(0, 1))(bad)
    if words is None:
        metric = METRICS["bad"]()
        metric.try_out(3)
        rows = {"logits": np.zeros((2, 3)), "labels": np.zeros(2, int)}
        assert metric.of_all(rows) == (None if value is None or np.isnan(value) else value)
        seen.pop()
        assert seen == [((6, 3), [2, 2, 2])]
        return
    with pytest.raises(PluginError, match=words):
        METRICS["bad"]().try_out(3)


def test_what_cannot_be_a_metric_is_refused():
    with pytest.raises(PluginError, match=r"direction 'up'; expected higher or lower"):
        vit_jax.register_metric(direction="up")

    def keyed(logits, labels, *, average: str = "macro"): ...
    def one(logits): ...
    def examples(logits, labels): ...

    with pytest.raises(PluginError, match=r"unit 'ms' and bounds \(1, 0\)"):
        vit_jax.register_metric(direction="higher", unit="ms", bounds=(1, 0))  # pyright: ignore
    for function, words in [
        (keyed, "has the keyword 'average"),
        (one, r"takes \(logits\)"),
        (examples, "has the name of a count"),
    ]:
        with pytest.raises(PluginError, match=words):
            vit_jax.register_metric(direction="higher")(function)
