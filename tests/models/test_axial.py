import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from flax import nnx
from random_models import (
    assert_equal_training,
    assert_every_parameter_gets_a_gradient,
    params64,
    random_images,
    random_model,
    randomize,
    run,
)

from vit_jax.errors import ModelError
from vit_jax.models.attention import SelfAttention
from vit_jax.models.axial import AxialAttention, AxialBlock, choose_axial_attention
from vit_jax.models.blocks import BlockSpec
from vit_jax.models.position import rope_2d
from vit_jax.models.registry import create_model, family_of, model_options
from vit_jax.models.summary import summarize

pytestmark = pytest.mark.slow

TINY = {"width": 16, "depth": 3, "mlp_dim": 24, "num_heads": 2, "pooling": "gap"}
GRID, SIZE = (2, 3), (16, 24)
SPEC = BlockSpec(
    width=8,
    num_heads=2,
    tokens=6,
    position_table=None,
    mlp="gelu",
    mlp_hidden=12,
    gelu_approximate=True,
    norm_placement="pre",
    norm_epsilon=1e-6,
    layer_scale=None,
    relative=False,
    qk_norm=False,
    qkv_bias=True,
    dropout=0.0,
    attention_implementation="einsum",
    dtype=jnp.float32,
)


def make(**options):
    """A tiny model with 2 x 3 patches and random parameters."""
    return random_model("ViT-Ti/8", **{"image_size": SIZE, "attention": "axial", **TINY, **options})


def attention_of(axis, num_heads):
    """Attention of width 8 with random parameters."""
    return randomize(
        lambda: AxialAttention(8, num_heads, grid=GRID, axis=axis, tokens=6, rngs=nnx.Rngs(0))
    )


@pytest.mark.parametrize(
    ("axis", "want"),
    [("row", [[2, 2, 2], [6, 6, 6]]), ("column", [[2.5, 3.5, 6], [2.5, 3.5, 6]])],
)
def test_attention_by_hand(axis, want):
    """Equal logits, and values that are the input: the mean of each row or column."""
    layer = AxialAttention(1, 1, grid=GRID, axis=axis, tokens=6, rngs=nnx.Rngs(0))
    layer.qkv.kernel[...] = jnp.array([0.0, 0.0, 1.0]).reshape(1, 3, 1, 1)
    layer.out.kernel[...] = jnp.ones((1, 1, 1))
    x = jnp.array([[1.0, 2, 3], [4, 5, 9]]).reshape(1, 6, 1)
    found, _ = run(layer, x)
    np.testing.assert_allclose(found[0, :, 0].reshape(2, 3), want, rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"pooling": "map", "position_embedding": "relative", "norm_placement": "post"},
        {"position_embedding": "learned_2d", "position_placement": "every_layer"},
        pytest.param({"pooling": "flatten", "norm_placement": "res_post"}, marks=pytest.mark.slow),
        pytest.param({"position_placement": "shared"}, marks=pytest.mark.slow),
    ],
)
def test_logits_equal_the_formula_written_out_in_float64(options):
    model, x = make(**options), random_images(size=SIZE)
    formula = {
        "pooling": options.get("pooling", "gap"),
        "placement": options.get("norm_placement", "pre"),
        "shared": options.get("position_placement") == "shared",
    }
    want = [reference.vit(image, params64(model), **formula) for image in np.float64(x)]
    with jax.default_matmul_precision("highest"):
        np.testing.assert_allclose(run(model, x), want, rtol=2e-5, atol=2e-5)


def test_a_row_block_mixes_rows_and_a_pair_mixes_all():
    block = randomize(lambda: AxialBlock(SPEC, GRID, rngs=nnx.Rngs(0)))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 6, 8)), jnp.float32)

    @jax.jit
    @jax.jacobian
    def of_row(x):
        return block.row(x)[0].sum(-1)[0]

    @jax.jit
    @jax.jacobian
    def of_pair(x):
        return block(x)[0].sum(-1)[0]

    depends = np.abs(of_row(x)).max((1, 3)) > 0  # [token, token it depends on]
    same_row = np.arange(6)[:, None] // 3 == np.arange(6) // 3
    np.testing.assert_array_equal(depends, same_row)
    assert (np.abs(of_pair(x)).max((1, 3)) > 1e-4).all()


@pytest.mark.parametrize("position", ["learned_1d", "relative", "rope_2d"])
def test_on_one_row_it_is_global_attention_if_the_column_branches_are_zero(position):
    options = {**TINY, "num_heads": 2, "position_embedding": position, "image_size": (8, 40)}
    axial, usual = make(**options), random_model("ViT-Ti/8", **options)
    blocks = axial.encoder.blocks
    for layer in (blocks.column.attention.out, blocks.column.mlp.contract):
        layer.kernel[...] = jnp.zeros_like(layer.kernel[...])
        layer.bias[...] = jnp.zeros_like(layer.bias[...])
    params = nnx.to_pure_dict(nnx.state(axial))
    params["encoder"]["blocks"] = params["encoder"]["blocks"]["row"]
    nnx.update(usual, params)
    x = random_images(size=(8, 40))
    np.testing.assert_allclose(run(axial, x), run(usual, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", ["row", "column"])
def test_rope_is_that_of_global_attention_among_the_tokens_of_a_line(axis):
    """Each row attends with the angles of its own tokens, as global attention would."""
    layer = attention_of(axis, num_heads=1)
    plain = SelfAttention(8, 1, tokens=6, rngs=nnx.Rngs(0))
    nnx.update(plain, nnx.state(layer))
    rope = rope_2d(GRID, 8, 0)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 6, 8)), jnp.float32)
    tokens = np.arange(6).reshape(GRID)
    want = np.zeros((1, 6, 8))
    for line in tokens if axis == "row" else tokens.T:
        want[:, line] = run(plain, x[:, line], rope=tuple(jnp.asarray(r[line]) for r in rope))[0]
    found, _ = run(layer, x, rope=tuple(map(jnp.asarray, rope)))
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
    assert np.abs(found - run(layer, x)[0]).max() > 0.01


def test_the_encoder_has_twice_the_parameters():
    config = model_options("ViT-B/16", pooling="gap")
    one, two = (
        summarize(c, num_classes=1000, image_size=224).parts
        for c in (config, config.replace(attention="axial"))
    )
    assert two.pop("encoder") == 2 * one.pop("encoder") == 24 * 7_087_872
    assert two == one


@pytest.mark.parametrize(
    "variants", [({"scan": False}, {"remat": "full"}), ({"remat": "dots"}, {"scan": True})]
)
def test_remat_and_unrolling_change_neither_output_nor_gradient(variants):
    options = {"depth": 2, "stochastic_depth": 0.3, "dropout": 0.1}
    models = [make(**options, **variant) for variant in variants]
    assert_equal_training(models, random_images(size=SIZE), key=jax.random.key(3))


@pytest.mark.parametrize(
    ("options", "zero"),
    [
        ({"layer_scale": 0.1, "qk_norm": True, "mlp": "swiglu"}, ()),
        ({"position_embedding": "relative", "pooling": "map"}, ("attention_pooling/key/bias",)),
        ({"name": "R+ViT-Nano/4", "position_placement": "every_layer"}, ()),
    ],
)
def test_every_parameter_gets_a_gradient(options, zero):
    """The hybrid has 2 x 3 patches, each of 2 x 2 positions of a map of 4 x 6."""
    options = {"name": "ViT-Ti/8", "image_size": SIZE, "attention": "axial", **TINY, **options}
    if "R+" in options["name"]:
        options["image_size"] = (8, 12)
    model = random_model(**options)
    assert_every_parameter_gets_a_gradient(model, random_images(size=options["image_size"]), zero)


def test_intermediates_count_row_and_column_blocks():
    model, x = make(), random_images(size=SIZE)
    names = ("embedded", "max_attention_logit", "attention_output", "mlp_output", "block_output")
    _, found = run(model, x, return_intermediates=(*names, "encoded"))
    assert found["block_output"].shape == (2 * 3, 2, 6, 16)
    assert found["max_attention_logit"].shape == (2 * 3, 2, 2)
    # x + attention + MLP is the block's output, block by block.
    before = jnp.concatenate([found["embedded"][None], found["block_output"][:-1]])
    sums = before + found["attention_output"] + found["mlp_output"]
    np.testing.assert_allclose(sums, found["block_output"], rtol=1e-5, atol=1e-5)
    norm = run(model.norm, found["block_output"][-1])
    np.testing.assert_allclose(norm, found["encoded"], rtol=1e-4, atol=1e-5)
    means = {"block_output": lambda value: value.mean(1)}
    _, reduced = run(model, x, return_intermediates=("block_output",), reduce=means)
    np.testing.assert_allclose(
        reduced["block_output"], found["block_output"].mean(2), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(ModelError, match="unknown intermediate 'attention_weights'"):
        model(x, return_intermediates=("attention_weights",))


@pytest.mark.parametrize("axis", ["row", "column"])
def test_the_largest_logit_is_over_all_rows_or_columns(axis):
    layer = attention_of(axis, num_heads=2)
    x = np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32)
    _, found = run(layer, jnp.asarray(x), capture=("max_attention_logit",))
    p, tokens = params64(layer), np.arange(6).reshape(GRID)
    q, k = (
        np.einsum("bnd,dhk->bhnk", x, p["qkv"]["kernel"][:, i]) + p["qkv"]["bias"][i][:, None]
        for i in (0, 1)
    )
    logits = q @ k.swapaxes(2, 3) / 2  # The root of four features.
    lines = tokens if axis == "row" else tokens.T
    want = np.max([logits[:, :, line][..., line].max((2, 3)) for line in lines], axis=0)
    np.testing.assert_allclose(found["max_attention_logit"], want, rtol=1e-4)


def test_stochastic_depth_drops_all_rows_of_an_example_together():
    block = randomize(lambda: AxialBlock(SPEC, GRID, rngs=nnx.Rngs(0)))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((400, 6, 8)), jnp.float32)
    for part in (block.row.mlp, block.column.mlp):
        part.contract.kernel[...] = jnp.zeros((12, 8))
        part.contract.bias[...] = jnp.zeros(8)
    found, _ = run(block, x, key=jax.random.key(0), drop_rate=jnp.float32(0.5))
    changed = np.any(found != x, -1)  # [examples, tokens]
    np.testing.assert_array_equal(changed.any(1), changed.all(1))
    # An example stays the same if attention over rows and attention over columns are dropped.
    assert changed.all(1).mean() == pytest.approx(1 - 0.5**2, abs=0.07)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pooling": "token"}, ["axial with a class token", "use pooling gap, map or flatten"]),
        ({"class_token": True}, ["axial with a class token"]),
        ({"num_registers": 2}, ["axial with registers", "without class_token and num_registers"]),
        ({"attention_implementation": "cudnn"}, ["cudnn, but cuDNN needs a GPU"]),
    ],
)
def test_what_does_not_lie_on_the_grid_is_refused(options, words):
    with pytest.raises(ModelError) as caught:
        create_model("ViT-Ti/8", image_size=16, attention="axial", **{**TINY, **options})
    for word in words:
        assert word in str(caught.value)


def test_cudnn_is_used_where_rows_and_columns_need_no_padding():
    case = {
        "head_dim": 64, "num_heads": 3, "dtype": jnp.bfloat16, "has_bias": False, "platform": "gpu",
    }  # fmt: skip
    even = choose_axial_attention("auto", grid=(14, 16), **case)
    assert (even.implementation, even.padded_tokens) == ("cudnn", 14 * 16)
    odd = choose_axial_attention("auto", grid=(14, 15), **case)
    assert (odd.implementation, odd.padded_tokens) == ("xla", 14 * 15)
    with pytest.raises(ModelError, match="on a grid of 14x15; expected an even number of rows"):
        choose_axial_attention("cudnn", grid=(14, 15), **case)
    case = {**case, "platform": "cpu"}
    assert choose_axial_attention("auto", grid=(14, 15), **case).implementation == "einsum"
    long = choose_axial_attention("auto", grid=(2, 1153), **{**case, "platform": "tpu"})
    assert long.implementation == "xla"  # The Pallas kernel takes columns of 2, not rows of 1,153.


def test_the_stack_of_a_step_has_two_blocks_for_each_pair():
    config = model_options("ViT-Ti/8", attention="axial", **TINY)
    stack = family_of(config.name).stack(config, (16, 32))
    # 2 x 4 patches: a token attends to 4 in its row and to 2 in its column, 3 on average.
    values = 8 * (9 * 16 + 2 * 24 + 2 * 3)
    assert dataclasses.astuple(stack) == (2 * 3, 16, 8, values)
