import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.models.placement import Placement, placed
from vit_jax.models.products import (
    Linear,
    LinearGeneral,
    contract,
    convolve,
    rescale,
    spread,
)
from vit_jax.models.registry import create_model


def summed_in(dtype, function):
    return placed(function, Placement(gradient_dtype=dtype))


def normal(seed, *shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def gradients(function, x, parameter):
    """The gradients of a fixed function of the result, and the result."""

    def loss(x, parameter):
        y = function(x, parameter).astype(jnp.float32)
        return (jnp.sin(y) * jnp.linspace(0.1, 1, y.size).reshape(y.shape)).sum(), y

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(x, parameter)


def assert_same_in_float32(function, x, parameter):
    (dx, dp), y = gradients(function, x, parameter)
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 2e-2)):
        (dx_here, dp_here), y_here = gradients(summed_in(dtype, function), x, parameter)
        np.testing.assert_array_equal(y_here, y)
        np.testing.assert_allclose(dx_here, dx, rtol=1e-5, atol=1e-5)
        scale = np.abs(dp).max()
        assert np.abs(dp_here - dp).max() < tolerance * scale
        assert dp_here.dtype == parameter.dtype


@pytest.mark.parametrize(
    ("x", "kernel", "contracted"),
    [((5, 4), (4, 3), 1), ((2, 5, 4), (4, 3, 2, 6), 1), ((2, 5, 3, 4), (3, 4, 6), 2)],
)
def test_gradients_of_a_contraction_are_those_of_autodiff(x, kernel, contracted):
    assert_same_in_float32(
        lambda x, k: contract(x, k, contracted), normal(0, *x), normal(1, *kernel)
    )


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("padding", ["SAME", "half"])
def test_gradients_of_a_convolution_are_those_of_autodiff(size, stride, padding):
    pads = [(size // 2, size // 2)] * 2 if padding == "half" else padding
    x, kernel = normal(0, 2, 8, 9, 3), normal(1, size, size, 3, 4)
    assert_same_in_float32(lambda x, k: convolve(x, k, stride, pads), x, kernel)


@pytest.mark.parametrize("vector", [(6,), (1, 6), (1, 5, 6), (1, 1, 6)])
def test_gradients_of_a_spread_vector_are_those_of_autodiff(vector):
    x = normal(0, 4, 5, 6)
    assert_same_in_float32(lambda x, v: x + spread(v, x.shape, x.dtype), x, normal(1, *vector))


def test_gradients_of_a_rescaling_are_those_of_autodiff():
    assert_same_in_float32(rescale, normal(0, 4, 5, 6), normal(1, 6))


def test_a_kernel_is_summed_in_the_type_asked_for():
    """256 + 1: float32 holds the sum, bfloat16 with its eight bits does not."""
    x = jnp.array([[256.0], [1.0]], jnp.bfloat16)

    def gradient(dtype):
        def total(kernel):
            return contract(x, kernel).astype(jnp.float32).sum()

        return jax.grad(summed_in(dtype, total))(jnp.ones((1, 1))).item()

    assert gradient("float32") == 257
    assert gradient("bfloat16") == 256
    assert gradient(None) == 256


def types_of_products(dtype, function, *arguments):
    """The types of the first and the last matmul or convolution: of the value and the kernel."""
    traced = jax.make_jaxpr(jax.grad(summed_in(dtype, function)))(*arguments)
    found = [e.outvars[0].aval.dtype for e in products(traced.jaxpr)]
    return [str(found[0]), str(found[-1])]


def products(jaxpr):
    """The matmuls and convolutions, also those of the branches for platforms."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            yield equation
        for branch in equation.params.get("branches", ()):
            yield from products(branch.jaxpr)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_a_bfloat16_layer_only_the_product_for_the_kernel_changes_its_type(dtype):
    x = normal(0, 2, 8, 8, 3, dtype=jnp.bfloat16)

    def dense(kernel):
        return contract(x, kernel).astype(jnp.float32).sum()

    def conv(kernel):
        return convolve(x, kernel, 2, "SAME").astype(jnp.float32).sum()

    assert types_of_products(dtype, dense, normal(1, 3, 5)) == ["bfloat16", dtype]
    assert types_of_products(None, dense, normal(1, 3, 5)) == ["bfloat16", "bfloat16"]
    assert types_of_products(dtype, conv, normal(1, 3, 3, 3, 4)) == ["bfloat16", dtype]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, None])
def test_layers_are_those_of_flax(dtype):
    x = normal(3, 2, 5, 4)
    for ours, theirs, sizes in (
        (Linear, nnx.Linear, (4, 6)),
        (LinearGeneral, nnx.LinearGeneral, (4, (3, 2))),
    ):
        one = ours(*sizes, dtype=dtype, bias_init=nnx.initializers.normal(), rngs=nnx.Rngs(0))
        two = theirs(*sizes, dtype=dtype, bias_init=nnx.initializers.normal(), rngs=nnx.Rngs(0))
        expected = two(x)
        for found in (one(x), summed_in("float32", one.__call__)(x)):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found.astype(jnp.float32), expected.astype(jnp.float32))


def test_last_axes_are_contracted_where_a_layer_says_so():
    layer = LinearGeneral((3, 2), 4, axis=(-2, -1), use_bias=False, rngs=nnx.Rngs(0))
    x = normal(0, 5, 3, 2)
    expected = jnp.einsum("bhk,hko->bo", x, layer.kernel[...])
    found = summed_in("float32", layer.__call__)(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {
            "name": "ViT-Ti/4", "width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2,
            "mlp": "swiglu", "layer_scale": 0.5, "num_registers": 2, "qk_norm": True,
            "pooling": "map", "class_token": True, "position_placement": "every_layer",
            "representation_size": 8,
        },
        {"name": "R+ViT-Mini/4", "width": 16, "mlp_dim": 32, "num_heads": 2},
    ],
)  # fmt: skip
def test_gradients_of_a_whole_model_are_those_of_autodiff(options):
    """Every parameter of every layer goes through this file, or is summed in float32 anyway."""
    model = create_model(num_classes=3, image_size=16, **options)
    graphdef, state = nnx.split(model)
    params = jax.tree.map(lambda p: p + 0.1 * normal(2, *p.shape), nnx.to_pure_dict(state))
    images = normal(1, 2, 16, 16, 3)

    def gradients_in(dtype):
        def loss(params):
            return jnp.square(nnx.merge(graphdef, params)(images)).sum()

        return jax.jit(jax.grad(summed_in(dtype, loss)))(params)

    expected, found = gradients_in(None), gradients_in("float32")
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-4 * np.abs(one).max() + 1e-6)
