import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from flax import nnx

from vit_jax.config.mesh import MeshConfig
from vit_jax.evaluation.classification import PredictionTotals, prediction_metrics
from vit_jax.evaluation.loop import evaluate, jit_eval_step
from vit_jax.losses.sigmoid_cross_entropy import SigmoidCrossEntropy
from vit_jax.losses.softmax_cross_entropy import SoftmaxCrossEntropy
from vit_jax.parallel.mesh import make_mesh
from vit_jax.parallel.sharding import parameter_shardings
from vit_jax.tasks.classification.task import Classification

SIDE, PIXELS = 2, 12


class Linear(nnx.Module):
    """logits = flattened image @ kernel."""

    def __init__(self, kernel: np.ndarray):
        self.kernel = nnx.Param(jnp.asarray(kernel, jnp.float32))

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        return images.reshape(images.shape[0], -1) @ self.kernel[...]


class Table(nnx.Module):
    """logits = the row of a table that the image's first pixel names (0 to 255)."""

    def __init__(self, logits: np.ndarray):
        self.logits = nnx.Param(jnp.asarray(logits, jnp.float32))

    def __call__(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        rows = jnp.round((images[:, 0, 0, 0] + 1) * 127.5).astype(jnp.int32)
        return self.logits[...][rows]


METRICS = prediction_metrics(1000)


def run(model: nnx.Module, batches, loss=None, totals=None) -> dict[str, float]:
    mesh = make_mesh(MeshConfig())
    graphdef, state = nnx.split(model)
    params = nnx.to_pure_dict(state)
    task = Classification.__new__(Classification)  # Without a config: any model will do.
    task.graphdef, task.by_class = graphdef, False
    task.eval_loss, task.metrics = loss or SoftmaxCrossEntropy(), METRICS
    jitted = jit_eval_step(task.eval_step, mesh, parameter_shardings(params, mesh))
    step = functools.partial(jitted, params)
    return evaluate(step, batches, mesh, totals or PredictionTotals(METRICS))


def batch(images, labels, mask=None) -> dict[str, np.ndarray]:
    return {
        "image": np.asarray(images, np.uint8),
        "label": np.asarray(labels, np.int32),
        "mask": np.ones(len(labels), bool) if mask is None else np.asarray(mask, bool),
    }


def table_batch(labels) -> dict[str, np.ndarray]:
    """A batch whose row r asks `Table` for row r of its logits."""
    rows = np.arange(len(labels))[:, None, None, None]
    return batch(np.broadcast_to(rows, (len(labels), SIDE, SIDE, 3)), labels)


@pytest.fixture(scope="module")
def examples():
    """37 images, labels of 10 classes, and a kernel."""
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(37, SIDE, SIDE, 3), dtype=np.uint8)
    kernel = rng.normal(size=(PIXELS, 10)).astype(np.float32)
    logits = (images / 127.5 - 1).reshape(37, -1) @ kernel
    # Labels of every rank: the best class of some, the worst of others.
    order = np.argsort(-logits, axis=1)
    return images, order[np.arange(37), np.arange(37) % 10], kernel, logits


def cut(images, labels, size, fill_image=0, fill_label=0):
    """Batches of `size`, the last filled up and masked."""
    for start in range(0, len(labels), size):
        own = slice(start, start + size)
        missing = size - len(labels[own])
        yield batch(
            np.concatenate([images[own], np.full((missing, SIDE, SIDE, 3), fill_image, np.uint8)]),
            np.concatenate([labels[own], np.full(missing, fill_label)]),
            np.arange(size) < size - missing,
        )


@pytest.mark.parametrize("size", [1, 8, 40])
def test_figures_equal_numpy_for_any_batch_size(examples, size):
    images, labels, kernel, logits = examples
    found = run(Linear(kernel), cut(images, labels, size))
    assert found["examples"] == 37
    # 37 labels of rank 0 to 9 in turn: four of 37 are best, 20 among the best five.
    assert (found["accuracy_top1"], found["accuracy_top5"]) == (4 / 37, 20 / 37)
    losses = scipy.special.logsumexp(logits, axis=1) - logits[np.arange(37), labels]
    np.testing.assert_allclose(found["loss"], losses.mean(), rtol=1e-5)


@pytest.mark.parametrize(("fill_image", "fill_label"), [(255, 9), (128, 1000)])
def test_the_content_of_masked_rows_does_not_count(examples, fill_image, fill_label):
    images, labels, kernel, _ = examples
    found = run(Linear(kernel), cut(images, labels, 16, fill_image, fill_label))
    assert found == run(Linear(kernel), cut(images, labels, 16))


def test_masked_rows_with_nan_logits_do_not_count():
    table = np.zeros((3, 10))
    table[0, 4], table[1, 4], table[2] = 1, 1, np.nan
    rows = table_batch([4, 0, 0])
    rows["mask"][2] = False
    found = run(Table(table), [rows])
    assert found["accuracy_top1"] == 0.5
    assert found["examples"] == 2
    assert np.isfinite(found["loss"])


def test_a_batch_of_only_masked_rows_changes_nothing(examples):
    images, labels, kernel, _ = examples
    held = list(cut(images, labels, 16))
    empty = {name: np.zeros_like(rows) for name, rows in held[0].items()}
    assert run(Linear(kernel), [*held, empty, empty]) == run(Linear(kernel), held)


def test_the_loss_is_the_configured_one(examples):
    images, labels, kernel, logits = examples
    found = run(Linear(kernel), cut(images, labels, 16), SigmoidCrossEntropy())
    target = np.eye(10)[labels]
    losses = np.where(target == 1, np.log1p(np.exp(-logits)), np.log1p(np.exp(logits)))
    np.testing.assert_allclose(found["loss"], losses.sum(axis=1).mean(), rtol=1e-5)


def test_ties_go_to_the_lower_index_and_five_ranks_count():
    table = np.zeros((5, 10))
    table[:, [2, 6]] = 1.0
    found = run(Table(table), [table_batch([2, 6, 0, 3, 4])])
    # Class 2 is first; class 6 second; class 0 third, 3 fifth and 4 sixth.
    assert (found["accuracy_top1"], found["accuracy_top5"]) == (1 / 5, 4 / 5)


def test_nan_logits_are_never_correct_and_rank_above_every_number():
    found = run(Table(np.full((3, 3), np.nan)), [table_batch(range(3))])
    assert found["accuracy_top1"] == found["accuracy_top5"] == 0
    assert np.isnan(found["loss"])
    table = np.zeros((2, 10))
    table[:, 0] = 5.0
    table[1, 7] = np.nan
    assert run(Table(table), [table_batch([0, 0])])["accuracy_top1"] == 0.5


@pytest.mark.parametrize(("num_classes", "has_top5"), [(3, False), (5, False), (6, True)])
def test_top_5_is_measured_only_with_more_than_five_classes(num_classes, has_top5):
    assert ("accuracy_top5" in prediction_metrics(num_classes)) == has_top5
