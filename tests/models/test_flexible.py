"""A ViT with a stored kernel and table: PI-resize by hand, and equality with plain ViTs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.traverse_util import unflatten_dict
from random_models import assert_every_parameter_gets_a_gradient, random_images, random_model

from vit_jax.errors import ModelError
from vit_jax.models.embedding import kernel_resize_matrix
from vit_jax.models.flops import forward_macs
from vit_jax.models.registry import create_model, model_options
from vit_jax.named_tree import named_leaves

SIZES = {"width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2}


def flexible(patch_size, image_size, **options):
    """The same parameters for every patch size: a 4 x 4 kernel and a table of 2 x 2 patches."""
    options = {**SIZES, "patch_kernel_size": 4, "position_grid": 2, **options}
    return random_model(f"ViT-Ti/{patch_size}", image_size=image_size, num_classes=3, **options)


def parameters(model):
    return {n: np.asarray(a) for n, a in named_leaves(nnx.to_pure_dict(nnx.state(model))).items()}


def test_the_matrix_of_two_pixels_resized_to_four():
    """Bilinear: the new pixels lie at -1/4, 1/4, 3/4 and 5/4 of the old ones, clamped."""
    bilinear = np.array([[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]])
    matrix = kernel_resize_matrix(2, 4)
    # <resize x, M w> = x^T R^T M w = <x, w> for all x and w.
    np.testing.assert_allclose(bilinear.T @ matrix, np.eye(2), atol=1e-12)
    # Of all such matrices it is the smallest: its columns lie in the span of those of R.
    gram = bilinear.T @ bilinear
    np.testing.assert_allclose(gram, [[1.625, 0.375], [0.375, 1.625]])
    np.testing.assert_allclose(matrix, bilinear @ np.linalg.inv(gram), atol=1e-12)


@pytest.mark.parametrize("pooling", ["token", pytest.param("map", marks=pytest.mark.slow)])
def test_larger_patches_of_a_larger_image_give_the_same_logits(pooling):
    """arXiv:2212.08013, section 3.4: resizing patches and kernel leaves the embedding unchanged."""
    small, large = flexible(4, 8, pooling=pooling), flexible(8, 16, pooling=pooling)
    patches = random_images(size=8).reshape(2, 2, 4, 2, 4, 3).swapaxes(2, 3).reshape(-1, 4, 4, 3)
    enlarged = jax.image.resize(patches, (8, 8, 8, 3), "linear", antialias=False)
    enlarged = enlarged.reshape(2, 2, 2, 8, 8, 3).swapaxes(2, 3).reshape(2, 16, 16, 3)
    np.testing.assert_allclose(large(enlarged), small(random_images(size=8)), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("patch_size", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_the_model_equals_a_plain_vit_with_the_resized_kernel_and_table(patch_size):
    model = flexible(patch_size, 16)
    stored = parameters(model)
    matrix = kernel_resize_matrix(4, patch_size)
    kernel = np.einsum("pi,qj,ijcd->pqcd", matrix, matrix, stored["patch_embedding/kernel"])
    table, side = stored["position_embedding/table"], 16 // patch_size
    grid = jax.image.resize(table[0, 1:].reshape(2, 2, -1), (side, side, 16), "linear")
    table = np.concatenate([table[:, :1], grid.reshape(1, side * side, 16)], axis=1)
    assert stored["patch_embedding/kernel"].shape == (4, 4, 3, 16)
    plain = create_model(f"ViT-Ti/{patch_size}", image_size=16, num_classes=3, **SIZES)
    resized = {
        "patch_embedding/kernel": kernel.astype(np.float32),
        "position_embedding/table": table,
    }
    params = jax.tree.map(jnp.asarray, unflatten_dict({**stored, **resized}, sep="/"))
    plain = nnx.merge(nnx.split(plain)[0], params)
    np.testing.assert_allclose(model(random_images()), plain(random_images()), rtol=1e-5, atol=1e-5)


def test_all_sizes_have_the_same_parameters_and_their_own_cost():
    shapes = [
        {name: a.shape for name, a in parameters(flexible(size, 16)).items()} for size in (2, 4, 8)
    ]
    assert shapes[0] == shapes[1] == shapes[2]
    plain, stored = (
        forward_macs(
            model_options("ViT-Ti/2", **SIZES, **given), num_classes=3, image_size=(16, 16)
        )
        for given in ({}, {"patch_kernel_size": 4, "position_grid": 2})
    )
    assert plain == stored


@pytest.mark.slow
def test_every_stored_parameter_gets_a_gradient():
    assert_every_parameter_gets_a_gradient(flexible(8, 16), random_images())


def test_a_stored_grid_needs_a_table_for_every_position():
    with pytest.raises(ModelError, match="position_grid with position_embedding sincos_2d"):
        flexible(4, 8, position_embedding="sincos_2d")
