"""experiments/speed: JAX's attention kernels for TPUs, as the script calls them, by the formula."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import splash_attention

from experiments.speed import attention_kernels


def test_outputs_and_gradients_equal_those_of_the_formula(monkeypatch):
    """The kernels are interpreted: splash has an option for that, flash needs a mode of JAX."""
    make = functools.partial(splash_attention.make_splash_mha_single_device, interpret=True)
    monkeypatch.setattr(splash_attention, "make_splash_mha_single_device", make)
    draws = np.random.default_rng(0).standard_normal((4, 2, 19, 2, 64))
    *inputs, toward = jnp.asarray(draws, jnp.float32)

    def output_and_gradients(name):
        out, pull = jax.vjp(attention_kernels.KERNELS[name], *inputs)
        return out, *pull(toward)

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        want = output_and_gradients("einsum")
        splash = output_and_gradients("splash")
        with pltpu.force_tpu_interpret_mode():
            flash = output_and_gradients("flash")
    for found in (flash, splash):
        for ours, theirs in zip(found, want, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
