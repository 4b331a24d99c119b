import jax
import jax.numpy as jnp
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
from vit_jax.models.registry import create_model

TINY = {"width": 8, "depth": 2, "token_mlp_dim": 5, "channel_mlp_dim": 12}


def make(**options):
    """A tiny Mixer with 2x3 patches of 4 pixels, every parameter random."""
    return random_model("Mixer-S/4", image_size=(8, 12), **{**TINY, **options})


def images(batch=2):
    return random_images(batch, (8, 12))


def test_logits_equal_the_formula_written_out_in_float64():
    model, x = make(), images()
    with jax.default_matmul_precision("highest"):
        found = run(model, x)
    params = params64(model)
    want = [reference.mixer(image, params) for image in np.float64(x)]
    np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("rate", "variants"),
    [
        (0.0, ({"scan": False}, {"remat": "full"})),
        pytest.param(
            0.3, ({"scan": False}, {"remat": "full"}, {"remat": "dots"}), marks=pytest.mark.slow
        ),
    ],
)
def test_remat_and_unrolling_change_neither_output_nor_gradient(rate, variants):
    models = [make(stochastic_depth=rate, **variant) for variant in variants]
    assert_equal_training(models, images(), key=jax.random.key(3))


def test_every_parameter_gets_a_gradient_except_one_cancelled_by_the_norms():
    """That bias adds the same number to all channels of a token; every LayerNorm subtracts it."""
    zero = ("blocks/token_mixing/contract/bias",)
    assert_every_parameter_gets_a_gradient(make(), images(), zero)


def test_a_new_model_has_zero_logits_and_lecun_kernels():
    sizes = {"num_classes": 5, "image_size": 8, "width": 64, "depth": 2}
    model = create_model("Mixer-S/4", head_bias_init=-2.0, **sizes)
    logits = run(model, random_images(size=8))
    np.testing.assert_array_equal(logits, np.full((2, 5), -2, np.float32))
    mlp = model.blocks.channel_mixing
    kernel = np.asarray(mlp.expand.kernel[...])
    assert np.std(kernel) == pytest.approx(64**-0.5, rel=0.02)
    assert np.abs(mlp.expand.bias[...]).max() == 0
    assert np.std(kernel[0] - kernel[1]) > 0.01


def test_bfloat16_agrees_to_its_precision_and_keeps_float32_parameters():
    single, half = make(), make(dtype="bfloat16")
    stored = {str(x.dtype) for x in jax.tree.leaves(nnx.to_pure_dict(nnx.state(half)))}
    assert stored == {"float32"}
    logits, found = run(half, images(), return_intermediates=("block_output",))
    assert (found["block_output"].dtype, logits.dtype) == (jnp.bfloat16, jnp.float32)
    want = np.asarray(run(single, images()))
    assert 1e-5 < np.abs(np.asarray(logits) - want).max() / np.abs(want).max() < 0.05


def test_stochastic_depth_needs_a_key_and_drops_whole_branches():
    model, x = make(stochastic_depth=0.9, num_classes=0), images()
    _, found = run(model, x, return_intermediates=("block_output",))

    @jax.jit
    @jax.vmap
    def blocks(key):
        return model(x, key=key, return_intermediates=("block_output",))[1]["block_output"]

    outputs = np.asarray(blocks(jax.random.split(jax.random.key(0), 300)))  # [300, L, B, N, D]
    # The first block is never dropped; the last drops both branches of an example with 0.9^2.
    found = np.asarray(found["block_output"])
    np.testing.assert_allclose(outputs[:, 0], found[None, 0].repeat(300, 0), 1e-4)
    # Without a key nothing is dropped.
    assert not (found[1] == found[0]).any()
    unchanged = (outputs[:, 1] == outputs[:, 0]).all((-1, -2)).mean()
    assert unchanged == pytest.approx(0.81, abs=0.05)


def test_intermediates_are_named_and_consistent():
    model = make()
    names = ("embedded", "token_mixing_output", "block_output", "encoded", "pre_logits")
    logits, found = run(model, images(), return_intermediates=names)
    assert {name: value.shape for name, value in found.items()} == {
        "embedded": (2, 6, 8),
        "token_mixing_output": (2, 2, 6, 8),
        "block_output": (2, 2, 6, 8),
        "encoded": (2, 6, 8),
        "pre_logits": (2, 8),
    }
    np.testing.assert_allclose(found["encoded"].mean(1), found["pre_logits"], rtol=1e-5)
    np.testing.assert_allclose(run(model.head, found["pre_logits"])[0], logits, rtol=1e-5)
    with pytest.raises(ModelError, match="unknown intermediate 'attention_weights'"):
        model(images(), return_intermediates=("attention_weights",))


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ModelError, match="10x10 with patch size 4; expected a multiple of 4"):
        create_model("Mixer-S/4", image_size=10, **TINY)


def test_images_must_have_the_size_of_the_model():
    with pytest.raises(ModelError, match=r"\(2, 8, 8, 3\).*expected \(batch, 8, 12, 3\)"):
        make()(random_images(size=8))
