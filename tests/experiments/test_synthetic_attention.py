"""The runs, tasks, models and constructions of experiments/synthetic_attention."""

import csv
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_models import randomize

from experiments.synthetic_attention import run as script
from experiments.synthetic_attention.models import (
    SequenceModel,
    Shape,
    count_parameters,
    reach,
    solve_association,
    solve_convolution,
    solve_double_if,
)
from experiments.synthetic_attention.tasks import (
    Association,
    Batch,
    Convolution,
    DoubleIf,
    accuracy,
    cross_entropy,
    flag_first,
    recovery,
    relative_error,
)

RESULTS = Path(__file__).resolve().parents[2] / "experiments/synthetic_attention/results"


def call(model, x):
    """Compiled as a whole: compiling op by op would take most of a test's time."""
    return jax.jit(lambda x: model(x))(jnp.asarray(x))


def drawn(draw, seed, count):
    return jax.jit(draw, static_argnums=1)(jax.random.key(seed), count)


def score(model, draw, seed, count=64):
    """Accuracy of a model on drawn examples, and the smallest label at their first token."""

    @jax.jit
    def measure(key):
        batch = draw(key, count)
        return accuracy(model, batch), batch.labels[:, 0].min()

    return map(float, measure(jax.random.key(seed)))


def random_association(size, length, seed=0):
    matrix, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))
    return Association(jnp.asarray(matrix, jnp.float32), length)


def random_convolution(grid=(1, 32), features=8, taps=5, span=2, rank=None, seed=0):
    return Convolution.random(
        grid, features=features, taps=taps, span=span, rank=rank or features, seed=seed
    )


def test_the_small_runs_are_those_of_the_committed_results():
    with (RESULTS / "runs.csv").open() as file:
        committed = {row["name"]: row for row in csv.DictReader(file)}
    runs = {run.name: run for run in script.list_runs("small")}
    assert runs.keys() == committed.keys()
    assert Counter(run.task for run in runs.values()) == {
        "association": 3 * 3 * 3,
        "double_if": 3 * 3 * 3,
        "convolution": 18,
    }
    for name, run in runs.items():
        row, config = committed[name], run.config()
        assert run.labels == {k[6:]: v for k, v in row.items() if k.startswith("label.") and v}
        assert [str(config[key]) for key in ("task", "seed")] == [row["task"], row["seed"]]


def test_association_marks_the_mapped_first_token():
    task = random_association(5, 12)
    matrix, batch = np.asarray(task.matrix), drawn(task.draw, 1, 200)
    tokens, labels = np.asarray(batch.inputs), np.asarray(batch.labels)
    assert (tokens[:, 0, 5] == 1).all()
    assert (tokens[:, 1:, 5] == 0).all()
    distance = np.linalg.norm(tokens[..., :5] - tokens[:, :1, :5] @ matrix.T, axis=-1)
    np.testing.assert_array_equal(distance[:, 1:] < 1e-4, labels[:, 1:] == 1)
    assert 0.45 < labels[:, 1:].mean() < 0.55
    assert not np.asarray(batch.asked)[:, 0].any()
    assert np.asarray(batch.asked)[:, 1:].all()


def test_double_if_counts_the_tokens_selected_by_the_first_token():
    task = DoubleIf(4, 12)
    batch = drawn(task.draw, 0, 500)
    kinds = np.asarray(batch.inputs)[..., :5].argmax(-1)
    wanted = np.where(kinds[:, 0] == 0, 1, 3)
    assert set(kinds[:, 0]) == {0, 2}
    counts = (kinds == wanted[:, None]).sum(1)
    others = (kinds == np.where(wanted == 1, 3, 1)[:, None]).sum(1)
    np.testing.assert_array_equal(batch.labels[:, 0], counts)
    for numbers in (counts, others):
        assert np.bincount(numbers, minlength=5).min() > 70
    assert np.asarray(batch.asked).sum(1).tolist() == [1] * 500
    # At a distance of 5 is a counted token, and none is beyond.
    batch = drawn(lambda key, count: task.draw_at(key, count, 5), 0, 300)
    kinds = np.asarray(batch.inputs)[..., :5].argmax(-1)
    assert (kinds[:, 5] == np.where(kinds[:, 0] == 0, 1, 3)).all()
    assert not np.isin(kinds[:, 6:], (1, 3)).any()


def test_only_selected_labels_count():
    logits = jnp.asarray(np.log([[[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]]]), jnp.float32)
    batch = Batch(jnp.zeros((1, 3, 1)), jnp.array([[1, 1, 1]]), jnp.array([[False, True, True]]))
    assert accuracy(lambda inputs: logits, batch) == 0.5
    loss = cross_entropy(lambda inputs: logits, batch)
    np.testing.assert_allclose(loss, -(np.log(0.75) + np.log(0.1)) / 2, rtol=1e-6)


def test_recovery_of_a_known_shape():
    """Means over heads 0.05, 0.5, 0.15, 0.3: the two largest are the taps."""
    weights = np.array([[0.0, 0.8, 0.2, 0.0], [0.1, 0.2, 0.1, 0.6]], np.float32)
    names = ("share_of_attention_on_taps", "share_of_taps_found", "share_of_heads_on_one_tap")
    for taps, shares in (([1, 3], (0.8, 1, 1)), ([0, 1], (0.55, 0.5, 0.5))):
        found = recovery(weights, np.array(taps))
        assert found == pytest.approx(dict(zip(names, shares, strict=True)))


def test_a_low_rank_kernel_has_its_rank_and_outputs_of_variance_one():
    task = random_convolution(rank=2)
    assert np.linalg.matrix_rank(task.kernel).tolist() == [2] * 5
    assert task.offsets[:, 1].tolist() == [-2, -1, 0, 1, 2]
    assert task.taps.tolist() == [30, 31, 0, 1, 2]
    seeds = [random_convolution(rank=2, seed=s) for s in range(50)]
    power = np.mean([np.square(t.kernel).sum() / 8 for t in seeds])
    assert 0.9 < power < 1.1


@pytest.mark.parametrize(
    ("grid", "taps", "span", "rank"), [((1, 20), 4, 9, None), ((5, 6), 9, 1, 3)]
)
def test_offset_attention_can_represent_any_convolution(grid, taps, span, rank):
    task = random_convolution(grid, taps=taps, span=span, rank=rank, seed=3)
    # One head per tap, and two that are not needed.
    model = solve_convolution(task, taps + 2)

    @jax.jit
    def solve(key):
        x, y = task.draw(key, 4)
        return model(x), y, relative_error(model, (x, y))

    found, y, error = solve(jax.random.key(0))
    np.testing.assert_allclose(found, y, atol=2e-6)
    assert np.asarray(y).std() > 0.3
    assert error < 1e-10


def test_the_convolution_equals_that_of_numpy():
    task = random_convolution((1, 16), features=3, taps=3, span=4)
    x, y = drawn(task.draw, 1, 1)
    expected = np.zeros((16, 3))
    for (_, offset), matrix in zip(task.offsets, task.kernel, strict=True):
        for i in range(16):
            expected[i] += np.asarray(x)[0, (i + offset) % 16] @ matrix
    np.testing.assert_allclose(y[0], expected, atol=1e-5)


@pytest.mark.parametrize("length", [2, 300])
def test_one_block_of_attention_solves_association_at_any_length(length):
    task = random_association(8, length)
    right, _ = score(solve_association(task), task.draw, 0)
    assert right == 1


def test_association_marks_exactly_the_equal_tokens():
    """Tokens that the task does not draw: many different ones, of any size, and near misses."""
    task = random_association(4, 6)
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((50, 6, 4)).astype(np.float32) * 3
    image = tokens[:, 0] @ np.asarray(task.matrix).T
    tokens[:, 2] = tokens[:, 5] = image
    tokens[:, 3] = image + 0.05 * np.eye(4, dtype=np.float32)[rng.integers(0, 4, 50)]
    model = solve_association(task)
    logits = np.asarray(call(lambda tokens: model(flag_first(tokens)), tokens))
    assert (logits.argmax(-1) == np.array([0, 0, 1, 0, 0, 1])).all()


@pytest.mark.parametrize(("length", "most"), [(3, 1), (400, 30)])
def test_one_block_of_attention_solves_double_if_at_any_length(length, most):
    task = DoubleIf(most, length)
    model = solve_double_if(task)
    right, _ = score(model, task.draw, 0)
    assert right == 1
    assert model.embed.in_features == 6
    right, least = score(model, lambda key, count: task.draw_at(key, count, length - 1), 1)
    assert right == 1
    assert least >= 1


@pytest.mark.parametrize(("kind", "expected"), [("cnn", 3), ("dilated_cnn", 7)])
def test_a_cnn_output_does_not_depend_on_tokens_beyond_its_reach(kind, expected):
    shape = Shape(layers=3, width=16)
    assert reach(kind, shape, 20) == expected
    model = randomize(lambda: SequenceModel(kind, 9, 2, shape, rngs=nnx.Rngs(0)))
    x = jnp.asarray(np.random.default_rng(1).standard_normal((1, 20, 9)), jnp.float32)
    outputs = jax.jacrev(lambda first: model(x.at[:, 0].set(first)).sum((0, 2)))
    jacobian = jax.jit(outputs)(x[0, 0])
    depends = np.abs(np.asarray(jacobian)).max(1)
    assert (depends[: expected + 1] > 1e-6).all()
    assert (depends[expected + 1 :] == 0).all()


def test_beyond_its_reach_a_cnn_has_accuracy_one_half_with_any_weights():
    """Two sequences that differ only in x_1 have opposite marks beyond the reach."""
    model = randomize(lambda: SequenceModel("cnn", 9, 2, Shape(layers=3), rngs=nnx.Rngs(2)))
    task = random_association(8, 20)
    batch = drawn(task.draw, 1, 64)
    inputs, labels, asked = map(np.array, (batch.inputs, batch.labels, batch.asked))
    # The y whose image is the other vector of the sequence: U^T of a token that is not U x_1.
    place = (~labels.astype(bool) & asked).argmax(1)
    swapped = inputs.copy()
    swapped[:, 0, :8] = inputs[np.arange(64), place, :8] @ np.asarray(task.matrix)
    both = np.asarray(call(model, np.concatenate([inputs, swapped]))).argmax(-1)
    one, two = both[:64, 4:], both[64:, 4:]
    np.testing.assert_array_equal(one, two)
    labels = labels[:, 4:]
    assert ((one == labels).mean() + (two == 1 - labels).mean()) / 2 == 0.5


def test_models_of_equal_shape_have_equal_size():
    """Attention has biases of queries and keys, 2 D per block, that the CNN lacks."""
    shape = Shape(layers=3, width=32)
    sizes = {
        kind: count_parameters(
            nnx.eval_shape(lambda kind=kind: SequenceModel(kind, 9, 2, shape, rngs=nnx.Rngs(0)))
        )
        for kind in ("attention", "cnn", "dilated_cnn")
    }
    assert sizes["cnn"] == sizes["dilated_cnn"] == 25_442
    assert sizes["attention"] - sizes["cnn"] == 3 * 2 * 32
