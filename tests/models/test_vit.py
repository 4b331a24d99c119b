import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from flax import nnx

from vit_jax.config import ModelConfig
from vit_jax.errors import ConfigError, ModelError
from vit_jax.models.registry import build_model, create_model

TINY = {"width": 16, "depth": 3, "mlp_dim": 24, "num_heads": 2}


def make(seed=0, num_classes=5, image_size=16, **options):
    """A tiny ViT-*/8 whose every parameter is random, head, biases and scales included."""
    config = ModelConfig.from_mapping({"name": "ViT-Ti/8", **TINY, **options})
    sizes = {"num_classes": num_classes, "image_size": image_size}
    model = nnx.eval_shape(lambda: build_model(config, key=jax.random.key(0), **sizes))
    graphdef, state = nnx.split(model)
    leaves, treedef = jax.tree.flatten(nnx.to_pure_dict(state))
    rng = np.random.default_rng(seed)
    leaves = [jnp.asarray(0.5 * rng.standard_normal(x.shape), jnp.float32) for x in leaves]
    return nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))


def params64(model):
    pure = nnx.to_pure_dict(nnx.state(model))
    return jax.tree.map(lambda x: np.asarray(x, np.float64), pure)


def images(batch=2, size=16, seed=1):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (batch, size, size, 3)).astype(np.float32)


@pytest.mark.parametrize("position", ["learned_1d", "relative"])
@pytest.mark.parametrize("pooling", ["token", "gap", "map", "flatten"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_logits_equal_the_formula_written_out_in_float64(position, pooling, placement):
    model = make(pooling=pooling, norm_placement=placement, position_embedding=position)
    x = images()
    with jax.default_matmul_precision("highest"):
        got = model(x)
    params = params64(model)
    want = [
        reference.vit(image, params, placement=placement, pooling=pooling)
        for image in x.astype(np.float64)
    ]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_a_new_model_says_zero_since_its_head_starts_at_zero():
    model = create_model("ViT-Ti/8", num_classes=5, image_size=16, **TINY)
    assert np.abs(model(images())).max() == 0


def test_head_bias_starts_where_told():
    model = create_model("ViT-Ti/8", num_classes=5, image_size=16, head_bias_init=-10.0, **TINY)
    np.testing.assert_array_equal(model(images()), np.full((2, 5), -10, np.float32))


def test_the_same_seed_gives_the_same_model_and_another_seed_another():
    one, same, other = (
        create_model("ViT-Ti/8", image_size=16, seed=seed, **TINY).patch_embedding.kernel[...]
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0.01


def test_attention_and_mlp_kernels_start_xavier_uniform():
    model = create_model("ViT-S/8", image_size=16, depth=2)
    blocks = model.encoder.blocks
    qkv = np.asarray(blocks.attention.qkv.kernel[...])
    limit = np.sqrt(6 / (384 + 384))
    assert qkv.shape == (2, 384, 3, 6, 64)
    assert 0.99 * limit < np.abs(qkv).max() <= limit
    expand = np.asarray(blocks.mlp.expand.kernel[...])
    limit = np.sqrt(6 / (384 + 1536))
    assert 0.99 * limit < np.abs(expand).max() <= limit
    assert np.std(qkv[0] - qkv[1]) > 0.01  # Each layer has its own draw.
    assert np.std(qkv[:, :, 0] - qkv[:, :, 1]) > 0.01
    assert 0 < np.abs(blocks.mlp.expand.bias[...]).max() < 1e-5
    assert np.abs(blocks.attention.qkv.bias[...]).max() == 0
    assert np.abs(model.class_token[...]).max() == 0
    assert np.std(model.position_embedding.table[...]) == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("options", [{"remat": "full"}, {"remat": "dots"}, {"scan": False}])
def test_remat_and_unrolling_change_neither_output_nor_gradient(options):
    x = images()

    def value_and_grad(model):
        graphdef, params = nnx.split(model)

        def total(params):
            return (nnx.merge(graphdef, params)(x, key=jax.random.key(3)) ** 2).mean()

        return jax.jit(jax.value_and_grad(total))(nnx.to_pure_dict(params))

    extra = {"dropout": 0.2, "stochastic_depth": 0.3}
    plain, changed = value_and_grad(make(**extra)), value_and_grad(make(**extra, **options))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), plain, changed
    )


EVERYTHING = {
    "num_registers": 2,
    "layer_scale": 0.1,
    "qk_norm": True,
    "mlp": "swiglu",
    "representation_size": 6,
    "position_embedding": "learned_2d",
    "pooling": "map",
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        EVERYTHING,
        {"position_embedding": "relative", "norm_placement": "post", "pooling": "gap"},
        {"position_embedding": "rope_2d", "pooling": "flatten", "num_registers": 1},
        {"position_embedding": "sincos_2d", "dtype": "bfloat16"},
    ],
)
def test_every_parameter_gets_a_gradient(options):
    graphdef, params = nnx.split(make(**options))
    x = images()

    def total(params):
        logits = nnx.merge(graphdef, params)(x)
        return jnp.sum(logits * jnp.arange(1.0, 6.0)[None])

    grads = jax.jit(jax.grad(total))(nnx.to_pure_dict(params))
    for path, grad in jax.tree_util.tree_leaves_with_path(grads):
        if "registers" in str(path) and options.get("pooling") == "flatten":
            continue
        size = np.abs(np.asarray(grad, np.float32))
        assert size.max() > 1e-9, path
        assert np.isfinite(size).all(), path


def test_bfloat16_computes_in_it_keeps_float32_params_and_agrees_to_its_precision():
    single, half = make(), make(dtype="bfloat16")
    stored = {str(x.dtype) for x in jax.tree.leaves(nnx.to_pure_dict(nnx.state(half)))}
    assert stored == {"float32"}
    logits, found = half(images(), return_intermediates=("block_output", "attention_weights"))
    assert found["block_output"].dtype == jnp.bfloat16
    assert found["attention_weights"].dtype == jnp.float32
    assert logits.dtype == jnp.float32
    want = np.asarray(single(images()))
    error = np.abs(np.asarray(logits) - want).max() / np.abs(want).max()
    assert 1e-5 < error < 0.03


def test_without_a_key_the_model_is_deterministic_with_one_it_is_not():
    model = make(dropout=0.5)
    np.testing.assert_array_equal(model(images()), model(images()))
    one, two = model(images(), key=jax.random.key(0)), model(images(), key=jax.random.key(1))
    assert np.abs(one - two).max() > 1e-3
    np.testing.assert_array_equal(one, model(images(), key=jax.random.key(0)))


def test_intermediates_are_named_and_consistent():
    model = make(num_registers=2)
    names = ("embedded", "block_output", "attention_weights", "encoded", "pre_logits")
    logits, found = model(images(), return_intermediates=names)
    assert tuple(found) == names
    tokens = 1 + 2 + 4
    assert found["embedded"].shape == (2, tokens, 16)
    assert found["block_output"].shape == (3, 2, tokens, 16)
    assert found["attention_weights"].shape == (3, 2, 2, tokens, tokens)
    np.testing.assert_allclose(found["attention_weights"].sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(model.norm(found["block_output"][-1]), found["encoded"], rtol=1e-5)
    np.testing.assert_array_equal(found["pre_logits"], found["encoded"][:, 0])
    np.testing.assert_allclose(model.head(found["pre_logits"])[0], logits, rtol=1e-5)
    np.testing.assert_allclose(model(images()), logits, rtol=1e-5, atol=1e-5)


def test_class_token_and_registers_stand_before_the_patches():
    model = make(num_registers=2)
    _, found = model(images(), return_intermediates=("embedded",))
    table = model.position_embedding.table[...]
    np.testing.assert_allclose(
        found["embedded"][0, 0], model.class_token[0, 0] + table[0, 0], rtol=1e-6
    )
    np.testing.assert_array_equal(found["embedded"][0, 1:3], model.registers[0])
    np.testing.assert_allclose(
        found["embedded"][:, 3:],
        model.patch_embedding(jnp.asarray(images())) + table[:, 1:],
        rtol=1e-5,
        atol=1e-6,
    )


def test_zero_classes_gives_features():
    model = make(num_classes=0)
    features = model(images())
    assert features.shape == (2, 16)
    _, found = model(images(), return_intermediates=("pre_logits",))
    np.testing.assert_array_equal(features, found["pre_logits"])


def test_rectangular_images_work():
    model = create_model("ViT-Ti/8", num_classes=3, image_size=(16, 32), **TINY)
    assert model.grid == (2, 4)
    assert model(np.zeros((1, 16, 32, 3), np.float32)).shape == (1, 3)


def test_padding_the_tokens_for_a_kernel_changes_nothing():
    """The odd token counts that cuDNN needs padded, here with XLA's kernel."""
    model = make(position_embedding="rope_2d", num_registers=2)
    names = ("attention_weights", "block_output", "encoded")
    want, found = model(images(), return_intermediates=names)
    object.__setattr__(model, "attention", type(model.attention)("xla", model.tokens + 1, "test"))
    got, padded = model(images(), return_intermediates=names)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    for name in names:
        np.testing.assert_allclose(padded[name], found[name], rtol=1e-5, atol=1e-5)


def test_stochastic_depth_drops_whole_branches_and_keeps_the_expectation():
    model = make(stochastic_depth=0.5, num_classes=0)
    x = images()
    graphdef, params = nnx.split(model)
    rates = np.linspace(0, 0.5, 3)
    run = jax.jit(
        lambda p, k: nnx.merge(graphdef, p)(x, key=k, return_intermediates=("block_output",))[1]
    )
    outputs = np.asarray(
        jax.vmap(lambda k: run(params, k)["block_output"])(jax.random.split(jax.random.key(0), 400))
    )  # [400, L, B, N, D]
    _, found = model(x, return_intermediates=("block_output",))
    # The first block is never dropped; the second drops both branches of an example with rate^2.
    np.testing.assert_allclose(
        outputs[:, 0], found["block_output"][None, 0].repeat(400, 0), atol=1e-5
    )
    unchanged = (outputs[:, 1] == outputs[:, 0]).all((-1, -2)).mean()
    assert unchanged == pytest.approx(rates[1] ** 2, abs=0.03)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"image_size": 20}, ModelError, ["20x20", "multiple of 8", "16x16", "24x24"]),
        ({"image_size": 4}, ModelError, ["4x4", "multiple of 8"]),
        ({"num_heads": 3}, ModelError, ["width 16", "3 heads"]),
        ({"position_embedding": "sincos_2d", "width": 18}, ModelError, ["18", "multiple of 4"]),
        ({"position_embedding": "rope_2d", "num_heads": 8}, ModelError, ["head dimension 2"]),
        ({"pooling": "mean"}, ConfigError, ["'pooling' is 'mean'", "token, gap, map, flatten"]),
        ({"poling": "gap"}, ConfigError, ["did you mean 'pooling'"]),
        ({"dropout": 1.0}, ConfigError, ["below 1"]),
    ],
)
def test_sizes_that_do_not_fit_are_named(options, error, words):
    options = {"image_size": 16, **TINY} | options
    with pytest.raises(error) as caught:
        create_model("ViT-Ti/8", **options)
    for word in words:
        assert word in str(caught.value)


def test_images_of_another_size_and_unknown_intermediates_are_refused():
    model = make()
    with pytest.raises(ModelError, match=r"\(1, 24, 24, 3\).*expected \(batch, 16, 16, 3\)"):
        model(np.zeros((1, 24, 24, 3), np.float32))
    with pytest.raises(ModelError, match=r"type uint8.*x / 127.5 - 1"):
        model(np.zeros((1, 16, 16, 3), np.uint8))
    with pytest.raises(ModelError, match="unknown intermediate 'logit'"):
        model(images(), return_intermediates=("logit",))
