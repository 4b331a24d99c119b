"""The Pallas attention kernel, interpreted, against the formula; and how it splits its work."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import ModelError
from vit_jax.models import pallas_attention
from vit_jax.models.attention import attend, choose_attention
from vit_jax.models.pallas_attention import attend_packed, fits

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


def random_inputs(batch, tokens, heads, head_dim, has_bias, dtype=jnp.float32):
    rng = np.random.default_rng(tokens)
    shape = (batch, tokens, heads, head_dim)
    qkv = jnp.asarray(rng.standard_normal((batch, tokens, 3, heads, head_dim)), dtype)
    bias = rng.standard_normal((batch, heads, tokens, tokens))
    return qkv, jnp.asarray(bias, jnp.float32) if has_bias else None, rng.standard_normal(shape)


def by_formula(qkv, bias, *, valid_tokens, implementation="einsum"):
    q, k, v = jnp.moveaxis(qkv, 2, 0)
    return attend(q, k, v, bias=bias, implementation=implementation, valid_tokens=valid_tokens)


def value_and_gradients(function, qkv, bias, toward):
    """The output, and the gradients of its inner product with `toward`."""

    def total(qkv, bias):
        out = function(qkv, bias)
        return (out.astype(jnp.float32) * toward).sum(), out.astype(jnp.float32)

    gradient = jax.grad(total, argnums=(0, 1) if bias is not None else 0, has_aux=True)
    # On CPUs, XLA leaves out the rounding to bfloat16 between two operations.
    compiled = jax.jit(gradient).lower(qkv, bias).compile({"xla_allow_excess_precision": False})
    return jax.tree.leaves(compiled(qkv, bias))


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_equal_those_of_the_formula(case):
    batch, tokens, heads, head_dim, valid, has_bias = CASES[case]
    qkv, bias, toward = random_inputs(batch, tokens, heads, head_dim, has_bias)
    found, expected = (
        value_and_gradients(functools.partial(function, valid_tokens=valid), qkv, bias, toward)
        for function in (attend_packed, by_formula)
    )
    assert len(found) == 2 + has_bias
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(theirs).max() > 0.1
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_step_of_one_group_of_heads_gives_the_same_as_one_of_whole_images(monkeypatch):
    """Long sequences do not fit otherwise."""
    qkv, _, toward = random_inputs(2, 12, 4, 64, False)
    whole = value_and_gradients(attend_packed, qkv, None, toward)
    monkeypatch.setattr(pallas_attention, "_BLOCK_BYTES", 120_000)
    jax.clear_caches()
    assert fits(12, 4, 64, 4, has_bias=False)
    split = value_and_gradients(lambda *args: attend_packed(*args), qkv, None, toward)
    for ours, theirs in zip(split, whole, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_in_bfloat16_it_is_no_less_exact_than_xlas_attention():
    qkv, _, toward = random_inputs(2, 197, 4, 64, False, jnp.bfloat16)
    reference = value_and_gradients(
        functools.partial(by_formula, valid_tokens=None), qkv.astype(jnp.float32), None, toward
    )
    errors = []
    for function in (
        functools.partial(attend_packed, valid_tokens=None),
        functools.partial(by_formula, valid_tokens=None, implementation="xla"),
    ):
        with jax.numpy_dtype_promotion("standard"):  # JAX's own attention mixes types.
            found = value_and_gradients(function, qkv, None, toward)
        pairs = zip(found, reference, strict=True)
        errors.append(
            [float(jnp.sqrt(jnp.mean((a.astype(jnp.float32) - b) ** 2))) for a, b in pairs]
        )
    ours, theirs = errors
    assert min(ours) > 1e-5, "bfloat16 rounds"
    assert ours[0] < 1.02 * theirs[0], "gradient"
    assert ours[1] < 1.02 * theirs[1], "output"


def test_padding_gets_no_gradient_and_changes_nothing():
    qkv, _, toward = random_inputs(1, 10, 2, 64, False)
    toward[:, 7:] = 0
    other = qkv.at[:, 7:].set(100.0)
    attend_seven = functools.partial(attend_packed, valid_tokens=7)
    first, second = (value_and_gradients(attend_seven, x, None, toward) for x in (qkv, other))
    np.testing.assert_array_equal(first[1][:, :7], second[1][:, :7])
    for d_qkv in (first[0], second[0]):
        assert np.abs(d_qkv[:, :7]).max() > 0.1
        assert np.abs(d_qkv[:, 7:]).max() == 0


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
    assert (long.implementation, long.padded_tokens) == ("xla", 2000)
    assert "takes 1152 tokens, these are 2000" in long.reason
    assert "do not fit on a chip" in choose(tokens=729, head_dim=72, num_heads=16).reason


def test_a_compiler_that_refuses_the_kernel_is_quoted(monkeypatch):
    """The default backend counts as a TPU, on which the kernel cannot be compiled."""
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    monkeypatch.setattr(pallas_attention, "attend_packed", refuse)
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
