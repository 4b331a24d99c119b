import functools

import jax
import numpy as np
import numpy_reference as reference
import pytest
from random_models import (
    assert_equal_training,
    assert_every_parameter_gets_a_gradient,
    params64,
    random_images,
    random_model,
    run,
)

from vit_jax.errors import ModelError
from vit_jax.models.attention_choice import AttentionChoice
from vit_jax.models.distilled_vit import DistilledViT
from vit_jax.models.registry import create_model

TINY = {"width": 16, "depth": 3, "mlp_dim": 24, "num_heads": 2}


def make(**options):
    """A tiny ViT-*/8 whose every parameter is random, head, biases and scales included."""
    return random_model("ViT-Ti/8", **{**TINY, **options})


@functools.cache
def new_model(seed=0):
    """A ViT-Ti/8 as `create_model` makes it; the tests that get the same one do not change it."""
    return create_model("ViT-Ti/8", num_classes=5, image_size=32, seed=seed, depth=2)


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


def check_against_formula(options, **formula):
    model, x = make(**options), random_images()
    with jax.default_matmul_precision("highest"):
        got = run(model, x)
    params = params64(model)
    pooling = options.get("pooling", "token")
    want = [reference.vit(image, params, pooling=pooling, **formula) for image in np.float64(x)]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    return np.array(want)


@pytest.mark.parametrize(
    ("position", "pooling", "placement"),
    [
        ("learned_1d", "token", "pre"),
        ("learned_1d", "gap", "post"),
        ("learned_1d", "gap", "res_post"),
        ("relative", "map", "pre"),
        ("relative", "flatten", "post"),
        slow("learned_1d", "token", "post"),
        slow("learned_1d", "gap", "pre"),
        slow("learned_1d", "map", "post"),
        slow("learned_1d", "flatten", "pre"),
        slow("relative", "token", "pre"),
        slow("relative", "gap", "post"),
        slow("relative", "token", "res_post"),
    ],
)
def test_logits_equal_the_formula_written_out_in_float64(position, pooling, placement):
    options = {"pooling": pooling, "norm_placement": placement, "position_embedding": position}
    check_against_formula(options, placement=placement)


@pytest.mark.parametrize(
    ("kind", "placement"),
    [
        ("learned_2d", "stem"),
        ("learned_1d", "every_layer"),
        ("learned_2d", "shared"),
        slow("learned_1d", "stem"),
        slow("learned_2d", "every_layer"),
        slow("learned_1d", "shared"),
    ],
)
def test_positions_are_added_where_configured_and_registers_have_none(kind, placement):
    options = {"position_embedding": kind, "position_placement": placement, "num_registers": 2}
    check_against_formula(options, shared=placement == "shared")


@pytest.mark.parametrize(
    ("pooling", "registers"),
    [("gap", 0), ("map", 1), ("flatten", 1), slow("gap", 1)],
)
def test_a_class_token_beside_another_pooling_is_attended_to_but_not_pooled(pooling, registers):
    check_against_formula({"pooling": pooling, "class_token": True, "num_registers": registers})


def test_the_final_norm_can_follow_the_pooling():
    model = make(pooling="gap", class_token=True, norm_after_pooling=True)
    x = random_images()
    logits, found = run(model, x, return_intermediates=("block_output", "encoded"))
    last = np.asarray(found["block_output"], np.float64)[-1]
    np.testing.assert_array_equal(found["encoded"], last.astype(np.float32))
    params = params64(model)
    features = reference.layer_norm(last[:, 1:].mean(1), params["norm"])
    want = reference.linear(features, params["head"]["linear"])
    np.testing.assert_allclose(logits, want, rtol=2e-5, atol=2e-5)


def test_without_qkv_bias_there_is_no_bias_parameter():
    options = {"qkv_bias": False, "pooling": "map"}
    check_against_formula(options)
    attention = params64(make(**options))["encoder"]["blocks"]["attention"]
    assert set(attention["qkv"]) == {"kernel"}
    assert set(attention["out"]) == {"kernel", "bias"}


@pytest.mark.parametrize("pooling", ["token", "map"])
def test_the_epsilon_of_the_norms_is_that_of_the_formula(pooling):
    large = check_against_formula({"pooling": pooling, "norm_epsilon": 0.5}, epsilon=0.5)
    params, x = params64(make(pooling=pooling)), np.float64(random_images())
    usual = [reference.vit(image, params, pooling=pooling) for image in x]
    assert np.abs(large - usual).max() > 0.1


def test_a_fixed_table_is_equal_in_every_layer_and_shared():
    """sincos_2d has no parameters, so that both have the same; at the stem it is added once."""
    x = random_images()
    every, shared, stem = (
        run(make(position_embedding="sincos_2d", position_placement=p), x)
        for p in ("every_layer", "shared", "stem")
    )
    np.testing.assert_allclose(every, shared, rtol=1e-5, atol=1e-5)
    assert np.abs(every - stem).max() > 0.01


def test_the_same_seed_gives_the_same_model_and_another_seed_another():
    models = new_model(), new_model.__wrapped__(), new_model(seed=1)
    one, same, other = (model.patch_embedding.kernel[...] for model in models)
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0.01


def test_attention_and_mlp_kernels_start_xavier_uniform():
    model = new_model()
    blocks = model.encoder.blocks
    qkv = np.asarray(blocks.attention.qkv.kernel[...])
    limit = np.sqrt(6 / (192 + 192))
    assert qkv.shape == (2, 192, 3, 3, 64)
    assert 0.99 * limit < np.abs(qkv).max() <= limit
    expand = np.asarray(blocks.mlp.expand.kernel[...])
    limit = np.sqrt(6 / (192 + 768))
    assert 0.99 * limit < np.abs(expand).max() <= limit
    assert np.std(qkv[0] - qkv[1]) > 0.01  # Each layer has its own draw.
    assert np.std(qkv[:, :, 0] - qkv[:, :, 1]) > 0.01
    assert 0 < np.abs(blocks.mlp.expand.bias[...]).max() < 1e-5
    assert np.abs(blocks.attention.qkv.bias[...]).max() == 0


@pytest.mark.parametrize(
    ("options", "variants"),
    [
        ({"stochastic_depth": 0.3}, ({"scan": False}, {"remat": "full"})),
        slow(
            {"stochastic_depth": 0.3, "dropout": 0.2, "position_placement": "every_layer"},
            ({}, {"remat": "full"}, {"remat": "dots"}, {"scan": False}),
        ),
    ],
)
def test_remat_and_unrolling_change_neither_output_nor_gradient(options, variants):
    models = [make(depth=2, **options, **variant) for variant in variants]
    assert_equal_training(models, random_images(), key=jax.random.key(3))


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
        EVERYTHING,
        {"position_embedding": "relative", "norm_placement": "post", "pooling": "flatten"},
        {"position_placement": "every_layer", "position_embedding": "learned_2d"},
        {"norm_placement": "res_post", "layer_scale": 0.1},
        slow({}),
        slow({"position_embedding": "rope_2d", "pooling": "flatten", "num_registers": 1}),
        slow({"position_embedding": "sincos_2d", "dtype": "bfloat16"}),
        slow({"position_placement": "shared"}),
        slow({"pooling": "gap", "class_token": True, "qkv_bias": False}),
    ],
)
def test_every_parameter_gets_a_gradient(options):
    """But the keys' bias of a pooling: it adds one number to the logits of all tokens."""
    zero = ("attention_pooling/key/bias",) if options.get("pooling") == "map" else ()
    assert_every_parameter_gets_a_gradient(make(**options), random_images(), zero)


def test_dropout_is_applied_only_with_a_key():
    model, x = make(dropout=0.5), random_images()

    @jax.jit
    def call(key):
        return model(x), model(x, key=key)

    (plain, one), (again, two), (_, same) = (call(jax.random.key(seed)) for seed in (0, 1, 0))
    np.testing.assert_array_equal(plain, again)
    np.testing.assert_allclose(plain, run(make(), x), rtol=1e-5, atol=1e-5)
    assert np.abs(one - plain).max() > 1e-3
    assert np.abs(one - two).max() > 1e-3
    np.testing.assert_array_equal(one, same)


def test_intermediates_are_named_and_consistent():
    model, x = make(num_registers=2), random_images()
    names = ("embedded", "block_output", "attention_weights", "encoded", "pre_logits")

    @jax.jit
    def call():
        logits, found = model(x, return_intermediates=names)
        assert tuple(found) == names  # A compiled program would sort them.
        norm = model.norm(found["block_output"][-1])
        head, _ = model.head(found["pre_logits"])
        return logits, found, model(x), norm, head

    logits, found, alone, norm, head = call()
    tokens = 1 + 2 + 4
    assert found["embedded"].shape == (2, tokens, 16)
    assert found["block_output"].shape == (3, 2, tokens, 16)
    assert found["attention_weights"].shape == (3, 2, 2, tokens, tokens)
    np.testing.assert_allclose(found["attention_weights"].sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(norm, found["encoded"], rtol=1e-5)
    np.testing.assert_array_equal(found["pre_logits"], found["encoded"][:, 0])
    np.testing.assert_allclose(head, logits, rtol=1e-5)
    np.testing.assert_allclose(alone, logits, rtol=1e-5, atol=1e-5)


def test_a_register_head_is_averaged_with_the_head():
    model, x = make(num_registers=2, register_head=True), random_images()
    logits, found = run(model, x, return_intermediates=("encoded", "head_logits"))
    want = [
        found["encoded"][:, token] @ head.linear.kernel[...] + head.linear.bias[...][None]
        for token, head in ((0, model.head), (2, model.register_head))
    ]
    np.testing.assert_allclose(found["head_logits"], np.array(want), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(logits, np.mean(want, axis=0), rtol=1e-5, atol=1e-5)
    assert np.abs(want[0] - want[1]).max() > 0.1
    assert not isinstance(make(num_registers=2, register_head=True, num_classes=0), DistilledViT)
    assert "head_logits" not in make(num_registers=2).intermediates
    with pytest.raises(ModelError, match="register_head with num_registers 0"):
        make(register_head=True)


def test_rectangular_images_work():
    model = make(num_classes=3, image_size=(16, 32))
    assert model.grid == (2, 4)
    x = random_images(size=(16, 32))
    want = [reference.vit(image, params64(model)) for image in np.float64(x)]
    with jax.default_matmul_precision("highest"):
        np.testing.assert_allclose(run(model, x), want, rtol=2e-5, atol=2e-5)


def test_padding_the_tokens_for_a_kernel_changes_nothing():
    """The odd token counts that cuDNN needs padded, here with XLA's kernel."""
    model = make(position_embedding="rope_2d", num_registers=2)
    names = ("attention_weights", "block_output", "encoded")
    want, found = run(model, random_images(), return_intermediates=names)
    model.encoder.attention_choice = AttentionChoice(
        "cudnn", 2, "for this test"
    )  # Blocks keep theirs.
    got, padded = run(model, random_images(), return_intermediates=names)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    for name in names:
        np.testing.assert_allclose(padded[name], found[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image_size": 20}, ["20x20", "multiple of 8", "16x16", "24x24"]),
        ({"image_size": 4}, ["4x4", "multiple of 8"]),
        ({"num_heads": 3}, ["width 16", "3 heads"]),
        ({"position_embedding": "sincos_2d", "width": 18}, ["18", "multiple of 4"]),
        ({"position_embedding": "rope_2d", "num_heads": 8}, ["head dimension 2"]),
        ({"norm_after_pooling": True}, ["with pooling token", "pooling gap"]),
    ],
)
def test_sizes_that_do_not_fit_are_named(options, words):
    options = {"image_size": 16, **TINY} | options
    with pytest.raises(ModelError) as caught:
        create_model("ViT-Ti/8", **options)
    for word in words:
        assert word in str(caught.value)
