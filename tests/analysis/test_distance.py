"""Attention matrices with known distances, and models compared with the formula."""

import jax
import numpy as np
import pytest
from flax import nnx
from random_models import random_images, random_model, run

from vit_jax.analysis import attention_distance, mean_distances, patch_distances
from vit_jax.analysis.batches import map_attention
from vit_jax.errors import DataError, ModelError
from vit_jax.models.attention_choice import AttentionChoice

TINY = {"width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}


def distance_of(matrix, grid, patch_size):
    """The distance of one attention matrix [N, N]."""
    weights = np.asarray(matrix, np.float32)[None, None]
    found, share = mean_distances(weights, patch_distances(grid, patch_size))
    return float(found[0, 0]), float(share[0, 0])


def test_uniform_attention_has_the_mean_distance_of_pairs_and_attention_to_oneself_none():
    assert distance_of(np.eye(12), (3, 4), (16, 16)) == (0, 0)
    # 1 x 3 patches of 16 pixels: 0 16 32 / 16 0 16 / 32 16 0 add up to 128.
    assert distance_of(np.full((3, 3), 1 / 3), (1, 3), (16, 16))[0] == pytest.approx(128 / 9)
    # 2 x 2: of four, one is at 0, two at 10, one across.
    want = 10 * (2 + 2**0.5) / 4
    assert distance_of(np.full((4, 4), 1 / 4), (2, 2), (10, 10))[0] == pytest.approx(want)


def test_rectangular_patches_use_their_height_and_width():
    """2 x 3 patches, 4 pixels high and 8 wide; all pairs are compared in the models below."""
    right = np.eye(6)[[1, 2, 2, 4, 5, 5]]  # The last of a row looks at itself.
    assert distance_of(right, (2, 3), (4, 8))[0] == pytest.approx(16 / 3)
    other_row = np.roll(np.eye(6), 3, axis=1)
    assert distance_of(other_row, (2, 3), (4, 8))[0] == 4


def test_class_token_and_registers_are_left_out_of_the_distance():
    """A class token and two registers before 4 patches take 60 % of what all look at."""
    matrix = np.zeros((7, 7))
    matrix[:3, 3:] = 1 / 4  # What they see does not matter.
    matrix[3:, :3] = 0.2
    matrix[3:, 3:] = 0.4 * np.roll(np.eye(4), 1, axis=1)  # To the right; the last to the first.
    found, share = distance_of(matrix, (1, 4), (8, 8))
    assert found == pytest.approx(8 * 6 / 4)
    assert share == pytest.approx(0.6)
    # Who looks at no patch at all looks no distance.
    matrix[3:, :3], matrix[3:, 3:] = 1 / 3, 0
    assert distance_of(matrix, (1, 4), (8, 8)) == (0, pytest.approx(1))


def reference(model, pixels):
    """[M, L, H] by the formula, in float64, from all weights at once."""
    _, found = run(model, pixels, return_intermediates=("attention_weights",))
    among = np.asarray(found["attention_weights"], np.float64)[..., model.num_prefix :, :]
    among = among[..., model.num_prefix :]
    among /= among.sum(-1, keepdims=True)
    stride = [size / count for size, count in zip(model.image_size, model.grid, strict=True)]
    result = np.zeros(among.shape[:3])
    places = [(y, x) for y in range(model.grid[0]) for x in range(model.grid[1])]
    for i, (y, x) in enumerate(places):
        for j, (v, u) in enumerate(places):
            far = np.hypot(stride[0] * (y - v), stride[1] * (x - u))
            result += among[..., i, j] * far / len(places)
    return result.swapaxes(0, 1)


@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        ("ViT-Ti/4", (8, 16), {**TINY, "num_registers": 2}),
        ("ViT-Ti/4", (8, 8), {**TINY, "pooling": "map", "position_embedding": "relative"}),
        pytest.param("R+ViT-Nano/4", (8, 8), {"depth": 1}, marks=pytest.mark.slow),
    ],
)
def test_the_distances_of_a_model_equal_the_formula(name, size, options):
    model = random_model(name, image_size=size, **options)
    pixels = random_images(5, size)
    found, want = attention_distance(model, pixels, batch_size=2), reference(model, pixels)
    np.testing.assert_allclose(found.per_image, want, rtol=2e-4)
    np.testing.assert_allclose(found.mean, want.mean(0), rtol=2e-4)
    error = want.std(0, ddof=1) / 5**0.5
    np.testing.assert_allclose(found.standard_error, error, rtol=1e-3, atol=1e-5)
    rows, columns = model.grid
    every = np.full((rows * columns, rows * columns), 1 / (rows * columns))
    assert found.uniform == pytest.approx(distance_of(every, model.grid, (4, 4))[0])
    if model.num_prefix:
        assert 0.01 < found.prefix_share.mean() < 0.99
    else:
        assert not found.prefix_share.any()


def test_attention_kernel_scan_and_padding_do_not_change_the_distances():
    options = {**TINY, "num_registers": 2, "image_size": 8}
    plain = random_model("ViT-Ti/4", **options, attention_implementation="einsum")
    want = attention_distance(plain, random_images(3, 8))
    changed = {"scan": False, "attention_implementation": "xla", "remat": "full"}
    unrolled = random_model("ViT-Ti/4", **options, **changed)  # With the same parameters.
    # Like a fused kernel that needs an even number of tokens; the padding is cut off first.
    padded = random_model("ViT-Ti/4", **options)
    assert padded.num_tokens == 7
    padded.encoder.attention_choice = AttentionChoice("cudnn", 2, "for this test")
    for other in (unrolled, padded):
        found = attention_distance(other, random_images(3, 8), batch_size=2)
        np.testing.assert_allclose(found.per_image, want.per_image, rtol=2e-5)
        np.testing.assert_allclose(found.prefix_share, want.prefix_share, rtol=2e-5)


def test_only_the_weights_of_one_layer_are_in_memory():
    """The compiled program has memory for a few of 12 layers of [8, 4, 64, 64]."""
    sizes = {"width": 16, "depth": 12, "mlp_dim": 16, "num_heads": 4, "image_size": 32}
    model = random_model("ViT-Ti/4", pooling="gap", **sizes)
    graphdef, state = nnx.split(model)

    def all_layers(model, pixels):
        _, found = model(pixels, return_intermediates=("attention_weights",))
        return found["attention_weights"].sum()

    def layer_by_layer(model, pixels):
        return map_attention(model, pixels, lambda weights: weights.sum((2, 3)))[0].sum()

    def temporary(total):
        compute = jax.jit(lambda state, pixels: total(nnx.merge(graphdef, state), pixels))
        shape = jax.ShapeDtypeStruct((8, 32, 32, 3), np.float32)
        return compute.lower(state, shape).compile().memory_analysis().temp_size_in_bytes

    one = 8 * 4 * 64 * 64 * 4
    assert temporary(all_layers) > 11 * one
    assert temporary(layer_by_layer) < 7 * one


def test_wrong_inputs_are_errors():
    model = random_model("ViT-Ti/4", **TINY)
    with pytest.raises(DataError, match="0 images; expected at least one"):
        attention_distance(model, random_images(0))
    with pytest.raises(ModelError, match=r"images of shape \(3, 8, 8, 3\)"):
        attention_distance(model, random_images(3, 8))
    with pytest.raises(ModelError, match="distance of a ResNet, which has no attention"):
        attention_distance(random_model("BiT-R-Nano"), random_images(1))
