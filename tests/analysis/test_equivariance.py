"""Layers whose error is known: exactly zero, by hand, or by NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_models import random_images, random_model, randomize, run

from vit_jax.analysis import equivariance, shift_errors
from vit_jax.analysis.equivariance import (
    cells_of,
    draw_equivariance,
    equivariance_output,
    interior_cells,
    named_maps,
    shift_map,
)
from vit_jax.analysis.receptive_field import Field, trunk_fields
from vit_jax.errors import DataError, ModelError
from vit_jax.models.resnet import GroupNorm, ResNetShape, Trunk

pytestmark = pytest.mark.slow

TINY = {"width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}


class Convolution(nnx.Module):
    """One 3x3 convolution of random weights, with a stride."""

    def __init__(self, stride, *, circular):
        self.kernel = nnx.Param(jax.random.normal(jax.random.key(0), (3, 3, 3, 4)))
        self.stride, self.circular = stride, circular

    def maps(self, x):
        padding = ((0, 0), (1, 1), (1, 1), (0, 0))
        x = jnp.pad(x, padding, mode="wrap" if self.circular else "constant")
        return [
            jax.lax.conv_general_dilated(
                x,
                self.kernel[...],
                (self.stride, self.stride),
                "VALID",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
        ]


def maps_of(module, x):
    return module.maps(x)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_circular_convolution_has_no_error_at_multiples_of_its_stride(stride):
    shifts = (stride, 3 * stride)
    found, _ = shift_errors(
        maps_of, Convolution(stride, circular=True), random_images(3, (8, 12)), shifts, batch_size=2
    )
    assert found.shape == (3, 1, 2)
    np.testing.assert_allclose(found, 0, atol=1e-6)


def test_zero_padding_is_an_error_of_the_border_and_not_of_interior_cells():
    field = Field().then(3, before=1)
    found, interior = shift_errors(
        maps_of,
        Convolution(1, circular=False),
        random_images(2, 12),
        (1, 3),
        fields=[(field, field)],
    )
    assert (found > 0.1).all()
    np.testing.assert_allclose(interior, 0, atol=1e-6)


def test_the_error_of_raw_pixels_by_hand():
    """Cells of 2 pixels that hold the left one; a shift to the right by 1 takes the one before.

    The map of the image, 1 and 2, is moved by half a cell: twice the mean, 1.5.
    """
    line = np.asarray([1.0, 5, 2, 7], np.float32)
    images = np.zeros((1, 4, 4, 3), np.float32)
    images[0, :, :, 0] = line

    class Left(nnx.Module):
        def maps(self, x):
            return [x[:, ::2, ::2]]

    found, interior = shift_errors(maps_of, Left(), images, (1, 2))
    # Right by 1 pixel: the cells hold 7 and 5. Down: no change.
    across = np.hypot(7 - 1.5, 5 - 1.5) / np.hypot(1, 2)
    np.testing.assert_allclose(found[0, 0], [across / 2, 0], rtol=1e-6)
    assert np.isnan(interior).all()


def test_part_of_a_cell_is_an_average_of_both_whole_shifts():
    x = jnp.asarray(random_images(2, (3, 4)))
    found = shift_map(x, jnp.float32([0, 1.25]))
    want = 0.75 * np.roll(x, 1, 2) + 0.25 * np.roll(x, 2, 2)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(shift_map(x, jnp.float32([2, 0])), np.roll(x, 2, 1))


def test_a_map_that_is_linear_within_its_cells_follows_every_pixel():
    """Means of triangles around the border are linear in the shift, except at corners."""
    line = np.abs(np.arange(16) - 8).astype(np.float32)  # Corners at 0 and 8.
    images = np.broadcast_to(line[None, None, :, None], (1, 16, 16, 3))

    class Means(nnx.Module):
        def maps(self, x):
            return [x.reshape(1, 4, 4, 4, 4, 3).mean((2, 4))]

    found, _ = shift_errors(maps_of, Means(), np.ascontiguousarray(images), (1, 4))
    # Cell means are 6.5, 2.5, 1.5, 5.5. By 1 pixel: 7, 3.5, 1, 4.5; interpolated 6.25, 3.5, 1.75,
    # 4.5. Down there is no change.
    means = np.asarray([6.5, 2.5, 1.5, 5.5])
    assert means.tolist() == line.reshape(4, 4).mean(1).tolist()
    moved = np.roll(line, 1).reshape(4, 4).mean(1)
    assert moved.tolist() == [7, 3.5, 1, 4.5]
    error = np.hypot(7 - 6.25, 1 - 1.75) / np.linalg.norm(means)
    np.testing.assert_allclose(found[0, 0], [error / 2, 0], rtol=1e-5)


def test_interior_cells_see_no_padding_and_no_pixel_from_the_other_side():
    # Cells of stride 4 see pixels -1..3, 3..7, 7..11, 11..15.
    field = Field(start=-1, side=5, step=4)
    assert interior_cells(field, 4, 16, 0).tolist() == [False, True, True, True]
    assert interior_cells(field, 4, 16, 4).tolist() == [False, False, True, True]
    assert interior_cells(field, 4, 15, 3).tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    ("name", "options", "tokens"),
    [
        ("ViT-Ti/4", {**TINY, "num_registers": 2}, ("class token 1", "class token 2")),
        ("ViT-Ti/4", {**TINY, "pooling": "gap"}, ()),
        ("ViT-Ti/4", {**TINY, "pooling": "map", "norm_placement": "post"}, ()),
    ],
)
def test_a_vit_without_positions_is_equivariant_to_whole_patches(name, options, tokens):
    """Its class token and pooled features are invariant to them."""
    pixels = random_images(3, (8, 12))
    plain = random_model(name, image_size=(8, 12), position_embedding="none", **options)
    found = equivariance(plain, pixels, batch_size=2)
    maps = ("embedded", "block_output 1", "block_output 2", "encoded")
    assert found.layers == (*maps, *tokens, "pre_logits")
    assert found.shifts.tolist() == [1, 4]
    assert found.cell.tolist() == [[4, 4]] * 4 + [[8, 12]] * (len(tokens) + 1)
    assert found.has_positions.tolist() == [True] * 4 + [False] * (len(tokens) + 1)
    np.testing.assert_allclose(found.mean[:, 1], 0, atol=1e-5)
    assert (found.mean[:4, 0] > 0.1).all()  # Shifts within a patch change its features.
    assert (found.mean[4:, 0] > 1e-3).all()
    learned = random_model(name, image_size=(8, 12), position_embedding="learned_1d", **options)
    found = equivariance(learned, pixels)
    assert (found.mean[:4] > 0.05).all()
    assert (found.mean > 1e-3).all()
    assert np.isnan(found.interior).all()


def test_rotary_positions_are_relative_but_do_not_wrap_around():
    """The patch embedding has no positions; attention sees other offsets across the border."""
    model = random_model("ViT-Ti/4", image_size=16, position_embedding="rope_2d", **TINY)
    found = equivariance(model, random_images(2, 16)).mean[:, 1]
    assert found[0] < 1e-6
    assert (found[1:] > 1e-3).all()


def in_numpy(model, pixels, shift):
    """[M, L] by the definition, one layer and direction after the other."""

    def maps(x):
        found = run(Wrapped(model), x)
        return {name: np.asarray(found[name], np.float64) for name in cells_of(model)}

    before, total = maps(pixels), []
    for axis in (1, 2):
        after = maps(np.roll(pixels, shift, axis))
        errors = []
        for name, f in before.items():
            whole, part = divmod(shift / (pixels.shape[axis] // f.shape[axis]), 1)
            low, high = (np.roll(f, int(whole) + more, axis) for more in (0, 1))
            difference = after[name] - ((1 - part) * low + part * high)
            errors.append(
                np.sqrt(np.square(difference).sum((1, 2, 3)) / np.square(f).sum((1, 2, 3)))
            )
        total.append(np.stack(errors, 1))
    return np.mean(total, 0)


class Wrapped(nnx.Module):
    def __init__(self, model):
        self.model = model

    def __call__(self, x):
        return named_maps(self.model, jnp.asarray(x))


@pytest.mark.parametrize(
    ("name", "options", "layers", "shifts"),
    [
        (
            "BiT-R-Nano",
            {},
            ["root", "stage1", "stage2", "stage3", "encoded", "pre_logits"],
            [1, 2, 4],
        ),
        ("BlockMeans-4", {}, ["encoded", "pre_logits"], [1, 4]),
        pytest.param(
            "R+ViT-Nano/4",
            {"depth": 1},
            [
                *("root", "stage1", "stage2", "embedded", "block_output 1", "encoded"),
                *("class token 1", "pre_logits"),
            ],
            [1, 2, 4],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "Mixer-S/8",
            {"width": 8, "depth": 1, "token_mlp_dim": 4, "channel_mlp_dim": 4},
            ["embedded", "block_output 1", "encoded", "pre_logits"],
            [1, 8],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_errors_of_a_model_equal_the_definition(name, options, layers, shifts):
    model, pixels = random_model(name, image_size=16, **options), random_images(3, 16)
    found = equivariance(model, pixels, batch_size=2)
    assert found.layers == tuple(layers)
    assert found.shifts.tolist() == shifts
    for number, shift in enumerate(shifts):
        want = in_numpy(model, pixels, shift)
        np.testing.assert_allclose(found.per_image[:, :, number], want, rtol=1e-3, atol=1e-5)
    low, high = found.interval
    assert (found.per_image.min(0) <= low + 1e-6).all()
    assert (low <= found.mean + 1e-6).all()
    assert (found.mean <= high + 1e-6).all()
    assert (high <= found.per_image.max(0) + 1e-6).all()


def test_a_resnet_is_equivariant_inside_to_multiples_of_its_stride(monkeypatch):
    """Without group normalisation, whose statistics the border changes."""
    monkeypatch.setattr(GroupNorm, "__call__", lambda self, x: x)
    shape = ResNetShape((1, 1), 4, small=True, groups=2)
    trunk = randomize(lambda: Trunk(shape, 2, rngs=nnx.Rngs(0)))
    fields = [(field, field) for field, _ in trunk_fields(trunk, 32).values()]
    found, interior = shift_errors(
        lambda trunk, x: list(trunk(x).values()),
        trunk,
        random_images(2, 32),
        (1, 2),
        fields=fields,
    )
    assert (found[..., 1] > 0.01).all()
    np.testing.assert_allclose(interior[..., 1], 0, atol=1e-5)
    # By one pixel, the maps of stride 1 move and that of stride 2 cannot.
    np.testing.assert_allclose(interior[:, :2, 0], 0, atol=1e-5)
    assert (interior[:, 2, 0] > 0.1).all()


def test_sizes_that_a_circular_shift_does_not_fit_are_an_error():
    model = random_model("BiT-R-Nano", image_size=18)
    with pytest.raises(ModelError, match=r"18x18 pixels, where stage3 has 5x5 cells; expected"):
        cells_of(model)
    with pytest.raises(DataError, match="0 images"):
        equivariance(random_model("BlockMeans-4"), random_images(0, 16))


def test_the_output_has_a_row_for_each_layer_and_shift():
    model = random_model("BiT-R-Nano", image_size=16)
    found = equivariance(model, random_images(2, 16))
    output = equivariance_output(found, "BiT-R-Nano")
    assert len(output.rows) == 6 * 3
    row = output.rows[4]
    assert (row["layer"], row["cell_height_px"], row["shift_px"]) == ("stage1", 1, 2)
    assert float(row["error"]) == pytest.approx(found.mean[1, 1], rel=1e-5)
    low, high = (end[1, 1] for end in found.interval)
    assert float(row["error_low"]) == pytest.approx(low, rel=1e-5)
    assert float(row["error_high"]) == pytest.approx(high, rel=1e-5)
    assert float(row["interior_error"]) == pytest.approx(found.interior_mean[1, 1], rel=1e-5)
    assert output.rows[-1]["interior_error"] == ""  # No cell of the last map is interior.
    lines = draw_equivariance(found, "BiT-R-Nano").axes[0].get_lines()
    labels = [line.get_label() for line in lines if not str(line.get_label()).startswith("_")]
    assert labels[:3] == ["1 pixel", "2 pixels", "4 pixels"]
    np.testing.assert_allclose(lines[0].get_ydata(), found.mean[:5, 0])
