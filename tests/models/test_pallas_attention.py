"""The Pallas attention kernel, interpreted, against the formula; and how it splits its work."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import ModelError
from vit_jax.models import pallas_attention
from vit_jax.models.attention import attend
from vit_jax.models.attention_choice import choose_attention
from vit_jax.models.pallas_attention import attend_qkv, fits

# Batch, tokens, heads, features of a head, real tokens, whether there is a position bias.
CASES = {
    "two heads fill 128 lanes": (4, 20, 6, 64, None, False),
    "three heads are one group": (2, 9, 3, 64, None, False),
    "padding": (2, 12, 2, 64, 9, False),
    "several tiles of rows, the last one shorter": (1, 650, 1, 16, 645, False),
    "72 features": (1, 9, 2, 72, None, False),
    "80 features": (1, 9, 8, 80, None, False),
    "88 features": (1, 9, 2, 88, None, False),
    "96 features": (1, 9, 4, 96, None, False),
    "104 features": (1, 9, 2, 104, None, False),
    "128 features": (1, 9, 2, 128, 8, False),
    "a bias": (2, 12, 4, 64, None, True),
    "a bias and padding": (2, 12, 4, 64, 10, True),
}


def random_inputs(batch, tokens, heads, head_dim, *, with_bias=(), dtype=jnp.float32):
    """Arguments of `attend_qkv`, and a random gradient of its result."""
    rng = np.random.default_rng(tokens)
    shapes = {
        "qkv": (batch, tokens, 3, heads, head_dim),
        "qkv_bias": (3, heads, head_dim),
        "bias": (batch, heads, tokens, tokens),
    }
    inputs = {
        name: jnp.asarray(rng.standard_normal(shape), jnp.float32 if name == "bias" else dtype)
        for name, shape in shapes.items()
        if name == "qkv" or name in with_bias
    }
    return inputs, rng.standard_normal((batch, tokens, heads, head_dim))


def by_formula(qkv, *, qkv_bias=None, bias=None, num_valid=None, implementation="einsum"):
    whole = qkv if qkv_bias is None else qkv + qkv_bias[None, None]
    q, k, v = jnp.moveaxis(whole, 2, 0)
    return attend(q, k, v, bias=bias, implementation=implementation, num_valid=num_valid)


def value_and_gradients(function, inputs, toward, **options):
    """The output as "out", and by name the gradients of its inner product with `toward`."""

    def total(inputs):
        out = function(**inputs, **options).astype(jnp.float32)
        return (out * toward).sum(), out

    gradient = jax.grad(total, has_aux=True)
    # On CPUs, XLA leaves out the rounding to bfloat16 between two operations.
    compiled = jax.jit(gradient).lower(inputs).compile({"xla_allow_excess_precision": False})
    gradients, out = compiled(inputs)
    return {"out": out, **gradients}


@pytest.mark.parametrize("with_qkv_bias", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_equal_those_of_the_formula(case, with_qkv_bias):
    *sizes, valid, has_bias = CASES[case]
    names = ["bias"] * has_bias + ["qkv_bias"] * with_qkv_bias
    inputs, toward = random_inputs(*sizes, with_bias=names)
    found, expected = (
        value_and_gradients(function, inputs, toward, num_valid=valid)
        for function in (attend_qkv, by_formula)
    )
    assert set(found) == {"out", *inputs}
    for name, ours in found.items():
        assert np.abs(expected[name]).max() > 0.1
        np.testing.assert_allclose(ours, expected[name], rtol=1e-5, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_a_step_of_one_group_of_heads_gives_the_same_as_one_of_whole_images(monkeypatch):
    """Long sequences do not fit otherwise."""
    inputs, toward = random_inputs(2, 12, 4, 64, with_bias=["qkv_bias"])
    whole = value_and_gradients(attend_qkv, inputs, toward)
    monkeypatch.setattr(pallas_attention, "_BLOCK_BYTES", 120_000)
    assert not pallas_attention._split(2, 12, 12, 4, 64, 4, has_bias=False).packed
    jax.clear_caches()
    split = value_and_gradients(attend_qkv, inputs, toward)
    for name, ours in split.items():
        np.testing.assert_allclose(ours, whole[name], rtol=1e-6, atol=1e-5, err_msg=name)


def test_in_bfloat16_it_is_no_less_exact_than_xlas_attention():
    inputs, toward = random_inputs(2, 197, 4, 64, dtype=jnp.bfloat16)
    single = {name: x.astype(jnp.float32) for name, x in inputs.items()}
    reference = value_and_gradients(by_formula, single, toward)

    def errors(function, **options):
        with jax.numpy_dtype_promotion("standard"):  # JAX's own attention mixes types.
            found = value_and_gradients(function, inputs, toward, **options)
        differences = {n: found[n].astype(jnp.float32) - reference[n] for n in found}
        return {n: float(jnp.sqrt(jnp.mean(d**2))) for n, d in differences.items()}

    ours, theirs = errors(attend_qkv), errors(by_formula, implementation="xla")
    for name in ("out", "qkv"):
        assert 1e-5 < ours[name] < 1.02 * theirs[name], name


def test_padding_gets_no_gradient_and_changes_nothing():
    inputs, toward = random_inputs(1, 10, 2, 64)
    toward[:, 7:] = 0
    first = value_and_gradients(attend_qkv, inputs, toward, num_valid=7)
    other = {"qkv": inputs["qkv"].at[:, 7:].set(100.0)}
    second = value_and_gradients(attend_qkv, other, toward, num_valid=7)
    np.testing.assert_array_equal(first["out"][:, :7], second["out"][:, :7])
    for found in (first, second):
        assert np.abs(found["qkv"][:, :7]).max() > 0.1
        assert np.abs(found["qkv"][:, 7:]).max() == 0


@pytest.mark.parametrize(
    ("sizes", "images", "packed"),
    [
        # ViT-S/16, bfloat16: 7 x 200 rows x 384 features x 2 bytes, twice: 2.05 MiB an image.
        ((128, 197, 6, 64, 2), 4, True),
        # ViT-B/16: 4.1 MiB an image.
        ((128, 197, 12, 64, 2), 2, True),
        ((3, 197, 12, 64, 2), 1, True),
        # ViT-L/16 at 384 px: 16 MiB for all heads, 2 MiB for two.
        ((8, 577, 16, 64, 2), 1, False),
    ],
)
def test_a_step_takes_as_many_images_as_fit_and_divide_the_batch(sizes, images, packed):
    batch, tokens, heads, head_dim, itemsize = sizes
    split = pallas_attention._split(
        batch, tokens, tokens, heads, head_dim, itemsize, has_bias=False
    )
    assert (split.images, split.packed) == (images, packed)


def test_sequences_that_are_too_long_do_not_fit():
    assert fits(1025, 16, 64, 2, has_bias=False)
    assert not fits(1153, 16, 64, 2, has_bias=False)
    # Eight heads of 80 features fill five tiles of lanes: 10.0 and 17.6 MiB of blocks.
    assert fits(577, 16, 80, 2, has_bias=False)
    assert not fits(1025, 16, 80, 2, has_bias=False)
    # Sixteen heads of 72 features fill nine tiles of lanes only together.
    assert not fits(729, 16, 72, 2, has_bias=False)


def choose(requested="auto", **changes):
    shape = {"tokens": 197, "head_dim": 64, "num_heads": 12, "dtype": jnp.dtype("bfloat16")}
    return choose_attention(
        requested, **({**shape, "has_bias": False, "platform": "tpu"} | changes)
    )


def test_a_tpu_takes_the_kernel_where_it_fits_and_says_why_not_elsewhere():
    assert choose().implementation == "pallas"
    assert choose(has_bias=True).implementation == "pallas"
    assert choose(dtype=jnp.dtype("float32")).implementation == "pallas"
    long = choose(tokens=2000)
    assert (long.implementation, long.token_multiple) == ("xla", 1)
    assert "takes 1152 tokens, these are 2000" in long.reason
    assert "do not fit on a chip" in choose(tokens=729, head_dim=72, num_heads=16).reason


def test_a_compiler_that_refuses_the_kernel_is_quoted(monkeypatch):
    """The default backend counts as a TPU, on which the kernel cannot be compiled."""
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    monkeypatch.setattr(pallas_attention, "attend_qkv", refuse)
    choice = choose(tokens=33)
    assert choice.implementation == "xla"
    assert choice.reason == "the Pallas kernel failed: no such instruction"


def refuse(*args, **kwargs):
    raise NotImplementedError("no such instruction\nand more")


def test_the_kernel_can_be_requested_on_a_cpu_but_not_on_a_gpu():
    assert choose("pallas", platform="cpu").implementation == "pallas"
    with pytest.raises(
        ModelError, match="pallas, but the Pallas kernel needs a TPU, this is a gpu"
    ):
        choose("pallas", platform="gpu")
