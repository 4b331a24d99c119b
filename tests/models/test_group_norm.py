import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.group_norm import group_norm


def plain(x, scale, bias, groups, epsilon):
    """Group normalisation as its paper writes it, for automatic differentiation."""
    batch, height, width, channels = x.shape
    y = x.astype(jnp.float32).reshape(batch, height * width, groups, channels // groups)
    y = (y - y.mean((1, 3), keepdims=True)) / jnp.sqrt(y.var((1, 3), keepdims=True) + epsilon)
    scale, bias = scale[None, None, None], bias[None, None, None]
    return (y.reshape(x.shape) * scale + bias).astype(x.dtype)


@functools.partial(jax.jit, static_argnums=0)
def arguments(dtype):
    keys = jax.random.split(jax.random.key(0), 4)
    x = (3 + 2 * jax.random.normal(keys[0], (2, 5, 4, 12))).astype(dtype)
    dy = jax.random.normal(keys[1], x.shape)
    return x, jax.random.normal(keys[2], 12), jax.random.normal(keys[3], 12), dy


def test_two_channels_per_group_by_hand():
    """Groups (1, 3) and (10, 10): means 2 and 10, variances 1 and 0."""
    x = jnp.array([1.0, 3.0, 10.0, 10.0]).reshape(1, 1, 1, 4)
    found = group_norm(x, jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.array([0.0, 0.0, 5.0, 6.0]), 2, 0.25)
    root = np.sqrt(1.25)
    np.testing.assert_allclose(found.ravel(), [-1 / root, 2 / root, 5, 6], rtol=1e-6)


@pytest.mark.parametrize("groups", [1, 3, 12])
def test_value_and_gradients_equal_those_of_automatic_differentiation(groups):
    *inputs, dy = arguments(jnp.float32)

    @jax.jit
    def both(dy, *inputs):
        found, pull = jax.vjp(lambda *a: group_norm(*a, groups, 1e-5), *inputs)
        expected, pull_plain = jax.vjp(lambda *a: plain(*a, groups, 1e-5), *inputs)
        return (found, *pull(dy)), (expected, *pull_plain(dy))

    for found, expected in zip(*both(dy, *inputs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_in_bfloat16_statistics_are_taken_in_float32_and_only_the_input_is_kept():
    x, scale, bias, _ = arguments(jnp.bfloat16)

    @jax.jit
    def both(x, *weights):
        return group_norm(x, *weights, 3, 1e-5), plain(x.astype(jnp.float32), *weights, 3, 1e-5)

    found, expected = both(x, scale, bias)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(found), expected, rtol=0.01, atol=0.01)

    def kept_for_gradient(*inputs):
        return jax.vjp(lambda *a: group_norm(*a, 3, 1e-5), *inputs)[1]

    pull = jax.eval_shape(kept_for_gradient, x, scale, bias)
    kept = [leaf for leaf in jax.tree.leaves(pull) if leaf.size == x.size]
    assert [leaf.dtype for leaf in kept] == [jnp.bfloat16]
