"""Which patches are corrupted, and that corruption comes before positions are added."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_models import random_images, randomize

from vit_jax.models.registry import model_options
from vit_jax.tasks.masked_patches.corruption import (
    corrupt,
    draw_corruption,
    num_corrupted,
)
from vit_jax.tasks.masked_patches.task import MaskedViT

TINY = {"width": 24, "depth": 2, "mlp_dim": 36, "num_heads": 3}


def draw(images, patches, **shares):
    keys = jax.random.split(jax.random.key(1), images)
    one = partial(draw_corruption, num_patches=patches, **shares)
    drawn = jax.jit(jax.vmap(one))(keys)
    return [np.asarray(drawn[name]) for name in ("corrupted", "source", "hidden")]


def test_corrupted_hidden_and_moved_patches_have_the_given_shares():
    """8,000 images of 16 patches: 64,000 corrupted ones."""
    chosen, source, hidden = draw(8000, 16, share=0.5, mask=0.8, random=0.1)
    assert (chosen.sum(1) == 8).all()
    moved = source != np.arange(16)
    assert not (hidden & ~chosen).any()
    assert not (moved & ~chosen).any()
    assert not (moved & hidden).any()
    # Four standard deviations of 64,000 draws of 0.8 and 0.1.
    assert hidden.sum() / 64_000 == pytest.approx(0.8, abs=0.0064)
    assert moved.sum() / 64_000 == pytest.approx(0.1, abs=0.0048)
    # Every place, and every distance to another patch, is drawn alike.
    assert chosen.mean(0) == pytest.approx(np.full(16, 0.5), abs=0.023)
    distance = ((source - np.arange(16)) % 16)[moved]
    counts = np.bincount(distance, minlength=16)
    assert counts[0] == 0
    assert counts[1:] == pytest.approx(np.full(15, len(distance) / 15), rel=0.2)


def test_extreme_shares_and_a_single_patch_work():
    chosen, source, hidden = draw(3, 4, share=1.0, mask=1.0, random=0.0)
    assert chosen.all()
    assert hidden.all()
    assert (source == np.arange(4)).all()
    chosen, source, hidden = draw(3, 4, share=0.01, mask=0.0, random=1.0)
    assert (chosen.sum(1) == 1).all()
    assert ((source != np.arange(4)) == chosen).all()
    assert not hidden.any()
    chosen, source, _ = draw(3, 1, share=0.5, mask=0.0, random=1.0)
    assert chosen.all()
    assert (source == 0).all()
    assert num_corrupted(9, 0.5) == 4


def test_moved_patches_are_equal_bit_for_bit():
    patches = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 4)), jnp.float32)
    source = jnp.array([[0, 0, 2], [2, 1, 0]])
    hidden = jnp.array([[False, False, True], [False, False, False]])
    token = jnp.full((1, 1, 4), 7.0)
    found = np.asarray(corrupt(patches, source, hidden, token))
    want = np.stack([patches[0][jnp.array([0, 0, 2])], patches[1][jnp.array([2, 1, 0])]])
    want[0, 2] = 7
    np.testing.assert_array_equal(found, want)


@pytest.fixture(
    scope="module", params=["ViT-Ti/4", pytest.param("R+ViT-Micro/4", marks=pytest.mark.slow)]
)
def model(request):
    options = TINY if request.param == "ViT-Ti/4" else {"depth": 1}
    config = model_options(**{"name": request.param, **options, "num_registers": 1})
    sizes = {"num_classes": 8, "image_size": (8, 8)}
    return randomize(lambda: MaskedViT(config, rngs=nnx.Rngs(0), **sizes))


def test_a_moved_patch_has_the_position_of_its_new_place(model):
    images = jnp.asarray(random_images(1, 8))
    source, hidden = jnp.array([[0, 3, 2, 3]]), jnp.array([[True, False, False, False]])

    @jax.jit
    def embed(*corruption):
        patches = model.embed_patches(images)
        return model.embed(
            corrupt(patches, *corruption, model.mask_token[...]) if corruption else patches
        )

    without = embed()
    plain = embed(jnp.arange(4)[None], jnp.zeros((1, 4), bool))
    np.testing.assert_array_equal(plain, without)
    found, (table,) = embed(source, hidden), model.position_embedding.table[...]
    # Class token and register come first; the table has no row for the register.
    own = without[0, 2:] - table[1:]
    changed = found[0, 2:] - table[1:]
    np.testing.assert_allclose(changed[0], model.mask_token[...][0, 0], atol=1e-5)
    np.testing.assert_allclose(changed[1], own[3], atol=1e-5)
    np.testing.assert_array_equal(found[0, 4:], without[0, 4:])
    np.testing.assert_array_equal(found[0, :2], without[0, :2])
    batch = {"image": images, "source": source, "hidden": hidden}
    logits = jax.eval_shape(lambda: model.predict(batch))
    assert logits.shape == (1, 4, 8)
    assert jax.eval_shape(lambda: model(images)).shape == (1, 8)
