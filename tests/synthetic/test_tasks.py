"""What the examples of the tasks are, and how well attention has a kernel's shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.config.synthetic import ConvolutionConfig
from vit_jax.synthetic.convolution import Convolution, OffsetAttention, offset_table, recovery
from vit_jax.synthetic.tasks import (
    Association,
    Batch,
    DoubleIf,
    accuracy,
    cross_entropy,
    distances,
    random_orthogonal,
)


def drawn(draw, seed, count):
    return jax.jit(draw, static_argnums=1)(jax.random.key(seed), count)


def test_association_marks_the_images_of_the_first_token():
    matrix = random_orthogonal(jax.random.key(0), 5)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(5), atol=1e-5)
    batch = drawn(Association(matrix, 12).draw, 1, 200)
    tokens, labels = np.asarray(batch.inputs), np.asarray(batch.labels)
    assert (tokens[:, 0, 5] == 1).all()
    assert (tokens[:, 1:, 5] == 0).all()
    distance = np.linalg.norm(tokens[..., :5] - tokens[:, :1, :5] @ np.asarray(matrix).T, axis=-1)
    np.testing.assert_array_equal(distance[:, 1:] < 1e-4, labels[:, 1:] == 1)
    assert 0.45 < labels[:, 1:].mean() < 0.55
    assert not np.asarray(batch.asked)[:, 0].any()
    assert np.asarray(batch.asked)[:, 1:].all()


def test_double_if_counts_what_the_first_token_asks_for():
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


def test_double_if_at_a_distance_has_nothing_to_count_beyond_it():
    batch = drawn(lambda key, count: DoubleIf(4, 12).draw_at(key, count, 5), 0, 300)
    kinds = np.asarray(batch.inputs)[..., :5].argmax(-1)
    wanted = np.where(kinds[:, 0] == 0, 1, 3)
    assert (kinds[:, 5] == wanted).all()
    assert not np.isin(kinds[:, 6:], (1, 3)).any()


def test_only_labels_that_are_asked_for_count():
    logits = jnp.log(jnp.array([[[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]]]))
    batch = Batch(
        jnp.zeros((1, 3, 1)), jnp.array([[1, 1, 1]]), jnp.array([[False, True, True]])
    )  # fmt: skip
    assert accuracy(logits, batch) == 0.5
    expected = -(np.log(0.75) + np.log(0.1)) / 2
    np.testing.assert_allclose(cross_entropy(logits, batch), expected, rtol=1e-6)


def test_distances_end_with_the_last_token():
    assert distances(2) == (1,)
    assert distances(64)[-3:] == (32, 48, 63)


def test_offsets_go_round_the_torus():
    table = offset_table((2, 3))
    assert table[0].tolist() == [0, 1, 2, 3, 4, 5]
    # From row 1, column 2: to row 0, column 0 it is one down and one right, each round the end.
    assert table[5].tolist() == [4, 5, 3, 1, 2, 0]


@pytest.mark.parametrize("content", [False, True])
def test_attention_by_offset_is_the_softmax_of_the_bias(content):
    model = OffsetAttention((1, 6), 4, 2, 4, content=content, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (3, 6, 4))
    found = np.asarray(jax.jit(lambda x: model.by_offset(x))(x))
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)
    same = np.allclose(found, jax.nn.softmax(model.bias[...]), atol=1e-6)
    assert same is not content


def test_recovery_of_a_known_shape():
    """Means over heads 0.05, 0.5, 0.15, 0.3: the two largest are the taps."""
    taps = np.array([1, 3])
    weights = np.array([[0.0, 0.8, 0.2, 0.0], [0.1, 0.2, 0.1, 0.6]], np.float32)
    assert recovery(weights, taps) == pytest.approx(
        {"attention_on_taps": 0.8, "taps_found": 1.0, "heads_on_one_tap": 1.0}
    )
    assert recovery(weights, np.array([0, 1])) == pytest.approx(
        {"attention_on_taps": 0.55, "taps_found": 0.5, "heads_on_one_tap": 0.5}
    )


def test_a_kernel_of_low_rank_has_it_and_outputs_of_variance_one():
    config = ConvolutionConfig(features=8, taps=5, span=2, rank=2)
    task = Convolution.random(config, 32, seed=0)
    assert np.linalg.matrix_rank(task.kernel).tolist() == [2] * 5
    assert task.offsets[:, 1].tolist() == [-2, -1, 0, 1, 2]
    assert task.taps.tolist() == [30, 31, 0, 1, 2]
    seeds = [Convolution.random(config, 32, seed=s) for s in range(50)]
    power = np.mean([np.square(t.kernel).sum() / 8 for t in seeds])
    assert 0.9 < power < 1.1
