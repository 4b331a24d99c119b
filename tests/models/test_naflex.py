"""Sequences of patches: padding changes nothing, a square image equals the plain ViT, positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.test_flexible import SIZES
from random_models import random_images, random_model

from vit_jax.errors import ModelError
from vit_jax.models.embedding import interpolated_positions
from vit_jax.models.naflex import Patches, apply, fit_grid

P = 4


def model_of(**options):
    options = {**SIZES, "position_grid": 3, **options}
    return random_model(f"ViT-Ti/{P}", num_classes=3, **options)


def as_patches(images, length):
    """Cuts images of one size [B, H, W, 3] into patches, and pads them with noise."""
    batch, height, width, _ = images.shape
    rows, columns = height // P, width // P
    cut = images.reshape(batch, rows, P, columns, P, 3).swapaxes(2, 3).reshape(batch, -1, P * P * 3)
    noise = np.random.default_rng(5).normal(size=(batch, length, P * P * 3)).astype(np.float32)
    noise[:, : rows * columns] = cut
    grid = np.tile(np.array([[rows, columns]], np.int32), (batch, 1))
    return Patches(jnp.asarray(noise), jnp.asarray(grid))


@pytest.mark.parametrize(
    "options",
    [
        {"num_registers": 1},
        pytest.param({"pooling": "gap"}, marks=pytest.mark.slow),
        pytest.param({"pooling": "map"}, marks=pytest.mark.slow),
    ],
)
def test_a_square_image_equals_the_plain_vit_and_padding_changes_nothing(options):
    model = model_of(**options)
    want = model(random_images())
    run = jax.jit(lambda patches: apply(model, patches))
    fits, padded = run(as_patches(random_images(), 16)), run(as_patches(random_images(), 23))
    np.testing.assert_allclose(fits, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())
    np.testing.assert_allclose(padded, fits, rtol=1e-5, atol=1e-6 * np.abs(want).max())


@pytest.mark.parametrize("implementation", ["xla", "einsum"])
def test_images_of_two_shapes_in_one_batch_are_as_by_themselves(implementation):
    model = model_of(pooling="gap", attention_implementation=implementation)
    wide, tall = (as_patches(random_images(1, size), 14) for size in ((8, 24), (16, 4)))
    both = Patches(*(jnp.concatenate(pair) for pair in zip(wide, tall, strict=True)))
    apart = [apply(model, one)[0] for one in (wide, tall)]
    np.testing.assert_allclose(apply(model, both), jnp.stack(apart), rtol=1e-5, atol=1e-5)
    assert both.mask.sum(1).tolist() == both.lengths.tolist() == [12, 4]


@pytest.mark.slow
def test_padding_gets_no_gradient():
    model = model_of(pooling="map")
    batch = as_patches(random_images(size=(8, 16)), 12)
    grads = jax.grad(lambda x: jnp.sum(apply(model, batch._replace(patches=x)) ** 2))(batch.patches)
    assert np.all(np.asarray(grads[:, 8:]) == 0)
    assert np.all(np.abs(np.asarray(grads[:, :8])).max(-1) > 0)


@pytest.mark.parametrize("grid", [(3, 3), (2, 5), (7, 1), (1, 1), (4, 6)])
def test_positions_are_those_of_jax_image_resize(grid):
    table = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3, 8)), jnp.float32)
    found = interpolated_positions(table, jnp.asarray([grid], jnp.int32), 30)
    want = jax.image.resize(table, (*grid, 8), "linear", antialias=True).reshape(-1, 8)
    np.testing.assert_allclose(found[0, : grid[0] * grid[1]], want, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "length", "want"),
    [
        ((224, 224), 196, (14, 14)),
        ((224, 224), 200, (14, 14)),
        ((100, 300), 48, (4, 12)),
        ((300, 100), 48, (12, 4)),
        ((1, 1000), 4, (1, 4)),
    ],
)
def test_the_grid_that_fits(size, length, want):
    assert fit_grid(*size, 16, length) == want


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position_embedding": "rope_2d", "position_grid": None}, "other than learned_1d or none"),
        ({"pooling": "flatten"}, "pooling flatten"),
        ({"position_placement": "shared"}, "position_placement shared"),
    ],
)
def test_models_without_sequences_of_patches_say_so(options, message):
    with pytest.raises(ModelError, match=message):
        apply(model_of(**options), as_patches(random_images(), 16))
