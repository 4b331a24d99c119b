"""The gradients written out for CPUs equal those of automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from vit_jax.models.convolution import convolve


def normal(seed, *shape, dtype=jnp.float32):
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return jnp.asarray(values.astype(dtype))


def plain(x, kernel, stride, padding):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel.astype(x.dtype), (stride, stride), padding, dimension_numbers=numbers
    )


def value_and_gradients(function, x, kernel):
    """The result, and the gradients of a fixed function of it."""

    def loss(x, kernel):
        y = function(x, kernel).astype(jnp.float32)
        return (jnp.sin(y) * jnp.linspace(0.1, 1, y.size).reshape(y.shape)).sum(), y

    gradients, y = jax.grad(loss, argnums=(0, 1), has_aux=True)(x, kernel)
    return y, *gradients


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("size", "padding", "stride"),
    [
        (1, "half", 1),
        (1, "half", 2),
        (3, "SAME", 1),
        (3, "SAME", 2),
        (3, "half", 3),
        (7, "SAME", 2),
        slow(1, "half", 3),
        slow(3, "SAME", 3),
        slow(3, "half", 1),
        slow(3, "half", 2),
        slow(7, "SAME", 1),
        slow(7, "SAME", 3),
    ],
)
def test_gradients_equal_those_of_automatic_differentiation(size, stride, padding):
    pads = [(size // 2, size // 2)] * 2 if padding == "half" else padding
    x, kernel = normal(0, 2, 8, 9, 3), normal(1, size, size, 3, 4)

    @jax.jit
    def both(x, kernel):
        return [
            value_and_gradients(lambda *a, f=f: f(*a, stride, pads), x, kernel)
            for f in (convolve, plain)
        ]

    found, wanted = both(x, kernel)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * np.abs(other).max() + 1e-6)


def test_a_bfloat16_convolution_has_a_float32_gradient_of_its_float32_kernel():
    x, kernel = normal(0, 2, 8, 8, 3, dtype=jnp.bfloat16), normal(1, 3, 3, 3, 4)

    @jax.jit
    def both(x, kernel):
        ours = value_and_gradients(lambda x, k: convolve(x, k, 2, "SAME"), x, kernel)
        single = x.astype(jnp.float32)
        return ours, value_and_gradients(lambda x, k: plain(x, k, 2, "SAME"), single, kernel)

    (y, dx, dkernel), wanted = both(x, kernel)
    output = jax.eval_shape(lambda x, k: convolve(x, k, 2, "SAME"), x, kernel)
    assert output.dtype == dx.dtype == jnp.bfloat16
    assert dkernel.dtype == jnp.float32
    assert np.abs(dkernel - wanted[2]).max() < 0.05 * np.abs(wanted[2]).max()
    assert np.abs(y - wanted[0]).max() < 0.05 * np.abs(wanted[0]).max()
