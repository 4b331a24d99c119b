import math

import jax
import pytest
from flax import nnx

import vit_jax
from vit_jax.config import ModelConfig
from vit_jax.errors import ModelError
from vit_jax.models.registry import build_model, list_models, resolve

# Parameters with a 1000-class linear head at 224 px. B/16, L/16, H/14, Ti/16 as published (timm);
# the rest follow from the sizes of arXiv:2010.11929, Table 1 and arXiv:2106.04560, Table 2.
PARAMETERS = {
    "ViT-Ti/32": 6_131_560,
    "ViT-Ti/16": 5_717_416,
    "ViT-Ti/14": 5_694_376,
    "ViT-Ti/8": 5_719_720,
    "ViT-S/32": 22_878_952,
    "ViT-S/16": 22_050_664,
    "ViT-S/14": 22_004_584,
    "ViT-S/8": 22_055_272,
    "ViT-M/32": 39_942_120,
    "ViT-M/16": 38_837_736,
    "ViT-M/14": 38_776_296,
    "ViT-M/8": 38_843_880,
    "ViT-B/32": 88_224_232,
    "ViT-B/16": 86_567_656,
    "ViT-B/14": 86_475_496,
    "ViT-B/8": 86_576_872,
    "ViT-L/32": 306_535_400,
    "ViT-L/16": 304_326_632,
    "ViT-L/14": 304_203_752,
    "ViT-L/8": 304_338_920,
    "ViT-H/32": 634_960_360,
    "ViT-H/16": 632_199_400,
    "ViT-H/14": 632_045_800,
    "ViT-H/8": 632_214_760,
    "ViT-g/32": 1_015_817_448,
    "ViT-g/16": 1_012_780_392,
    "ViT-g/14": 1_012_611_432,
    "ViT-g/8": 1_012_797_288,
    "ViT-G/32": 1_848_229_608,
    "ViT-G/16": 1_844_640_360,
    "ViT-G/14": 1_844_440_680,
    "ViT-G/8": 1_844_660_328,
}


def count(name, **options):
    config = ModelConfig.from_mapping({"name": name, **options})
    sizes = {"num_classes": 1000, "image_size": 224, "key": jax.random.key(0)}
    model = nnx.eval_shape(lambda: build_model(config, **sizes))
    return sum(math.prod(p.shape) for p in jax.tree.leaves(nnx.to_pure_dict(nnx.state(model))))


def by_hand(name):
    """The count from the formula: patch embedding, class token, positions, blocks, norm, head."""
    shape = resolve(ModelConfig(name=name))
    d, m, p = shape.width, shape.mlp_dim, shape.patch_size
    tokens = (224 // p) ** 2 + 1
    block = 4 * (d * d + d) + (d * m + m) + (m * d + d) + 4 * d
    return (p * p * 3 * d + d) + d + tokens * d + shape.depth * block + 2 * d + (d * 1000 + 1000)


def test_the_table_covers_every_listed_model():
    assert set(PARAMETERS) == set(list_models())


@pytest.mark.parametrize("name", list_models())
def test_parameter_count(name):
    assert count(name) == PARAMETERS[name] == by_hand(name)


@pytest.mark.parametrize(("name", "millions"), [("B/16", 86), ("L/32", 307), ("H/14", 632)])
def test_the_paper_counts_in_millions_without_classes_with_the_tanh_layer(name, millions):
    """Table 1 says 307M for L: that is L/32; L/16 has 304.4M, its patch embedding being smaller."""
    width = {"B/16": 768, "L/32": 1024, "H/14": 1280}[name]
    counted = count(f"ViT-{name}", representation_size=width) - 1000 * (width + 1)
    assert round(counted / 1e6) == millions


def test_names_of_any_patch_size_work_and_overrides_count():
    assert resolve(ModelConfig(name="ViT-S/4")).patch_size == 4
    halved = resolve(ModelConfig(name="ViT-B/32", width=384, mlp_dim=1536, num_heads=6))
    assert (halved.width, halved.depth, halved.mlp_dim, halved.num_heads) == (384, 12, 1536, 6)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("ViT-B16", "ViT-B/16"), ("vit-l/16", "ViT-L/16"), ("ViT-Q/14", "/14"), ("ViT-B/0", "ViT-B/")],
)
def test_an_unknown_name_gets_the_nearest_one(name, hint):
    with pytest.raises(ModelError, match=f"unknown model '{name}'.*did you mean '.*{hint}"):
        vit_jax.create_model(name)


def test_list_models_is_public():
    assert "ViT-Ti/16" in vit_jax.list_models()
    assert len(vit_jax.list_models()) == 8 * 4
