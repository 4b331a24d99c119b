import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_models import run

from vit_jax.models.layers import LayerNorm, gelu, layer_norm, softmax
from vit_jax.models.stacking import keys_and_drop_rates


def x(shape=(3, 7, 16), seed=0, scale=2.0):
    return jnp.asarray(scale * np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def check_gradient(ours, theirs, *args):
    """Compares value and gradient of a weighted sum with those of a reference."""
    shapes = [jax.eval_shape(function, *args).shape for function in (ours, theirs)]
    assert shapes[0] == shapes[1]
    weights = x(shapes[0], seed=9)

    @jax.jit
    def both(*args):
        return [
            jax.value_and_grad(lambda *a, f=f: (f(*a) * weights).sum(), range(len(args)))(*args)
            for f in (ours, theirs)
        ]

    for a, b in zip(*map(jax.tree.leaves, both(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_layer_norm_equals_flax_with_its_gradient():
    reference = nnx.LayerNorm(16, epsilon=1e-6, use_fast_variance=False, rngs=nnx.Rngs(0))
    graphdef, _ = nnx.split(reference)

    def theirs(x, scale, bias):
        return nnx.merge(graphdef, {"scale": scale, "bias": bias})(x)

    check_gradient(layer_norm, theirs, x() + 3, x((16,), 1), x((16,), 2))


def test_layer_norm_of_bfloat16_is_computed_in_float32():
    """A large offset with a small spread: in bfloat16 the mean alone would lose it."""
    rows = (256 + jnp.arange(8, dtype=jnp.float32) * 2).astype(jnp.bfloat16)[None]
    got = run(LayerNorm(8), rows)
    want = (np.arange(8) - 3.5) / np.sqrt(np.mean((np.arange(8) - 3.5) ** 2))
    np.testing.assert_allclose(got[0], want, rtol=1e-5)
    half = nnx.eval_shape(LayerNorm(8, dtype=jnp.bfloat16), rows)
    assert half.dtype == jnp.bfloat16


@pytest.mark.parametrize("approximate", [True, False])
def test_gelu_equals_jax_with_its_gradient(approximate):
    check_gradient(
        lambda a: gelu(a, approximate),
        lambda a: jax.nn.gelu(a, approximate=approximate),
        x(scale=3.0),
    )


def test_softmax_equals_jax_with_its_gradient():
    check_gradient(softmax, lambda a: jax.nn.softmax(a, axis=-1), x(scale=5.0))


def test_gelu_and_softmax_keep_one_array_for_the_backward_pass():
    """Residuals of the gradient, in floats: the input for GELU, the output for softmax."""
    rows = x((4, 8))
    for function in (lambda a: gelu(a, True), softmax):
        pullback = jax.eval_shape(lambda x, f=function: jax.vjp(f, x)[1], rows)
        kept = [leaf for leaf in jax.tree.leaves(pullback) if hasattr(leaf, "size")]
        assert sum(leaf.size for leaf in kept) == rows.size


def test_the_rates_of_stochastic_depth():
    key = jax.random.key(0)
    np.testing.assert_allclose(keys_and_drop_rates(key, 3, 0.5)[1], [0, 0.25, 0.5])
    np.testing.assert_allclose(keys_and_drop_rates(key, 3, 0.5, constant=True)[1], [0.5] * 3)
