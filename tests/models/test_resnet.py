import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from flax import nnx
from random_models import (
    assert_equal_training,
    assert_every_parameter_gets_a_gradient,
    params64,
    random_images,
    randomize,
    run,
)

from vit_jax.errors import ModelError
from vit_jax.models.options import LayerOptions
from vit_jax.models.registry import model_options
from vit_jax.models.resnet import (
    GroupNorm,
    ResNet,
    ResNetShape,
    Trunk,
    UnitV1,
    UnitV2,
    style_v1,
    style_v2,
)
from vit_jax.models.vit import ViT
from vit_jax.models.vit_options import ViTShape

# Two stages, each a unit that projects and, stacked, an equal one.
SHAPE = ResNetShape((2, 2), 8, groups=4)
SMALL = ResNetShape((2, 2), 8, small=True, groups=4)
ONE_STAGE = ResNetShape((2,), 8, small=True, groups=4)


def make(family, shape=ONE_STAGE, image_size=(8, 8), num_classes=5, **options):
    """A tiny ResNet, or a hybrid of one with a ViT, whose every parameter is random."""
    resnet, sizes = family == "resnet", {"num_classes": num_classes, "image_size": image_size}
    config = model_options(**{"name": "BiT-R26x1" if resnet else "ViT-Ti/16", **options})
    if resnet:
        return randomize(lambda: ResNet(shape, config, **sizes, rngs=nnx.Rngs(params=0)))
    vit_shape = ViTShape(16, 1, 24, 2, patch_size=2, stem=shape)
    return randomize(lambda: ViT(vit_shape, config, **sizes, rngs=nnx.Rngs(params=0)))


EVEN, ODD = (16, 24), (17, 23)


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


def assert_close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize(
    ("shape", "size"), [(SMALL, EVEN), slow(SHAPE, ODD), slow(SHAPE, EVEN), slow(SMALL, ODD)]
)
def test_logits_of_a_resnet_equal_the_formula_written_out_in_float64(shape, size):
    model, x = make("resnet", shape, size), random_images(size=size)
    params, sizes = params64(model), {"groups": 4, "small": shape.small}
    assert_close(
        run(model, x), np.array([reference.resnet(one, params, **sizes) for one in np.float64(x)])
    )


def test_a_flattened_map_is_the_input_of_the_head():
    model, x = make("resnet", SMALL, (8, 12), pooling="flatten"), random_images(size=(8, 12))
    params = params64(model)
    assert params["head"]["linear"]["kernel"].shape == (4 * 6 * 64, 5)
    sizes = {"groups": 4, "small": True, "pooling": "flatten"}
    want = np.array([reference.resnet(one, params, **sizes) for one in np.float64(x)])
    assert_close(run(model, x), want)
    with pytest.raises(ModelError, match=r"expected \(batch, 8, 12, 3\)"):
        model(random_images(size=(8, 16)))


@pytest.mark.parametrize(
    ("version", "shape", "size"),
    [
        (1, SHAPE, EVEN),
        (1, SMALL, ODD),
        (2, SHAPE, ODD),
        slow(2, SMALL, EVEN),
        slow(1, SHAPE, ODD),
        slow(1, SMALL, EVEN),
        slow(2, SHAPE, EVEN),
        slow(2, SMALL, ODD),
    ],
)
def test_feature_maps_equal_the_formula_written_out_in_float64(version, shape, size):
    """At stride 2, version 1 pads even sizes unevenly and odd ones like version 2."""
    trunk = randomize(lambda: Trunk(shape, version, LayerOptions(), rngs=nnx.Rngs(params=0)))
    x, params = random_images(size=size), params64(trunk)
    settings = {"version": version, "groups": 4, "small": shape.small}
    want = np.array([reference.trunk(image, params, **settings) for image in np.float64(x)])
    got = run(trunk, jnp.asarray(x))
    assert list(got) == ["root", "stage1", "stage2"]
    assert got["stage2"].shape == (2, *(-(-n // shape.stride) for n in size), 64)
    assert_close(got["stage2"], want)


@pytest.mark.parametrize("shape", [SMALL, slow(SHAPE)])
def test_logits_of_a_hybrid_equal_the_formula_written_out_in_float64(shape):
    size = 8 if shape.small else 32
    model, x = make("hybrid", shape, (size, size)), random_images(size=size)
    params, sizes = params64(model), {"version": 1, "groups": 4, "small": shape.small}
    maps = [reference.trunk(image, params["stem"], **sizes) for image in np.float64(x)]
    assert maps[0].shape == (4, 4, 64)
    assert_close(run(model, x), np.array([reference.vit(one, params) for one in maps]))


def test_weight_standardisation_uses_the_epsilons_of_bit_and_hybrids():
    """A kernel of +-1e-5, whose deviation is 1e-5: version 1 gives 1/2, version 2 1/sqrt(2)."""
    kernel = jnp.asarray([1e-5, -1e-5]).reshape(1, 1, 2, 1)
    first = style_v1(1, "float32").standardize(kernel).ravel()
    np.testing.assert_allclose(first, [0.5, -0.5], rtol=1e-5)
    second = style_v2(1, "float32").standardize(kernel).ravel()
    np.testing.assert_allclose(second, [0.5**0.5, -(0.5**0.5)], rtol=1e-5)


def test_group_norm_of_bfloat16_is_computed_in_float32():
    """A large offset with a small spread: in bfloat16 the mean alone would lose it."""
    row = (256 + jnp.arange(8, dtype=jnp.float32) * 2).astype(jnp.bfloat16).reshape(1, 1, 1, 8)
    want = (np.arange(8) - 3.5) / np.std(np.arange(8))
    got = run(GroupNorm(8, style_v2(1, "float32")), row)
    np.testing.assert_allclose(got.ravel(), want, rtol=1e-4)
    half = nnx.eval_shape(GroupNorm(8, style_v2(1, jnp.bfloat16)), row)
    assert half.dtype == jnp.bfloat16


def test_a_new_version_1_unit_returns_its_input():
    """Its last scale starts at zero; a unit of version 2 changes its input from the start."""
    x = jnp.asarray(np.random.default_rng(0).uniform(0, 1, (1, 4, 4, 32)), jnp.float32)

    def call(unit, style, x):
        return unit(32, 8, 1, style=style(4, "float32"), rngs=nnx.Rngs(params=0))(x)

    call = jax.jit(call, static_argnums=(0, 1))
    np.testing.assert_array_equal(call(UnitV1, style_v1, x), x)
    assert np.abs(call(UnitV2, style_v2, x) - x).min() > 0


@pytest.mark.parametrize(
    ("family", "variants"),
    [
        ("resnet", ({"scan": False}, {"remat": "full"})),
        slow("resnet", ({"scan": False}, {"remat": "dots"})),
        slow("hybrid", ({}, {"remat": "full"}, {"remat": "dots"}, {"scan": False})),
    ],
)
def test_remat_and_unrolling_change_neither_output_nor_gradient(family, variants):
    models = [make(family, **variant) for variant in variants]
    assert_equal_training(models, random_images(size=8))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["resnet", "hybrid"])
def test_only_full_remat_recomputes_convolutions(family):
    """In the stage's first unit as in the stack of the others."""

    def count(units, remat):
        shape = ResNetShape(units, 8, small=True, groups=4)
        graphdef, params = nnx.split(make(family, shape, remat=remat))

        def total(params):
            return nnx.merge(graphdef, params)(jnp.zeros((1, 8, 8, 3))).sum()

        program = jax.make_jaxpr(jax.grad(total))(nnx.to_pure_dict(params))
        return str(program).count("conv_general_dilated[")

    first, both = ({r: count(units, r) for r in ("none", "dots", "full")} for units in ((1,), (2,)))
    assert first["none"] == first["dots"]
    assert both["none"] == both["dots"]
    assert 0 < first["full"] - first["none"] < both["full"] - both["none"]


@pytest.mark.parametrize(
    ("family", "options"), [("resnet", {}), ("hybrid", {"representation_size": 6})]
)
def test_every_parameter_gets_a_gradient(family, options):
    """Of a hybrid, with a stack of units in its stem, which the smallest registered one lacks."""
    assert_every_parameter_gets_a_gradient(make(family, **options), random_images(size=8))


def test_intermediates_are_named_and_consistent():
    model, x = make("resnet", SMALL), random_images(size=8)
    names = ("root", "stage1", "stage2", "encoded", "pre_logits")

    @jax.jit
    def call():
        logits, found = model(x, return_intermediates=names)
        head, _ = model.head(found["pre_logits"])
        return logits, found, jax.nn.relu(model.norm(found["stage2"])), head

    logits, found, normalized, head = call()
    assert {name: value.shape for name, value in found.items()} == {
        "root": (2, 8, 8, 8),
        "stage1": (2, 8, 8, 32),
        "stage2": (2, 4, 4, 64),
        "encoded": (2, 4, 4, 64),
        "pre_logits": (2, 64),
    }
    np.testing.assert_allclose(found["encoded"], normalized, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["encoded"].mean((1, 2)), found["pre_logits"], rtol=1e-5)
    np.testing.assert_allclose(head, logits, rtol=1e-5)

    def some(*names):
        return nnx.eval_shape(lambda m, x: m(x, return_intermediates=names)[1], model, x)

    assert set(some("stage2", "root")) == {"stage2", "root"}


def test_a_resnet_takes_images_of_any_size():
    model, x = make("resnet", image_size=(8, 8)), random_images(size=(20, 12))
    np.testing.assert_array_equal(run(model, x), run(make("resnet", image_size=(20, 12)), x))
