import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.convolution import convolve
from vit_jax.models.group_norm import group_norm


def plain(x, scale, bias, groups, epsilon):
    """Group normalisation as its paper writes it, for automatic differentiation."""
    batch, height, width, channels = x.shape
    y = x.astype(jnp.float32).reshape(batch, height * width, groups, channels // groups)
    y = (y - y.mean((1, 3), keepdims=True)) / jnp.sqrt(y.var((1, 3), keepdims=True) + epsilon)
    scale, bias = scale[None, None, None], bias[None, None, None]
    return (y.reshape(x.shape) * scale + bias).astype(x.dtype)


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
    x, scale, bias, dy = arguments(jnp.float32)

    def pulled_back(function):
        value, pull = jax.vjp(lambda *a: function(*a, groups, 1e-5), x, scale, bias)
        return value, *pull(dy)

    for found, expected in zip(pulled_back(group_norm), pulled_back(plain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_in_bfloat16_statistics_are_taken_in_float32_and_only_the_input_is_kept():
    x, scale, bias, _ = arguments(jnp.bfloat16)
    found = group_norm(x, scale, bias, 3, 1e-5)
    assert found.dtype == jnp.bfloat16
    expected = plain(x.astype(jnp.float32), scale, bias, 3, 1e-5)
    np.testing.assert_allclose(found.astype(jnp.float32), expected, rtol=0.01, atol=0.01)
    _, pull = jax.vjp(lambda *a: group_norm(*a, 3, 1e-5), x, scale, bias)
    kept = [leaf for leaf in jax.tree.leaves(pull) if leaf.size == x.size]
    assert [leaf.dtype for leaf in kept] == [jnp.bfloat16]


@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [(1, 1, "SAME"), (1, 2, "SAME"), (3, 1, "SAME"), (3, 2, "SAME"), (3, 2, [(1, 1)] * 2)],
)
def test_convolutions_and_their_gradients_equal_those_of_xla(size, stride, padding):
    """Also of a CPU, where kernels of one pixel and gradients of kernels are matmuls."""
    keys = jax.random.split(jax.random.key(1), 3)
    x = jax.random.normal(keys[0], (2, 7, 8, 3))
    kernel = jax.random.normal(keys[1], (size, size, 3, 5))

    def xla(x, kernel):
        names = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), padding, dimension_numbers=names
        )

    def pulled_back(function):
        value, pull = jax.vjp(function, x, kernel)
        return value, *pull(jax.random.normal(keys[2], value.shape))

    ours = pulled_back(lambda x, kernel: convolve(x, kernel, stride, padding))
    for found, expected in zip(ours, pulled_back(xla), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
