"""experiments/inside_vit: receptive fields, equivariance and permutation by their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from flax import nnx
from image_files import write_folder
from random_models import random_images, random_model, randomize
from weight_files import random_weights

from experiments.inside_vit import equivariance as shifts
from experiments.inside_vit import inputs, permutation
from experiments.inside_vit.equivariance import equivariance, shift_errors, shift_map
from experiments.inside_vit.fields import Field, layers_of, trunk_fields
from experiments.inside_vit.receptive_field import extent, gradient_maps, receptive_field
from vit_jax.errors import ModelError
from vit_jax.models.options import LayerOptions
from vit_jax.models.resnet import GroupNorm, ResNetShape, Trunk

TINY = {"width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}


def convolve(x, kernel, stride, padding="VALID"):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=numbers
    )


class Stack(nnx.Module):
    """3x3 convolutions without bias or nonlinearity, all weights 1."""

    def __init__(self, strides):
        self.strides = strides

    def maps(self, x):
        found = []
        for stride in self.strides:
            x = convolve(x, jnp.ones((3, 3, x.shape[-1], 1)), stride, ((1, 1), (1, 1)))
            found.append(x)
        return found


def trunk_without_normalisation(monkeypatch, version, units, *, small):
    """Group normalisation uses all positions; without it a map depends on its field alone."""
    monkeypatch.setattr(GroupNorm, "__call__", lambda self, x: x)
    shape = ResNetShape(units, 4, small=small, groups=2)
    return randomize(lambda: Trunk(shape, version, LayerOptions(), rngs=nnx.Rngs(0)))


def test_a_stack_of_all_ones_convolutions_has_the_computed_field():
    """Two 3x3 convolutions of ones: paths to each pixel 1 2 3 2 1, down times across."""
    mass = gradient_maps(lambda m, x: m.maps(x), Stack((1, 1)), random_images(3), batch_size=2)
    once, twice = np.zeros(16), np.zeros(16)
    once[7:10], twice[6:11] = 1, np.square([1, 2, 3, 2, 1])
    for found, line in zip(mass, (once, twice), strict=True):
        np.testing.assert_allclose(found, np.outer(line, line) / line.sum() ** 2, atol=1e-6)
    # The middle three of 1 4 9 4 1 contain 17/19 along a side, 80 % of the square: too little.
    for found, side in zip(mass, (3, 5), strict=True):
        assert extent(found, (8, 8), side) == (side, pytest.approx(0, abs=1e-6))
    assert extent(mass[1], (8, 8), 3)[1] == pytest.approx(1 - (17 / 19) ** 2, abs=1e-6)


@pytest.mark.parametrize(
    ("version", "length", "small", "units"),
    [(1, 16, True, (2, 1)), (2, 32, False, (1, 1)), (1, 30, False, (1, 1)), (2, 15, True, (1, 1))],
)
def test_the_theoretical_field_of_a_resnet_equals_the_support_of_its_gradient(
    monkeypatch, version, length, small, units
):
    trunk = trunk_without_normalisation(monkeypatch, version, units, small=small)
    pixels = random_images(2, length, seed=0)
    maps = nnx.eval_shape(lambda m, x: list(m(x).values()), trunk, jnp.asarray(pixels))
    mass = gradient_maps(lambda m, x: list(m(x).values()), trunk, pixels)
    fields = trunk_fields(trunk, length)
    assert [depth for _, depth in fields.values()] == [0, units[0], sum(units)]
    for layer, ((field, _), found) in enumerate(zip(fields.values(), maps, strict=True)):
        first = field.start + found.shape[1] // 2 * field.step
        last = min(first + field.side, length) - 1
        for axis in (0, 1):
            touched = np.flatnonzero(mass[layer].sum(axis))
            assert (touched[0], touched[-1]) == (max(first, 0), last)


def test_a_vit_embedding_depends_on_its_patch_and_a_block_on_all_patches():
    model = random_model("ViT-Ti/4", image_size=(16, 24), num_registers=1, **TINY)
    table, mass = receptive_field(model, random_images(3, (16, 24)), batch_size=2)
    assert table["layer"].tolist() == ["embedding", "block 1", "block 2"]
    assert table["depth"].tolist() == [0, 1, 2]
    assert table["convolutional_side_px"].tolist() == [4, 12, 20]
    assert layers_of(model)[0].centre((16, 24)) == (9.5, 13.5)  # Patch (2, 3) of 4 x 6.
    assert mass[0][8:12, 12:16].sum() == pytest.approx(1, abs=1e-5)
    assert table["effective_side_px"][0] == 4
    assert table["mass_beyond"][0] == pytest.approx(0, abs=1e-6)
    assert (mass[1:] > 0).all()
    np.testing.assert_allclose(mass.sum((1, 2)), 1, rtol=1e-5)
    _, again = receptive_field(model, random_images(3, (16, 24)), batch_size=3)
    np.testing.assert_allclose(again, mass, rtol=1e-3, atol=1e-7)


def test_the_layers_of_a_hybrid_are_stages_and_blocks():
    layers = layers_of(random_model("R+ViT-Nano/4", image_size=32, depth=1))
    # 3; + 2; + 2; patches of 2 x 2 cells of 2 pixels: + 2; a 3x3 convolution over patches: + 8.
    assert [(layer.name, layer.depth, layer.fields[0].side) for layer in layers] == [
        ("root", 0, 3),
        ("stage1", 1, 5),
        ("stage2", 2, 7),
        ("embedding", 2, 9),
        ("block 1", 3, 17),
    ]


@pytest.mark.parametrize("stride", [1, 2])
def test_a_circular_convolution_has_no_error_at_multiples_of_its_stride(stride):
    kernel = jax.random.normal(jax.random.key(0), (3, 3, 3, 4))

    def maps(x, mode="wrap"):
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode=mode)
        return {"x": convolve(x, kernel, stride)}

    images = random_images(3, (8, 12))
    found, interior = shift_errors(maps, images, (stride, 3 * stride), {}, batch_size=2)["x"]
    np.testing.assert_allclose(found, np.zeros((3, 2)), atol=1e-6)
    assert np.isnan(interior).all()
    # Zero padding is an error of the border, and not of interior cells.
    field = Field().then(3, stride, before=1)
    fields = {"x": (field, field)}
    found, interior = shift_errors(lambda x: maps(x, "constant"), images, (stride,), fields)["x"]
    assert (found > 0.1).all()
    np.testing.assert_allclose(interior, 0, atol=1e-6)


def test_the_error_of_raw_pixels_by_hand():
    """Cells of 2 pixels that hold the left one; a shift to the right by 1 takes the one before.

    The map of the image, 1 and 2, is moved by half a cell: twice the mean, 1.5.
    """
    images = np.zeros((1, 4, 4, 3), np.float32)
    images[0, :, :, 0] = [1.0, 5, 2, 7]
    found, _ = shift_errors(lambda x: {"x": x[:, ::2, ::2]}, images, (1, 2), {})["x"]
    # Right by 1 pixel: the cells hold 7 and 5. Down: no change.
    across = np.hypot(7 - 1.5, 5 - 1.5) / np.hypot(1, 2)
    np.testing.assert_allclose(found[0], [across / 2, 0], rtol=1e-6)


def test_part_of_a_cell_is_an_average_of_both_whole_shifts():
    x = random_images(2, (3, 4))
    want = 0.75 * np.roll(x, 1, 2) + 0.25 * np.roll(x, 2, 2)
    np.testing.assert_allclose(shift_map(x, 1.25, 2), want, rtol=1e-5, atol=1e-6)


def test_a_vit_without_positions_is_equivariant_to_whole_patches():
    """Its class token and pooled features are invariant to them."""
    images = random_images(3, (8, 12))
    sizes = {"image_size": (8, 12), "num_registers": 2, **TINY}
    plain = equivariance(random_model("ViT-Ti/4", position_embedding="none", **sizes), images, 2)
    maps = ["embedding", "block 1", "block 2", "encoded"]
    vectors = ["class token 1", "class token 2", "pre_logits"]
    assert plain["layer"].drop_duplicates().tolist() == [*maps, *vectors]
    assert plain["shift_px"].drop_duplicates().tolist() == [1, 4]
    assert plain["cell_width_px"].tolist() == [4] * 8 + [12] * 6
    np.testing.assert_allclose(plain["error"][1::2], 0, atol=1e-5)
    assert (plain["error"][:8:2] > 0.1).all()  # Shifts within a patch change its features.
    assert plain["error"].between(plain["error_low"], plain["error_high"]).all()
    learned = equivariance(
        random_model("ViT-Ti/4", position_embedding="learned_1d", **sizes), images
    )
    assert (learned["error"] > 1e-3).all()
    assert learned["interior_error"].isna().all()


def test_a_resnet_is_equivariant_inside_to_multiples_of_its_stride(monkeypatch):
    trunk = trunk_without_normalisation(monkeypatch, 2, (1, 1), small=True)
    fields = {name: (field, field) for name, (field, _) in trunk_fields(trunk, 32).items()}
    found = shift_errors(lambda x: trunk(jnp.asarray(x)), random_images(2, 32), (1, 2), fields)
    for name, (errors, interior) in found.items():
        assert (errors[:, 1] > 0.01).all()
        np.testing.assert_allclose(interior[:, 1], 0, atol=1e-5)
        # By one pixel, the maps of stride 1 move and that of stride 2 cannot.
        assert (interior[:, 0] > 0.1).all() == (name == "stage2")


def test_sizes_that_a_circular_shift_does_not_fit_are_an_error():
    with pytest.raises(ModelError, match="3 cells of 7 pixels"):
        shift_errors(lambda x: {"x": x[:, :3, :3]}, random_images(1, 7), (1,), {})


def test_patches_by_hand():
    image = np.arange(16).reshape(1, 4, 4, 1)
    # 2 x 2 patches: upper left 0 1 4 5, upper right 2 3 6 7, lower left 8 9 12 13, ...
    found = permutation.permute_patches(image, (2, 2), np.asarray([[3, 0, 1, 2]]))
    want = [[10, 11, 0, 1], [14, 15, 4, 5], [2, 3, 8, 9], [6, 7, 12, 13]]
    assert found[0, :, :, 0].tolist() == want
    same = permutation.permute_patches(image, (2, 2), np.arange(4)[None])
    np.testing.assert_array_equal(same, image)


def test_every_image_has_its_own_order_that_only_depends_on_seed_and_index():
    orders = permutation.random_orders(0, 50, (4, 4))
    np.testing.assert_array_equal(np.sort(orders), np.tile(np.arange(16), (50, 1)))
    assert len(np.unique(orders, axis=0)) == 50
    np.testing.assert_array_equal(permutation.random_orders(0, 7, (4, 4)), orders[:7])
    assert not np.array_equal(permutation.random_orders(1, 7, (4, 4)), orders[:7])


@pytest.mark.parametrize(
    ("name", "size", "grids"),
    [
        ("ViT-Ti/4", (16, 32), [(4, 8), (2, 4)]),
        ("ViT-Ti/4", (12, 12), [(3, 3)]),  # One patch of all 12 pixels is left out.
        ("BiT-R-Nano", (28, 28), [(7, 7), (2, 2)]),
    ],
)
def test_the_patches_are_tokens_or_an_eighth_of_the_side_and_twice_that(name, size, grids):
    options = TINY if name.startswith("ViT") else {}
    assert permutation.permutation_grids(random_model(name, image_size=size, **options)) == grids


def test_a_vit_without_positions_predicts_the_same_for_permuted_tokens():
    model = random_model("ViT-Ti/4", position_embedding="none", pooling="gap", **TINY)
    found = permutation.predictions(model, random_images(40), [(4, 4), (2, 2)])
    assert (found == found[0]).all()


def test_the_table_of_a_classifier_of_one_corner():
    """A bright corner stays in place only if the permutation leaves it there."""

    class Corner(nnx.Module):
        """Class 1 if the upper left of 4 x 4 blocks is bright, else 0."""

        def __call__(self, images):
            bright = images[:, :4, :4].mean((1, 2, 3)) > 0
            return jnp.stack([~bright, bright], 1)

    images = np.full((200, 16, 16, 3), -1, np.float32)
    labels = (np.arange(200) % 2).astype(np.int32)
    images[labels == 1, :4, :4] = 1
    grids = [(8, 8), (4, 4)]
    table = permutation.summarise(
        permutation.predictions(Corner(), images, grids, seed=3), labels, 2
    )
    # Patches of 2 pixels: all four of the block would have to stay. Of 4: the order keeps it.
    kept = permutation.random_orders(3, 200, (4, 4))[:, 0] == 0
    want = [1, 0.5, 0.5 + (kept & (labels == 1)).sum() / 200]
    np.testing.assert_allclose(table["accuracy"], want)
    np.testing.assert_allclose(table["unchanged"], want)
    np.testing.assert_allclose(table["change"], np.asarray(want) - 1)
    # Half of the images, 100 of 200, become wrong. Pairs differ by -1 or 0 with deviation 1/2.
    half = 1.96 * 0.5 / 200**0.5
    assert table["change_low"][1] == pytest.approx(-0.5 - half, abs=0.01)
    assert table["change_high"][1] == pytest.approx(-0.5 + half, abs=0.01)


def test_the_scripts_write_their_tables(tmp_path, capsys):
    random_weights(tmp_path / "weights")
    write_folder(tmp_path / "photos", {"ant": 3})
    asked = [str(tmp_path / "weights"), f"--images={tmp_path / 'photos'}", f"--output={tmp_path}"]
    for name, measure in (("equivariance", shifts.measure), ("permutation", permutation.measure)):
        inputs.run(name, measure, arguments=asked)
        assert len(pd.read_csv(tmp_path / f"{name}.csv")) == {"equivariance": 14}.get(name, 3)
    with pytest.raises(SystemExit):
        inputs.run("equivariance", shifts.measure, arguments=asked[:1])
    assert "error: no images" in capsys.readouterr().err
