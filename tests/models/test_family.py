"""What a tiny model of every image family does alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from random_models import random_images, random_model, run

from vit_jax.errors import ModelError
from vit_jax.models.family import as_images
from vit_jax.models.image_families import IMAGE_FAMILIES
from vit_jax.models.registry import create_model, family_of

FAMILIES = {
    "ViT-Ti/8": {"width": 16, "depth": 3, "mlp_dim": 24, "num_heads": 2},
    "Mixer-S/4": {"width": 8, "depth": 2, "token_mlp_dim": 5, "channel_mlp_dim": 12},
    "BiT-R-Pico": {},
    "R+ViT-Pico/4": {},
}


def test_every_image_family_is_here():
    assert {family_of(name).name for name in FAMILIES} == {*IMAGE_FAMILIES}


ALL = pytest.mark.parametrize("name", FAMILIES)
# A hybrid's stem and encoder are those of models that are tested alone.
QUICK = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * ("+" in n)) for n in FAMILIES]
)


def make(name, image_size=8, **options):
    return random_model(name, image_size=image_size, **FAMILIES[name], **options)


@QUICK
def test_bfloat16_keeps_float32_parameters_and_agrees_to_its_precision(name):
    single, half, x = make(name), make(name, dtype="bfloat16"), random_images(size=8)
    stored = {str(x.dtype) for x in jax.tree.leaves(nnx.to_pure_dict(nnx.state(half)))}
    assert stored == {"float32"}
    precise = ("attention_weights",) if "attention_weights" in half.intermediates else ()
    logits, found = run(half, x, return_intermediates=("encoded", *precise))
    assert found["encoded"].dtype == jnp.bfloat16
    assert all(value.dtype == jnp.float32 for value in (logits, *map(found.get, precise)))
    want = np.asarray(run(single, x))
    error = np.abs(np.asarray(logits) - want).max() / np.abs(want).max()
    assert 1e-5 < error < 0.05


@QUICK
def test_a_new_head_has_a_zero_kernel_and_the_configured_bias(name):
    sizes = {"num_classes": 5, "image_size": 8, **FAMILIES[name]}
    model = create_model(name, head_bias_init=-2.0, **sizes)
    logits = run(model, random_images(size=8))
    np.testing.assert_array_equal(logits, np.full((2, 5), -2, np.float32))
    np.testing.assert_array_equal(model.head.linear.kernel, 0)


@QUICK
def test_zero_classes_give_features(name):
    model = make(name, num_classes=0)
    features, found = run(model, random_images(size=8), return_intermediates=("pre_logits",))
    np.testing.assert_array_equal(features, found["pre_logits"])


@ALL
def test_other_shapes_types_and_intermediates_are_refused(name):
    model, x = make(name), random_images(size=8)
    with pytest.raises(ModelError, match=r"\(2, 8, 8\).*expected \(batch, "):
        model(x[..., 0])
    with pytest.raises(
        ModelError, match=r"\(8, 8, 3\).*give a single image a batch axis, .*\[None\]"
    ):
        model(x[0])
    with pytest.raises(ModelError, match=r"\(3, 8, 8\).* batch axis and .*transpose\(1, 2, 0\)\["):
        model(x[0].transpose(2, 0, 1))
    with pytest.raises(ModelError, match=r"type uint8.*x / 127.5 - 1"):
        model(x.astype(np.uint8))
    with pytest.raises(ModelError, match=r"unknown intermediate 'logit'; .*encoded"):
        model(x, return_intermediates=("logit",))
    if name != "BiT-R-Pico":  # A ResNet takes images of any size.
        with pytest.raises(ModelError, match=r"\(2, 24, 24, 3\).*expected \(batch, 8, 8, 3\)"):
            model(random_images(size=24))


@pytest.mark.parametrize(("name", "rate"), [("ViT-Ti/8", 0.5), ("Mixer-S/4", 0.9)])
def test_stochastic_depth_needs_a_key_and_drops_whole_branches(name, rate):
    model, x = make(name, stochastic_depth=rate, num_classes=0), random_images(size=8)
    plain = run(model, x, return_intermediates=("block_output",))[1]["block_output"]
    assert not (plain[-1] == plain[-2]).any()

    @jax.jit
    @jax.vmap
    def blocks(key):
        return model(x, key=key, return_intermediates=("block_output",))[1]["block_output"]

    outputs = np.asarray(blocks(jax.random.split(jax.random.key(0), 400)))  # [400, L, B, N, D]
    # The first block is never dropped; the last drops both branches of an example with rate^2.
    np.testing.assert_allclose(outputs[:, 0], plain[None, 0].repeat(400, 0), rtol=1e-4, atol=1e-5)
    unchanged = (outputs[:, -1] == outputs[:, -2]).all((-1, -2)).mean()
    assert unchanged == pytest.approx(rate**2, abs=0.05)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ("photo.jpg", r"str as images; .*call vit_jax.predict\(model, FILES\)"),
        (["photo.jpg"], "list as images"),
        (Image.new("RGB", (8, 8)), r"type uint8; .*or vit_jax.predict\(model, IMAGES\)"),
        (np.full((1, 8, 8, 3), 200.0), r"values up to 200; expected values in \[-1, 1\]; use x / "),
        (jnp.full((1, 8, 8, 3), 200.0), "values up to 200"),
    ],
)
def test_images_that_a_model_cannot_take_are_one_line_with_what_to_do(images, words):
    with pytest.raises(ModelError, match=words):
        as_images(images, (8, 8))


def test_lists_and_normalised_images_are_taken_and_traced_ones_are_not_read():
    assert as_images(np.full((1, 2, 2, 3), 2.6).tolist(), (2, 2)).shape == (1, 2, 2, 3)
    jax.eval_shape(lambda x: as_images(x, None), jax.ShapeDtypeStruct((1, 2, 2, 3), jnp.float32))
