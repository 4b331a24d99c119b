"""Stacks of convolutions with known receptive fields, and models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_models import random_model, randomize

from vit_jax.analysis import gradient_maps, receptive_field
from vit_jax.analysis.receptive_field import Field, feature_maps, layers_of, summarize, trunk_fields
from vit_jax.models.resnet import GroupNorm, ResNetShape, Trunk

pytestmark = pytest.mark.slow

TINY = {"width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}


def images(count, height=16, width=16):
    return np.random.default_rng(0).uniform(-1, 1, (count, height, width, 3)).astype(np.float32)


class Stack(nnx.Module):
    """3x3 convolutions without bias or nonlinearity, all weights 1."""

    def __init__(self, strides):
        self.kernels = nnx.List(
            [nnx.Param(jnp.ones((3, 3, 1 if i else 3, 1))) for i in range(len(strides))]
        )
        self.strides = strides

    def maps(self, x):
        found = []
        for kernel, stride in zip(self.kernels, self.strides, strict=True):
            x = jax.lax.conv_general_dilated(
                x,
                kernel[...],
                (stride, stride),
                ((1, 1), (1, 1)),
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            found.append(x)
        return found


def test_a_stack_of_all_ones_convolutions_has_the_computed_field():
    """Two 3x3 convolutions of ones: paths to each pixel 1 2 3 2 1, down times across."""
    mass = gradient_maps(lambda m, x: m.maps(x), Stack((1, 1)), images(3), batch_size=2)
    assert mass.shape == (2, 16, 16)
    once, twice = np.zeros(16), np.zeros(16)
    once[7:10], twice[6:11] = 1, np.square([1, 2, 3, 2, 1])
    for found, line in zip(mass, (once, twice), strict=True):
        np.testing.assert_allclose(found, np.outer(line, line) / line.sum() ** 2, atol=1e-6)
    fields = [Field().then(3, before=1)]
    fields.append(fields[0].then(3, before=1))
    found = summarize(
        mass, [(16, 16)] * 2, ("a", "b"), (1, 2), [(field, field) for field in fields]
    )
    assert found.convolutional_side.tolist() == [3, 5]
    # The middle three of 1 4 9 4 1 contain 17/19 along a side, 80 % of the square: too little.
    assert found.side.tolist() == [3, 5]
    np.testing.assert_allclose(found.beyond, 0, atol=1e-6)
    assert found.centres.tolist() == [[8, 8], [8, 8]]


@pytest.mark.parametrize("strides", [(1, 1, 1, 1), (2, 1, 2), (1, 2, 2, 1)])
def test_the_effective_field_lies_within_the_theoretical(strides):
    stack, field = Stack(strides), Field()
    mass = gradient_maps(lambda m, x: m.maps(x), stack, images(2, 40, 40))
    shapes, fields = [], []
    maps = jax.eval_shape(stack.maps, jnp.asarray(images(1, 40, 40)))
    for stride, x in zip(strides, maps, strict=True):
        field = field.then(3, stride, 1)
        fields.append((field, field))
        shapes.append(x.shape[1:3])
    names = [str(i) for i in range(len(strides))]
    found = summarize(mass, shapes, names, range(len(strides)), fields)
    assert (found.side <= found.convolutional_side).all()
    assert (found.beyond < 1e-6).all()
    # Deep effective fields are smaller than the theoretical ones (arXiv:1701.04128, section 2).
    assert found.side[-1] < found.convolutional_side[-1]


@pytest.mark.parametrize(
    ("version", "length", "small", "units"),
    [
        (1, 16, True, (2, 1)),
        (2, 32, False, (1, 1)),
        pytest.param(1, 30, False, (1, 1), marks=pytest.mark.slow),
        pytest.param(2, 15, True, (1, 1), marks=pytest.mark.slow),
    ],
)
def test_the_theoretical_field_of_a_resnet_equals_the_support_of_its_gradient(
    monkeypatch, version, length, small, units
):
    """Without group normalisation, which uses all positions, the gradient ends with the field."""
    monkeypatch.setattr(GroupNorm, "__call__", lambda self, x: x)
    shape = ResNetShape(units, 4, small=small, groups=2)
    trunk = randomize(lambda: Trunk(shape, version, rngs=nnx.Rngs(0)))
    pixels = images(2, length, length)
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
    found = receptive_field(model, images(3, 16, 24), batch_size=2)
    assert found.layers == ("embedding", "block 1", "block 2")
    assert found.depth.tolist() == [0, 1, 2]
    assert found.convolutional_side.tolist() == [4, 12, 20]
    assert found.side[0] == 4
    assert found.centres[0].tolist() == [9.5, 13.5]  # Patch (2, 3) of 4 x 6.
    inside = found.maps[0][8:12, 12:16]
    assert (inside > 0).all()
    assert inside.sum() == pytest.approx(1, abs=1e-5)
    assert found.beyond[0] == pytest.approx(0, abs=1e-6)
    assert (found.maps[1:] > 0).all()
    assert (found.beyond[1:] > 0).all()
    np.testing.assert_allclose(found.maps.sum((1, 2)), 1, rtol=1e-5)
    again = receptive_field(model, images(3, 16, 24), batch_size=3)
    np.testing.assert_allclose(again.maps, found.maps, rtol=1e-3, atol=1e-7)


def test_the_layers_of_resnets_and_hybrids_are_stages_and_blocks():
    names, depth, fields = layers_of(random_model("BiT-R-Mini"), (32, 32))
    assert names == ["root", "stage1", "stage2", "stage3"]
    assert depth == [0, 1, 2, 4]
    # 3; + 2; + 2; + 2 * 2 and 2 * 4 pixels.
    assert [down.side for down, _ in fields] == [3, 5, 7, 19]
    hybrid = random_model("R+ViT-Nano/4", depth=1)
    names, depth, fields = layers_of(hybrid, (16, 16))
    assert names == ["root", "stage1", "stage2", "embedding", "block 1"]
    assert depth == [0, 1, 2, 2, 3]
    assert [down.side for down, _ in fields] == [3, 5, 7, 9, 17]
    maps = nnx.eval_shape(feature_maps, hybrid, jnp.zeros((2, 16, 16, 3)))
    assert [m.shape[1:3] for m in maps] == [(16, 16), (16, 16), (8, 8), (4, 4), (4, 4)]


@pytest.mark.slow
def test_the_maps_of_a_hybrid_sum_to_one():
    hybrid = receptive_field(random_model("R+ViT-Nano/4", image_size=8, depth=1), images(2, 8, 8))
    np.testing.assert_allclose(hybrid.maps.sum((1, 2)), 1, rtol=1e-5)


@pytest.mark.slow
def test_most_of_a_resnets_effective_field_lies_within_its_theoretical_field():
    found = receptive_field(random_model("BiT-R-Mini", image_size=32), images(2, 32, 32))
    # Outside it is what the statistics of group normalisation contribute.
    assert (found.beyond < 0.02).all()
    assert (found.beyond[1:] > 0).all()
    assert (found.side <= found.convolutional_side).all()
