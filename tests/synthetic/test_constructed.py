"""Weights set by hand solve the tasks exactly; what a CNN cannot see it cannot use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.config.synthetic import ConvolutionConfig, NetworkConfig
from vit_jax.models.attention import SelfAttention
from vit_jax.synthetic.constructed import solve_association, solve_convolution, solve_double_if
from vit_jax.synthetic.convolution import Convolution
from vit_jax.synthetic.networks import SequenceModel, count_parameters, reach
from vit_jax.synthetic.tasks import (
    Association,
    DoubleIf,
    accuracy,
    flag_first,
    random_orthogonal,
)


def run(model, x):
    """Compiled as a whole: op by op most of a test's time would be compiling."""
    return jax.jit(lambda x: model(x))(jnp.asarray(x))


def drawn(draw, seed, count):
    return jax.jit(draw, static_argnums=1)(jax.random.key(seed), count)


@pytest.mark.parametrize(
    ("grid", "length", "taps", "span", "rank"),
    [(None, 20, 4, 9, None), ((5, 6), 30, 9, 1, 3)],
)
def test_attention_by_offset_is_any_convolution(grid, length, taps, span, rank):
    config = ConvolutionConfig(grid=grid, taps=taps, span=span, rank=rank)
    task = Convolution.random(config, length, seed=3)
    x, y = drawn(task.draw, 0, 4)
    # One head a tap, and two that are not needed.
    found = run(solve_convolution(task, taps + 2), x)
    np.testing.assert_allclose(found, y, atol=2e-6)
    assert float(y.std()) > 0.3


def test_the_convolution_is_that_of_numpy():
    task = Convolution.random(ConvolutionConfig(features=3, taps=3, span=4), 16, seed=0)
    x, y = drawn(task.draw, 1, 1)
    expected = np.zeros((16, 3))
    for (_, offset), matrix in zip(task.offsets, task.kernel, strict=True):
        for i in range(16):
            expected[i] += np.asarray(x)[0, (i + offset) % 16] @ matrix
    np.testing.assert_allclose(y[0], expected, atol=1e-5)


def test_the_relative_bias_of_the_vits_can_be_a_convolution_too():
    """With a query that does not depend on the content: its bias times the vector of an offset."""
    width, tokens, offsets = 12, 10, (-2, 0, 1)
    model = SelfAttention(width, 3, tokens=tokens, relative=True, rngs=nnx.Rngs(0))
    kernel = np.random.default_rng(0).standard_normal((3, 4, width)).astype(np.float32)
    qkv = np.zeros((width, 3, 3, 4), np.float32)
    bias = np.zeros((3, 3, 4), np.float32)
    table = np.zeros((2 * tokens - 1, 3, 4), np.float32)
    bias[0, :, 0] = 1
    for head, offset in enumerate(offsets):
        qkv[4 * head : 4 * head + 4, 2, head] = np.eye(4)  # A head takes its own features.
        table[-offset + tokens - 1, head, 0] = 120 * 2  # Query minus key; logits are halved.
    model.qkv.kernel[...], model.qkv.bias[...] = jnp.asarray(qkv), jnp.asarray(bias)
    model.relative.table[...], model.out.kernel[...] = jnp.asarray(table), jnp.asarray(kernel)
    x = np.random.default_rng(1).standard_normal((2, tokens, width)).astype(np.float32)
    found = run(model, x)[0]
    inside = np.arange(2, tokens - 1)  # Where all taps lie in the sequence.
    expected = sum(
        x[:, inside + offset, 4 * head : 4 * head + 4] @ kernel[head]
        for head, offset in enumerate(offsets)
    )
    np.testing.assert_allclose(found[:, inside], expected, atol=1e-5)


@pytest.mark.parametrize("length", [2, 300])
def test_one_block_of_attention_solves_association_at_any_length(length):
    task = Association(random_orthogonal(jax.random.key(5), 8), length)
    batch = drawn(task.draw, 0, 64)
    assert accuracy(run(solve_association(task), batch.inputs), batch) == 1


def test_association_marks_all_and_only_the_tokens_that_are_equal():
    """Tokens that the task does not draw: many different ones, of any size, and near misses."""
    task = Association(random_orthogonal(jax.random.key(5), 4), 6)
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((50, 6, 4)).astype(np.float32) * 3
    image = tokens[:, 0] @ np.asarray(task.matrix).T
    tokens[:, 2] = tokens[:, 5] = image
    tokens[:, 3] = image + 0.05 * np.eye(4, dtype=np.float32)[rng.integers(0, 4, 50)]
    logits = run(solve_association(task), flag_first(jnp.asarray(tokens)))
    assert (np.asarray(logits.argmax(-1)) == np.array([0, 0, 1, 0, 0, 1])).all()


@pytest.mark.parametrize(("length", "most"), [(3, 1), (400, 30)])
def test_one_block_of_attention_counts_at_any_length(length, most):
    task = DoubleIf(most, length)
    batch = drawn(task.draw, 0, 64)
    model = solve_double_if(task)
    assert accuracy(run(model, batch.inputs), batch) == 1
    assert model.embed.in_features == 6
    far = drawn(lambda key, count: task.draw_at(key, count, length - 1), 1, 64)
    assert accuracy(run(model, far.inputs), far) == 1
    assert int(far.labels[:, 0].min()) >= 1


@pytest.mark.parametrize(("kind", "expected"), [("cnn", 3), ("dilated_cnn", 7)])
def test_what_a_cnn_cannot_reach_it_cannot_use(kind, expected):
    shape = NetworkConfig(layers=3, width=16)
    assert reach(kind, shape, 20) == expected
    model = SequenceModel(kind, 9, 2, shape, rngs=nnx.Rngs(0))
    task = Association(random_orthogonal(jax.random.key(0), 8), 20)
    x = drawn(task.draw, 1, 1).inputs
    outputs = jax.jacrev(lambda first: model(x.at[:, 0].set(first)).sum((0, 2)))
    jacobian = jax.jit(outputs)(x[0, 0])
    depends = np.abs(np.asarray(jacobian)).max(1)
    assert (depends[: expected + 1] > 1e-6).all()
    assert (depends[expected + 1 :] == 0).all()


def test_beyond_its_reach_a_cnn_is_right_in_half_of_the_cases_whatever_its_weights():
    """Of two sequences that differ in x_1 alone, marks that are right in one are wrong in other."""
    model = SequenceModel("cnn", 9, 2, NetworkConfig(layers=3), rngs=nnx.Rngs(2))
    task = Association(random_orthogonal(jax.random.key(0), 8), 20)
    batch = drawn(task.draw, 1, 64)
    # The y whose image is the other vector of the sequence: U^T of a token that is not U x_1.
    other = ~batch.labels.astype(bool) & batch.asked
    place = np.asarray(other.argmax(1))
    y = np.asarray(batch.inputs)[np.arange(64), place, :8] @ np.asarray(task.matrix)
    swapped = batch.inputs.at[:, 0, :8].set(y)
    one, two = (np.asarray(run(model, x)).argmax(-1)[:, 4:] for x in (batch.inputs, swapped))
    np.testing.assert_array_equal(one, two)
    labels = np.asarray(batch.labels)[:, 4:]
    assert ((one == labels).mean() + (two == 1 - labels).mean()) / 2 == 0.5


def test_models_of_equal_shape_are_of_equal_size():
    """Attention has biases of queries and keys, 2 D a block, that the CNN has not."""
    shape = NetworkConfig(layers=3, width=32)
    sizes = {
        kind: count_parameters(
            nnx.eval_shape(lambda kind=kind: SequenceModel(kind, 9, 2, shape, rngs=nnx.Rngs(0)))
        )
        for kind in ("attention", "cnn", "dilated_cnn")
    }
    assert sizes["cnn"] == sizes["dilated_cnn"] == 25_442
    assert sizes["attention"] - sizes["cnn"] == 3 * 2 * 32
