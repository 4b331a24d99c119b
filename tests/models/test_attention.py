import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.errors import ModelError
from vit_jax.models import attention_choice as module
from vit_jax.models.attention import (
    SelfAttention,
    attend,
    attention_weights,
)
from vit_jax.models.attention_choice import choose_attention
from vit_jax.models.block_options import BlockOptions
from vit_jax.models.position import rope_2d, rotate


def choose(requested="auto", **changes):
    shape = {"tokens": 197, "head_dim": 64, "num_heads": 12, "dtype": jnp.dtype("bfloat16")}
    return choose_attention(
        requested, **({**shape, "has_bias": False, "platform": "gpu"} | changes)
    )


def test_on_a_gpu_odd_token_counts_are_padded_to_even_for_cudnn(monkeypatch):
    monkeypatch.setattr(module, "_compiler_problem", lambda *shape, **bias: None)
    assert (choose().implementation, choose().token_multiple) == ("cudnn", 2)


@pytest.mark.parametrize(
    ("changes", "implementation", "reason"),
    [
        ({"platform": "cpu"}, "einsum", "CPU"),
        ({"dtype": jnp.dtype("float32")}, "xla", "this is float32"),
        ({"has_bias": True}, "xla", "bias"),
        ({"head_dim": 160}, "xla", "head dimension 160"),
        ({"head_dim": 60}, "xla", "head dimension 60"),
    ],
)
def test_if_cudnn_cannot_be_used_the_reason_is_given(monkeypatch, changes, implementation, reason):
    monkeypatch.setattr(module, "_compiler_problem", lambda *shape, **bias: None)
    choice = choose(**changes)
    assert (choice.implementation, choice.token_multiple) == (implementation, 1)
    assert reason in choice.reason


def test_a_gpu_whose_cudnn_fails_falls_back_and_says_why(monkeypatch):
    """Here there is no cuDNN at all, so that the probe itself runs and fails."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    choice = choose()
    assert (choice.implementation, choice.token_multiple) == ("xla", 1)
    assert choice.reason.startswith("cuDNN failed: ")
    assert len(choice.reason) > len("cuDNN failed: ")


def test_for_a_gpu_that_is_not_there_rules_decide(monkeypatch):
    """cuDNN is not asked: it cannot answer without a device."""
    monkeypatch.setattr(module, "_compiler_problem", lambda *_, **__: pytest.fail("asked"))
    for head_dim in (64, 72, 80, 88, 96, 104, 128):
        choice = choose(head_dim=head_dim)
        assert (choice.implementation, choice.token_multiple) == ("cudnn", 2)
    assert choose(dtype=jnp.dtype("float16")).implementation == "cudnn"
    assert choose(head_dim=136).implementation == "xla"
    assert choose(head_dim=60).implementation == "xla"


@pytest.mark.gpu
def test_the_rules_of_cudnn_agree_with_its_compiler():
    found, expected = {}, {}
    problem = functools.partial(module._compiler_problem, "cudnn", has_bias=False)
    with jax.numpy_dtype_promotion("standard"):  # JAX's own attention mixes types.
        for dtype in ("bfloat16", "float16"):
            for head_dim in (32, 64, 72, 80, 88, 96, 104, 128):
                for tokens in (50, 196, 198, 258, 578, 1026):
                    shape = tokens, 12, head_dim, dtype
                    found[shape], expected[shape] = problem(*shape), None
        assert problem(198, 12, 60, "bfloat16") is not None
        assert problem(198, 12, 64, "float32") is not None
    assert found == expected


def test_the_configured_implementation_is_used_or_the_error_says_why_it_cannot_work():
    assert choose("xla").implementation == "xla"
    assert choose("einsum", tokens=5).token_multiple == 1
    with pytest.raises(ModelError, match="cudnn, but cuDNN needs a GPU, this is a cpu"):
        choose("cudnn", platform="cpu")
    with pytest.raises(ModelError, match="cuDNN has no gradient for a learned position bias"):
        choose("cudnn", has_bias=True)


def random_qkv(tokens=5, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal((2, tokens, 3, 4)), jnp.float32) for _ in range(3)]


def jitted(function, **options):
    """`function` with these options, compiled as a whole."""
    return jax.jit(functools.partial(function, **options))


def test_all_attention_implementations_agree_with_gradients():
    bias = jnp.asarray(np.random.default_rng(1).standard_normal((2, 3, 5, 5)), jnp.float32)

    def results(implementation, valid):
        def total(q, k, v, b):
            out = attend(q, k, v, bias=b, implementation=implementation, num_valid=valid)
            return (out**2).sum(), out

        grads, out = jax.jit(jax.grad(total, argnums=(0, 1, 2, 3), has_aux=True))(
            *random_qkv(), bias
        )
        return [out, *grads]

    for valid in (None, 4):
        for a, b in zip(results("einsum", valid), results("xla", valid), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_attend_by_hand():
    """Two keys with logits 0 and log 3 weigh 1/4 and 3/4."""
    query = jnp.ones((1, 1, 1, 1))
    key = jnp.asarray([0.0, np.log(3)], jnp.float32).reshape(1, 2, 1, 1)
    value = jnp.asarray([4.0, 8.0]).reshape(1, 2, 1, 1)
    for implementation in ("xla", "einsum"):
        out = jitted(attend, implementation=implementation)(query, key, value)
        assert float(out.squeeze()) == pytest.approx(0.25 * 4 + 0.75 * 8)
    weights = jitted(attention_weights)(query, key)
    np.testing.assert_allclose(weights.squeeze(), [0.25, 0.75], rtol=1e-6)


@pytest.mark.parametrize("implementation", ["xla", "pallas"])
def test_masked_keys_get_no_weight(implementation):
    """The Pallas kernel takes no mask, so that another one is used in its place."""
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 5, 2, 8))
    mask = jnp.broadcast_to(jnp.arange(5) != 3, (1, 1, 5, 5))
    want = attend(q, k, v, implementation="einsum", mask=mask)
    np.testing.assert_allclose(
        attend(q, k, v, implementation=implementation, mask=mask), want, atol=1e-6
    )
    layer = SelfAttention(16, 2, BlockOptions(), implementation=implementation, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (2, 5, 16))
    got, _ = layer(x.at[:, 3].set(7.0), mask=mask)
    np.testing.assert_allclose(jnp.delete(got, 3, 1), jnp.delete(layer(x, mask=mask)[0], 3, 1))


def test_logits_are_in_float32():
    """Logits 128 and 128.5, which are equal in bfloat16, weigh 1 / (1 + sqrt(e)) and the rest."""
    query = jnp.ones((1, 1, 1, 4), jnp.bfloat16)
    key = jnp.asarray([[256, 0, 0, 0], [256, 1, 0, 0]], jnp.bfloat16).reshape(1, 2, 1, 4)
    weights = jitted(attention_weights)(query, key).squeeze()
    assert float(weights[0]) == pytest.approx(1 / (1 + np.exp(0.5)), rel=1e-5)


def test_queries_and_keys_have_norms_of_their_own():
    """With rotated positions it matters which of the two a scale belongs to."""
    layer = SelfAttention(4, 1, BlockOptions(qk_norm=True), implementation="xla", rngs=nnx.Rngs(0))
    layer.query_norm.scale[...] = jnp.asarray([1.0, 2.0, 3.0, 4.0])
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 3, 4)), jnp.float32)
    rope = tuple(jnp.asarray(a) for a in rope_2d((1, 3), 4, num_prefix=0))
    _, found = nnx.jit(lambda layer: layer(x, rope=rope, capture=("attention_weights",)))(layer)
    kernel = np.asarray(layer.qkv.kernel[...]).reshape(4, 3, 4)
    q, k = (np.asarray(x)[0] @ kernel[:, i] for i in (0, 1))
    q, k = ((v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + 1e-6)
            for v in (q, k))  # fmt: skip
    turned = [
        np.asarray(rotate(jnp.asarray(v[None, :, None], jnp.float32), rope))[0, :, 0]
        for v in (q * [1, 2, 3, 4], k)
    ]
    logits = turned[0] @ turned[1].T / 2
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(found["attention_weights"][0, 0], weights, rtol=2e-3)
