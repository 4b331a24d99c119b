"""Stacks of layers: where kernels are cast, and how the loop is chosen."""

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


def jaxpr_of(scan, remat):
    """Returns the loss's gradient through a stack with these options, as text."""
    layers = stacking.build_stack(lambda rngs: nnx.Linear(4, 4, rngs=rngs), DEPTH, nnx.Rngs(0))
    loop = stacking.layer_loop(scan, remat)

    def total(x):
        found = stacking.scan_stack(
            layers, lambda layer, x, _: (layer(x), None), x, DEPTH, loop=loop
        )
        return found[0].sum()

    return str(jax.make_jaxpr(jax.grad(total))(jnp.ones((2, 4))))


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_loop_is_scanned_or_unrolled_and_recomputes_what_it_does_not_keep(scan, remat):
    text = jaxpr_of(scan, remat)
    assert f"unroll={1 if scan else DEPTH}" in text
    assert ("checkpoint" in text or "remat" in text) == (remat == "full")
    assert jaxpr_of("auto", "auto") == jaxpr_of(True, "none")


def test_outside_a_run_a_scanned_stack_on_a_tpu_keeps_only_matmuls(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert jaxpr_of("auto", "auto") == jaxpr_of(True, "dots")
    assert jaxpr_of(False, "auto") == jaxpr_of(False, "none")
