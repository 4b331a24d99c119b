"""Other image and patch sizes: what is resampled, how exactly, and what stays as it was."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from golden.recipe import images
from interop.files import (
    HEADS,
    WIDTH,
    assert_close_to_golden,
    assert_same_params,
    by_kind,
    logits,
    params,
    tiny,
    write_golden,
    write_npz,
)
from random_models import random_model
from weight_files import random_weights

from vit_jax.interop.load import load
from vit_jax.interop.native import write_native
from vit_jax.interop.report import Status
from vit_jax.interop.resize import resample_kernel, resample_table
from vit_jax.models.embedding import sincos_2d_mae

TABLE = "position_embedding/table"


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def by_corners(old, new):
    """Matrix of linear interpolation between corner vectors that stay the corners."""
    matrix = np.zeros((new, old))
    for i in range(new):
        where = i * (old - 1) / (new - 1) if new > 1 else 0
        below = min(int(where), old - 2) if old > 1 else 0
        matrix[i, below] += 1 - (where - below)
        if old > 1:
            matrix[i, below + 1] += where - below
    return matrix


def by_centres(old, new, kernel, support):
    """Matrix of a convolution kernel around the new centres, widened where the grid shrinks."""
    scale = max(old / new, 1)
    centres = (np.arange(new)[:, None] + 0.5) * old / new - 0.5
    distance = np.abs(np.arange(old)[None] - centres) / scale
    matrix = np.where(distance < support, kernel(distance), 0)
    return matrix / matrix.sum(1, keepdims=True)


def triangle(x):
    return 1 - x


def keys(x):
    """The cubic of Keys (1981) with a = -1/2."""
    return np.where(x < 1, 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2)


def apply(matrices, table, old, prefix=1):
    """Resamples a table by a matrix for its rows and one for its columns."""
    grid = table[0, prefix:].reshape(*old, -1).astype(np.float64)
    grid = np.einsum("ri,cj,ijd->rcd", *matrices, grid)
    return np.concatenate([table[0, :prefix], grid.reshape(-1, table.shape[2])])[None]


@pytest.mark.parametrize(
    ("old", "new"),
    [((14, 14), (24, 24)), ((4, 4), (2, 7)), ((3, 5), (6, 4)), ((7, 7), (14, 3)), ((4, 4), (1, 2))],
)
def test_zoom_is_linear_between_corners(old, new):
    table = random(1, 1 + old[0] * old[1], 8)
    found = resample_table(table, old, new)
    want = apply([by_corners(o, n) for o, n in zip(old, new, strict=True)], table, old)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, want, atol=1e-5)


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("old", "new"), [((4, 4), (8, 6)), ((8, 6), (4, 5)), ((5, 3), (2, 7))])
def test_by_centres_equals_its_interpolation_matrix(method, old, new):
    kernel, support = (triangle, 1) if method == "bilinear" else (keys, 2)
    table = random(1, 1 + old[0] * old[1], 4)
    found = resample_table(table, old, new, method)
    pairs = zip(old, new, strict=True)
    want = apply([by_centres(o, n, kernel, support) for o, n in pairs], table, old)
    np.testing.assert_allclose(found, want, atol=1e-5)


@pytest.mark.interop
@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("old", "new"), [((14, 14), (24, 20)), ((14, 14), (7, 9))])
def test_by_centres_equals_torch(method, old, new):
    torch = pytest.importorskip("torch")
    table = random(1, old[0] * old[1], 4)
    grid = torch.from_numpy(table.reshape(1, *old, 4)).permute(0, 3, 1, 2)
    want = torch.nn.functional.interpolate(
        grid, size=new, mode=method, antialias=True, align_corners=False
    )
    found = resample_table(table, old, new, method)
    np.testing.assert_allclose(found.reshape(1, *new, 4), want.permute(0, 2, 3, 1), atol=1e-5)


def test_the_grid_must_be_given_for_a_file_whose_table_is_not_square(tmp_path):
    tensors = tiny(grid=(2, 6))
    path = write_npz(tmp_path / "wide.npz", tensors)
    table = tensors["Transformer/posembed_input/pos_embedding"]
    same = load(path, grid=(2, 6))
    assert same.image_size == (8, 24)
    np.testing.assert_array_equal(params(same.model)[TABLE], table)
    square = load(path, grid=(2, 6), image_size=16)
    want = apply([by_corners(2, 4), by_corners(6, 4)], table, (2, 6))
    np.testing.assert_allclose(params(square.model)[TABLE], want, atol=1e-5)


def test_a_grid_of_another_shape_but_equal_size_is_resampled(tiny_path, tiny_loaded):
    loaded = load(tiny_path, image_size=(8, 32), grid=(4, 4))
    assert loaded.report.names(Status.RESIZED) == [TABLE]
    want = apply([by_corners(4, 2), by_corners(4, 8)], params(tiny_loaded.model)[TABLE], (4, 4))
    np.testing.assert_allclose(params(loaded.model)[TABLE], want, atol=1e-5)


def native(folder, image_size, **options):
    """Writes a random tiny model of ours and returns its folder and parameters."""
    sizes = {"width": WIDTH, "depth": 2, "mlp_dim": 32, "num_heads": HEADS}
    model = random_model("ViT-Ti/8", num_classes=3, image_size=image_size, **sizes, **options)
    about = {"model": {"name": "ViT-Ti/8", **sizes, **options}, "image_size": list(image_size)}
    folder.mkdir()
    write_native(folder, about, nnx.to_pure_dict(nnx.state(model)))
    return folder, params(model)


def test_our_own_checkpoints_keep_their_grid_and_resizing_changes_only_the_table(tmp_path):
    path, want = native(tmp_path / "model", (32, 64), num_registers=3)
    same = load(path)
    assert (same.image_size, same.model.grid) == ((32, 64), (4, 8))
    assert_same_params(params(same.model), want)

    other = load(path, image_size=(48, 32))
    assert other.report.names(Status.RESIZED) == [TABLE]
    found = params(other.model)
    old, new = want.pop(TABLE), found.pop(TABLE)
    assert_same_params(found, want)  # Registers and class token among them.
    table = apply([by_corners(4, 6), by_corners(8, 4)], old, (4, 8))
    np.testing.assert_allclose(new, table, atol=1e-5)
    np.testing.assert_array_equal(new[0, 0], old[0, 0])


@pytest.mark.parametrize("kind", ["learned_1d", "learned_2d"])
def test_the_tables_of_every_layer_are_resampled(tmp_path, kind):
    options = {"position_placement": "every_layer", "position_embedding": kind}
    path, want = native(tmp_path / "model", (16, 32), **options)
    loaded = load(path, image_size=(32, 32))
    found = params(loaded.model)
    if kind == "learned_1d":
        name = f"encoder/blocks/{TABLE}"
        tables = [apply([by_corners(2, 4), np.eye(4)], t, (2, 4)) for t in want[name]]
        np.testing.assert_allclose(found[name], np.stack(tables), atol=1e-5)
        np.testing.assert_array_equal(found[name][:, 0, 0], want[name][:, 0, 0])
    else:
        name = "encoder/blocks/position_embedding/by_row"
        other = "encoder/blocks/position_embedding/by_column"
        np.testing.assert_array_equal(found[other], want[other])
        np.testing.assert_allclose(found[name], by_corners(2, 4) @ want[name], atol=1e-5)
    assert loaded.report.names(Status.RESIZED) == [name]


def test_learned_positions_start_at_a_fixed_table_and_a_norm_after_pooling_starts_new(tmp_path):
    """As MAE is fine-tuned. Sizes that change are resampled like any other table."""
    fixed = {"position_embedding": "sincos_2d_mae"}
    path, want = native(tmp_path / "model", (16, 16), **fixed)
    tuned = {"position_embedding": "learned_1d", "pooling": "gap", "class_token": True}
    loaded = load(path, **tuned, norm_after_pooling=True)
    found = params(loaded.model)
    np.testing.assert_array_equal(found[TABLE][0, 0], 0)  # The class token's.
    np.testing.assert_array_equal(found[TABLE][:, 1:], sincos_2d_mae((2, 2), found[TABLE].shape[2]))
    np.testing.assert_array_equal(found["norm/scale"], 1)
    np.testing.assert_array_equal(found["norm/bias"], 0)
    np.testing.assert_array_equal(found["class_token"], want["class_token"])
    assert loaded.report.names(Status.RESIZED) == [TABLE]
    assert loaded.report.names(Status.LEFT_OUT) == ["norm/bias", "norm/scale"]
    larger = params(load(path, image_size=32, **tuned, position_resize="bilinear").model)
    matrices = [by_centres(2, 4, triangle, 1)] * 2
    np.testing.assert_allclose(larger[TABLE], apply(matrices, found[TABLE], (2, 2)), atol=1e-6)
    np.testing.assert_array_equal(larger["norm/scale"], want["norm/scale"])
    again = random_weights(tmp_path / "tuned", **tuned, norm_after_pooling=True)  # A tuned model.
    same = load(tmp_path / "tuned")
    np.testing.assert_array_equal(same.model.norm.scale[...], again.model.norm.scale[...])


@pytest.mark.parametrize("kind", ["sincos_2d", "rope_2d", "none"])
def test_positions_that_are_computed_need_no_resampling(tmp_path, kind):
    path, want = native(tmp_path / "model", (16, 16), position_embedding=kind)
    loaded = load(path, image_size=(24, 40))
    assert {status for status, _, _ in loaded.report.entries} == {Status.TAKEN}
    assert_same_params(params(loaded.model), want)
    x = jax.ShapeDtypeStruct((1, 24, 40, 3), np.float32)
    assert nnx.eval_shape(loaded.model, x).shape == (1, 3)


def test_a_mixer_with_another_patch_size_keeps_its_number_of_patches(tmp_path):
    options = {"width": 8, "depth": 1, "token_mlp_dim": 5, "channel_mlp_dim": 12}
    random_weights(tmp_path / "mixer", "Mixer-S/4", image_size=(16, 24), **options)
    larger = load(tmp_path / "mixer", patch_size=8, image_size=(32, 48))
    assert larger.report.names(Status.RESIZED) == ["patch_embedding/kernel"]


def upsampled(patches, size):
    shape = (len(patches), size, size, 3)
    return np.asarray(jax.image.resize(jnp.asarray(patches), shape, "linear", antialias=False))


@pytest.mark.parametrize(("old", "new"), [(4, 8), (4, 6), (14, 16), (16, 32)])
def test_a_resampled_kernel_on_larger_patches_gives_the_same_embedding(old, new):
    kernel, patches = random(old, old, 3, 5), random(7, old, old, 3, seed=1)
    found = np.einsum("nijc,ijcd->nd", upsampled(patches, new), resample_kernel(kernel, new))
    want = np.einsum("nijc,ijcd->nd", patches, kernel)
    np.testing.assert_allclose(found, want, atol=1e-5 * np.abs(want).max())


def test_a_smaller_kernel_is_the_least_squares_optimum():
    """Its errors on all patches are orthogonal to every change of the kernel."""
    kernel = random(8, 8, 3, 2)
    found = resample_kernel(kernel, 4).reshape(16, -1).astype(np.float64)
    basis = np.eye(64, dtype=np.float32).reshape(64, 8, 8, 1).repeat(3, axis=3)
    smaller = upsampled(basis, 4)[..., 0].reshape(64, 16)  # Of every old pixel, each new pixel.
    errors = smaller @ found - kernel.reshape(64, -1)
    np.testing.assert_allclose(smaller.T @ errors, 0, atol=1e-5)
    assert np.abs(errors).max() > 0.1


def test_a_golden_model_with_larger_patches_gives_the_same_logits(tmp_path):
    path = write_golden("vit_ti16_224", tmp_path)
    loaded = load(path, patch_size=32, image_size=448)
    assert loaded.options.name == "ViT-Ti/32"
    assert loaded.report.names(Status.RESIZED) == ["patch_embedding/kernel"]
    patches = images(224).reshape(2, 14, 16, 14, 16, 3).swapaxes(2, 3).reshape(-1, 16, 16, 3)
    large = upsampled(patches, 32).reshape(2, 14, 14, 32, 32, 3).swapaxes(2, 3)
    assert_close_to_golden(logits(loaded.model, large.reshape(2, 448, 448, 3)), "vit_ti16_224")


def test_a_flexivit_file_loads_at_any_patch_size(tmp_path):
    """big_vision's FlexiViT: a class token without a position, and a kernel for every size."""
    tensors = by_kind(tiny(pooling="token"))
    tensors["pos_embedding"] = tensors["pos_embedding"][:, 1:]
    path = write_npz(tmp_path / "flexivit.npz", tensors)
    for patch_size in (2, 8):
        sizes = {"image_size": 16, "patch_size": patch_size, "position_resize": "bilinear"}
        plain = load(path, **sizes)
        flexible = load(path, **sizes, patch_kernel_size=4, position_grid=4)
        assert plain.model.grid == flexible.model.grid == (16 // patch_size, 16 // patch_size)
        assert flexible.report.names(Status.RESIZED) == [TABLE]  # Zeros for the class token.
        found, want = (logits(loaded.model, images(16)) for loaded in (flexible, plain))
        np.testing.assert_allclose(found, want, atol=1e-5)


def test_another_patch_size_at_the_same_image_size_changes_the_grid(tiny_path, tiny_loaded):
    loaded = load(tiny_path, patch_size=8)
    assert (loaded.image_size, loaded.model.grid) == ((16, 16), (2, 2))
    assert loaded.report.names(Status.RESIZED) == ["patch_embedding/kernel", TABLE]
    kernel = params(tiny_loaded.model)["patch_embedding/kernel"]
    found = params(loaded.model)["patch_embedding/kernel"]
    np.testing.assert_array_equal(found, resample_kernel(kernel, 8))


def test_a_file_without_a_table_accepts_any_multiple_of_the_new_patch_size(tmp_path):
    """12 pixels are three patches of 4 but not two of 8, which is what the file has."""
    tensors = by_kind(tiny(pooling="gap"))
    del tensors["pos_embedding"]
    kernel = {"embedding/kernel": random(8, 8, 3, WIDTH)}
    path = write_npz(tmp_path / "sincos.npz", tensors | kernel)
    loaded = load(path, patch_size=4, image_size=12)
    assert loaded.model.grid == (3, 3)
    assert loaded.options.position_embedding == "sincos_2d"
