"""Stacks of layers: where kernels are cast, and what a TPU keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_models import randomize

from vit_jax.models import stacking

DEPTH = 3


def gradients(dtype):
    """Gradients of a stack of dense layers, and the types in which they leave the loop."""

    def build():
        def layer(rngs):
            return nnx.Linear(8, 8, dtype=dtype, rngs=rngs)

        return stacking.build_stack(layer, DEPTH, nnx.Rngs(0))

    blocks = randomize(build)
    graphdef, state = nnx.split(blocks)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((4, 8)), dtype)

    def total(params):
        layers = nnx.merge(graphdef, params)
        y, _ = stacking.scan_stack(layers, lambda layer, x, _: (layer(x), None), x, DEPTH)
        return y.astype(jnp.float32).sum()

    params = nnx.to_pure_dict(state)
    traced = jax.jit(jax.grad(total)).trace(params)
    scans = [e for e in traced.jaxpr.jaxpr.eqns if e.primitive.name == "scan"]
    stacked = {v.aval.dtype for v in scans[-1].outvars if v.aval.shape == (DEPTH, 8, 8)}
    return traced.lower().compile()(params), stacked


def test_kernels_cast_before_the_loop_give_the_same_gradients_at_half_the_size(monkeypatch):
    before, halved = gradients(jnp.bfloat16)
    monkeypatch.setattr(stacking, "_prepare_kernels", lambda blocks, params: params)
    inside, whole = gradients(jnp.bfloat16)
    assert (halved, whole) == ({jnp.dtype("bfloat16")}, {jnp.dtype("float32")})
    for name in ("kernel", "bias"):
        assert before[name].dtype == jnp.float32
        assert np.abs(before[name]).max() > 0.1
        np.testing.assert_array_equal(before[name], inside[name])


@pytest.mark.parametrize(
    ("platform", "remat", "scan", "expected"),
    [
        ("tpu", "none", True, "dots"),
        ("tpu", "none", False, "none"),
        ("tpu", "full", True, "full"),
        ("cpu", "none", True, "none"),
        ("gpu", "none", True, "none"),
    ],
)
def test_a_scanned_stack_on_a_tpu_never_keeps_everything(platform, remat, scan, expected):
    assert stacking.remat_for_platform(platform, remat, scan=scan) == expected
