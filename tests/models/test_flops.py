import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from vit_jax.config import ModelConfig
from vit_jax.models.flops import forward_macs, training_flops
from vit_jax.models.registry import build_model

# (epochs on 303M images, exaFLOPs) of arXiv:2010.11929, Table 6.
TABLE_6 = {
    "ViT-B/32": [(7, 55)],
    "ViT-B/16": [(7, 224)],
    "ViT-L/32": [(7, 196)],
    "ViT-L/16": [(7, 783), (14, 1567)],
    "ViT-H/14": [(14, 4262)],
}


@pytest.mark.parametrize("name", TABLE_6)
def test_table_6_within_two_percent(name):
    macs = forward_macs(ModelConfig(name=name), num_classes=0, image_size=(224, 224))
    for epochs, exaflops in TABLE_6[name]:
        ours = training_flops(macs) * 303e6 * epochs / 1e18
        # The table gives whole numbers.
        assert round(ours) == pytest.approx(exaflops, rel=0.02)


def test_macs_of_one_block_by_hand():
    """Width 4, 2 patches of 2x2 px and a class token: 3 tokens."""
    config = ModelConfig(name="ViT-Ti/2", width=4, depth=1, mlp_dim=8, num_heads=2)
    patches, projections = 2 * (2 * 2 * 3) * 4, 4 * 3 * 4 * 4
    scores_and_sum, mlp, head = 2 * 3 * 3 * 4, 2 * 3 * 4 * 8, 4 * 5
    want = patches + projections + scores_and_sum + mlp + head
    assert forward_macs(config, num_classes=5, image_size=(2, 4)) == want


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pooling": "map", "mlp": "swiglu", "num_registers": 3},
        {"pooling": "flatten", "representation_size": 24},
        {"pooling": "gap", "position_embedding": "relative"},
    ],
)
def test_the_count_equals_the_matmuls_that_xla_sees(options):
    config = ModelConfig.from_mapping({"name": "ViT-Ti/16", "depth": 1, **options})
    sizes = {"num_classes": 10, "image_size": 128}
    model = nnx.eval_shape(lambda: build_model(config, key=jax.random.key(0), **sizes))
    graphdef, params = nnx.split(model)
    images = jax.ShapeDtypeStruct((4, 128, 128, 3), jnp.float32)
    lowered = jax.jit(lambda p, x: nnx.merge(graphdef, p)(x)).lower(
        nnx.to_pure_dict(params), images
    )
    dots = dot_macs(lowered.as_text())
    assert dots / 4 == forward_macs(config, num_classes=10, image_size=(128, 128))


def dot_macs(text):
    """Sums rows x columns x contraction over the dot_general operations of a StableHLO module."""
    import math
    import re

    total = 0
    shape = r"tensor<([0-9x]+)xf32>"
    pattern = (
        rf"dot_general .*contracting_dims = \[([0-9, ]+)\] x .*: \({shape}, {shape}\) -> {shape}"
    )
    for axes, lhs, _, out in re.findall(pattern, text):
        lhs, out = ([int(n) for n in dims.split("x")] for dims in (lhs, out))
        total += math.prod(out) * math.prod(lhs[int(a)] for a in axes.split(","))
    return total
