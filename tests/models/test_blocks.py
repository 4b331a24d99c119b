import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_models import run

from vit_jax.models.block_options import BlockOptions
from vit_jax.models.blocks import EncoderBlock, EncoderShape
from vit_jax.models.mlp import SwiGlu, swiglu_hidden
from vit_jax.models.registry import build_model, model_options


def lowered(depth, scan=True):
    config = model_options("ViT-Ti/16", depth=depth, scan=scan)
    sizes = {"num_classes": 10, "image_size": 32}
    model = nnx.eval_shape(lambda: build_model(config, key=jax.random.key(0), **sizes))
    graphdef, params = nnx.split(model)

    def loss(params, x):
        return nnx.merge(graphdef, params)(x).sum()

    images = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    return jax.jit(jax.grad(loss)).lower(nnx.to_pure_dict(params), images).as_text()


def test_the_program_does_not_grow_with_depth():
    """A scanned program has as many operations for 48 layers as for 2; an unrolled one grows."""
    count = lowered(2).count("stablehlo.")
    assert lowered(48).count("stablehlo.") == count
    assert lowered(6, scan=False).count("stablehlo.") > lowered(2, scan=False).count("stablehlo.")


def test_swiglu_by_hand():
    module = SwiGlu(1, 1, BlockOptions(), rngs=nnx.Rngs(0))
    gate, value, out = 2.0, 3.0, 5.0
    for linear, weight in ((module.gate, gate), (module.value, value), (module.contract, out)):
        linear.kernel[...] = jnp.full((1, 1), weight)
        linear.bias[...] = jnp.zeros(1)
    x = 0.5
    silu = gate * x / (1 + np.exp(-gate * x))
    np.testing.assert_allclose(
        run(module, jnp.full((1, 1), x)), [[silu * value * x * out]], rtol=1e-6
    )


def test_swiglu_has_about_as_many_parameters_as_the_plain_mlp():
    for mlp_dim in (768, 1536, 3072, 4096):
        assert swiglu_hidden(mlp_dim) % 8 == 0
        assert 0 <= 3 * swiglu_hidden(mlp_dim) - 2 * mlp_dim < 24


@pytest.mark.parametrize(
    ("placement", "layer_scale", "want"),
    [
        ("pre", None, [3 + 2, 1 - 2]),  # x + 2 norm(x)
        ("post", None, [1, -1]),  # norm(x + 2 x) = norm([9, 3])
        ("res_post", None, [3 + 1, 1 - 1]),  # x + norm(2 x)
        ("pre", 0.5, [3 + 1, 1 - 1]),
        ("res_post", 0.5, [3 + 0.5, 1 - 0.5]),  # The scale comes after the norm.
    ],
)
def test_norm_placements_by_hand(placement, layer_scale, want):
    """One token [3, 1], whose norm is [1, -1]; attention doubles its input, the MLP returns 0."""
    options = BlockOptions(
        norm_placement=placement, norm_epsilon=1e-12, layer_scale=layer_scale, qkv_bias=False
    )
    block = EncoderBlock(
        EncoderShape(2, 1, 1, 1), options, implementation="einsum", rngs=nnx.Rngs(0)
    )
    identity = jnp.eye(2)
    block.attention.qkv.kernel[...] = jnp.stack([identity] * 3, 1)[:, :, None]
    block.attention.out.kernel[...] = 2 * identity[None]
    block.mlp.contract.kernel[...] = jnp.zeros((1, 2))
    block.mlp.contract.bias[...] = jnp.zeros(2)
    found, _ = run(block, jnp.array([[[3.0, 1.0]]]))
    np.testing.assert_allclose(found[0, 0], want, rtol=1e-5, atol=1e-5)
