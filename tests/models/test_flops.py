import math

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.extend.core import jaxprs_in_params

from vit_jax.models.flops import forward_macs, training_flops
from vit_jax.models.registry import build_model, model_options

# (epochs on 303M images, exaFLOPs) of arXiv:2010.11929, Table 6.
TABLE_6 = {
    "ViT-B/32": [(7, 55)],
    "ViT-B/16": [(7, 224)],
    "ViT-L/32": [(7, 196)],
    "ViT-L/16": [(7, 783), (14, 1567)],
    "ViT-H/14": [(14, 4262)],
    "BiT-R50x1": [(7, 50)],
    "BiT-R50x2": [(7, 199)],
    "BiT-R101x1": [(7, 96)],
    "BiT-R152x1": [(7, 141)],
    "BiT-R152x2": [(7, 563), (14, 1126)],
    "BiT-R200x3": [(14, 3306)],
    "R50+ViT-B/32": [(7, 106)],
    "R50+ViT-B/16": [(7, 274)],
    "R50+ViT-L/32": [(7, 246)],
    "R50+ViT-L/16": [(7, 859), (14, 1668)],
}


def macs_of(name, size, num_classes=0):
    return forward_macs(model_options(name), num_classes=num_classes, image_size=(size, size))


@pytest.mark.parametrize("name", TABLE_6)
def test_table_6_within_two_percent_and_with_convolutions_within_five(name):
    """The table's own rounding of whole numbers is up to 1 %."""
    tolerance = 0.02 if name.startswith("ViT") else 0.05
    for epochs, exaflops in TABLE_6[name]:
        ours = training_flops(macs_of(name, 224)) * 303e6 * epochs / 1e18
        assert round(ours) == pytest.approx(exaflops, rel=tolerance)


@pytest.mark.parametrize(
    ("size", "least", "most"),
    [("Mini", 95e6, 101e6), ("Micro", 18.8e6, 20.1e6), ("Nano", 4.2e6, 4.5e6)],
)
def test_small_models_of_one_size_cost_about_the_same(size, least, most):
    """One of each family, so that they can be compared on 32-pixel images."""
    names = (f"ViT-{size}/4", f"R+ViT-{size}/4", f"BiT-R-{size}")
    costs = [macs_of(name, 32, 10) for name in names]
    assert max(costs) < 1.07 * min(costs)
    assert least < min(costs) < max(costs) < most


def test_macs_of_one_block_by_hand():
    """Width 4, 2 patches of 2x2 px and a class token: 3 tokens."""
    config = model_options("ViT-Ti/2", width=4, depth=1, mlp_dim=8, num_heads=2)
    patches, projections = 2 * (2 * 2 * 3) * 4, 4 * 3 * 4 * 4
    scores_and_sum, mlp, head = 2 * 3 * 3 * 4, 2 * 3 * 4 * 8, 4 * 5
    want = patches + projections + scores_and_sum + mlp + head
    assert forward_macs(config, num_classes=5, image_size=(2, 4)) == want


def test_macs_of_a_resnet_by_hand():
    """BiT-R-Mini, 8 px: maps of 8x8, 8x8, 4x4, 2x2; the 3x3 convolutions have the stride."""
    root = 64 * 9 * 3 * 32
    stage1 = 64 * (32 * 32 + 9 * 32 * 32 + 32 * 128 + 32 * 128)
    stage2 = 64 * 128 * 64 + 16 * (9 * 64 * 64 + 64 * 256 + 128 * 256)
    stage3 = 16 * 256 * 128 + 4 * (9 * 128 * 128 + 128 * 512 + 256 * 512)
    equal = 4 * (512 * 128 + 9 * 128 * 128 + 128 * 512)
    assert macs_of("BiT-R-Mini", 8, 5) == root + stage1 + stage2 + stage3 + equal + 512 * 5


@pytest.mark.parametrize(
    ("options", "image_size"),
    [
        ({}, (128, 128)),
        ({"pooling": "map", "mlp": "swiglu", "num_registers": 3}, (128, 128)),
        ({"pooling": "flatten", "representation_size": 24}, (128, 128)),
        ({"pooling": "gap", "position_embedding": "relative"}, (128, 128)),
        ({"pooling": "gap", "class_token": True, "qkv_bias": False}, (128, 128)),
        ({"name": "R26+ViT-S/32"}, (64, 96)),
        ({"name": "R+ViT-Ti/16"}, (64, 96)),
        ({"name": "R+ViT-Mini/4", "depth": 3}, (8, 12)),
        # Odd sizes, which a ResNet halves upwards.
        ({"name": "BiT-R26x1", "scan": False}, (65, 98)),
        ({"name": "BiT-R26x1", "representation_size": 24}, (65, 98)),
        ({"name": "BiT-R-Mini"}, (31, 34)),
    ],
)
def test_the_count_equals_that_of_the_traced_program(options, image_size):
    plain = {} if "name" in options else {"name": "ViT-Ti/16", "depth": 2}
    config = model_options(**{**plain, **options})
    sizes = {"num_classes": 10, "image_size": image_size}
    model = nnx.eval_shape(lambda: build_model(config, key=jax.random.key(0), **sizes))
    images = jax.ShapeDtypeStruct((4, *image_size, 3), jnp.float32)
    program = jax.make_jaxpr(lambda p, x: nnx.merge(nnx.graphdef(model), p)(x))(
        nnx.to_pure_dict(nnx.state(model)), images
    )
    assert macs_in(program.jaxpr) == 4 * forward_macs(config, **sizes)


def macs_in(jaxpr):
    """Sums output size x terms summed over matmuls and convolutions, loops as often as run."""
    total = 0
    for equation in jaxpr.eqns:
        out = math.prod(equation.outvars[0].aval.shape)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += out * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
        elif equation.primitive.name == "conv_general_dilated":
            spec = equation.params["dimension_numbers"].rhs_spec
            kernel = equation.invars[1].aval.shape
            total += out * math.prod(kernel) // kernel[spec[0]]
        else:
            inner = sum(map(macs_in, jaxprs_in_params(equation.params)))
            total += inner * equation.params.get("length", 1)
    return total
