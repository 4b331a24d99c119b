import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
from flax import nnx

import vit_jax
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, ModelError
from vit_jax.models.aliases import find_alias
from vit_jax.models.image_families import IMAGE_FAMILIES
from vit_jax.models.options import SIZES
from vit_jax.models.registry import (
    default_image_size,
    family_of,
    layer_indices,
    list_models,
    model_options,
    model_shape,
)
from vit_jax.models.resnet import ResNetConfig

IMAGE_MODELS = [name for family in IMAGE_FAMILIES.values() for name in family.sizes]

# Parameters with a 1000-class linear head at 224 px, small models at 32 px. B/16, L/16, H/14 and
# Ti/16 as published (timm), BiT as in timm (resnetv2_*_bit); the rest follow from the sizes of
# arXiv:2010.11929, Table 1, and arXiv:2106.04560, Table 2.
PATCHES = (32, 16, 14, 8)
VITS = {
    "Ti": (6_131_560, 5_717_416, 5_694_376, 5_719_720),
    "S": (22_878_952, 22_050_664, 22_004_584, 22_055_272),
    "M": (39_942_120, 38_837_736, 38_776_296, 38_843_880),
    "B": (88_224_232, 86_567_656, 86_475_496, 86_576_872),
    "L": (306_535_400, 304_326_632, 304_203_752, 304_338_920),
    "So400m": (416_220_760, 413_735_896, 413_597_656, 413_749_720),
    "H": (634_960_360, 632_199_400, 632_045_800, 632_214_760),
    "g": (1_015_817_448, 1_012_780_392, 1_012_611_432, 1_012_797_288),
    "G": (1_848_229_608, 1_844_640_360, 1_844_440_680, 1_844_660_328),
}
RESNETS = {  # Width factors 1 to 4.
    "R26": (15_987_496, 59_785_832, 131_396_008, 230_818_024),
    "R50": (25_549_352, 97_988_712, 217_319_080, 383_540_456),
    "R101": (44_541_480, 173_852_776, 387_934_888, 686_787_816),
    "R152": (60_185_128, 236_335_208, 528_451_240, 936_533_224),
    "R200": (64_666_152, 254_210_152, 568_633_000, 1_007_934_696),
}
SMALL_NAMES = ("ViT-{}/4", "R+ViT-{}/4", "BiT-R-{}")
SMALL = {
    "Mini": (1_531_880, 979_208, 1_286_152),
    "Micro": (322_408, 260_852, 352_756),
    "Nano": (87_560, 71_254, 127_558),
    "Pico": (28_712, 26_289, 56_917),
}
PARAMETERS = {
    **{f"ViT-{n}/{p}": c for n, row in VITS.items() for p, c in zip(PATCHES, row, strict=True)},
    **{f"BiT-{n}x{f}": c for n, row in RESNETS.items() for f, c in enumerate(row, 1)},
    **{f.format(n): c for n, row in SMALL.items() for f, c in zip(SMALL_NAMES, row, strict=True)},
    "R+ViT-Ti/16": 6_337_704,
    "R26+ViT-S/32": 36_431_912,
    "R50+ViT-B/32": 110_945_832,
    "R50+ViT-B/16": 98_659_112,
    "R50+ViT-L/32": 328_994_856,
    "R50+ViT-L/16": 316_483_624,
    "Mixer-S/32": 19_104_624,
    "Mixer-S/16": 18_528_264,
    "Mixer-B/32": 60_293_428,
    "Mixer-B/16": 59_880_472,
    "Mixer-L/32": 206_939_264,
    "Mixer-L/16": 208_196_168,
    "Mixer-H/14": 432_350_952,
}

# In the default tests, one of each kind of encoder, stem and ResNet; the others are slow.
QUICK = (
    "ViT-Ti/32", "ViT-S/14", "ViT-M/16", "ViT-B/16", "ViT-L/32", "ViT-So400m/14", "ViT-H/14",
    "ViT-g/14", "ViT-G/14", "R+ViT-Ti/16", "R50+ViT-B/16", "Mixer-S/32", "Mixer-B/16",
    "Mixer-L/16", "Mixer-H/14", "BiT-R50x1", "BiT-R101x3", "BiT-R152x2", "BiT-R200x4",
    "ViT-Mini/4", "R+ViT-Micro/4", "BiT-R-Nano",
)  # fmt: skip


@functools.cache
def count(name, num_classes=1000, **options):
    params = nnx.to_pure_dict(nnx.state(abstract(name, num_classes, **options)))
    return sum(math.prod(p.shape) for p in jax.tree.leaves(params))


def abstract(name, num_classes=3, **options):
    """Shapes of a model for 224 pixels, or 32 if it is for small images."""
    size = default_image_size(name)
    return nnx.eval_shape(
        lambda: vit_jax.create_model(name, num_classes=num_classes, image_size=size, **options)
    )


@pytest.mark.parametrize("name", ["ViT-Micro/4", "R+ViT-Micro/4", "Mixer-S/16"])
def test_models_have_the_same_parameters_where_jax_has_64_bits(name):
    def parameters():
        return nnx.to_pure_dict(nnx.state(vit_jax.create_model(name, num_classes=3)))

    usual = parameters()
    with jax.enable_x64(True):
        found = parameters()
    jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), found, usual)


def test_the_table_covers_every_image_model():
    assert set(PARAMETERS) == set(IMAGE_MODELS)
    assert {*IMAGE_MODELS} < {*vit_jax.list_models()}


def test_every_option_that_overrides_a_size_is_in_sizes():
    for family in IMAGE_FAMILIES.values():
        of_shape = {field.name for field in dataclasses.fields(next(iter(family.sizes.values())))}
        assert of_shape & {*family.options.model_fields} <= {*SIZES}


def test_a_model_of_every_family_is_counted():
    assert {family_of(name).name for name in QUICK} == {*IMAGE_FAMILIES}


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in IMAGE_MODELS]
)
def test_models_have_the_published_parameter_counts(name):
    assert count(name) == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "options", "millions"),
    [
        # arXiv:2010.11929, Table 1, without head but with the tanh layer. Its 307M for L is L/32.
        ("ViT-B/16", {"num_classes": 0, "representation_size": 768}, 86),
        ("ViT-L/32", {"num_classes": 0, "representation_size": 1024}, 307),
        ("ViT-H/14", {"num_classes": 0, "representation_size": 1280}, 632),
        # arXiv:2106.10270, Table 2, which counts the tanh layer and 1000 classes.
        ("R+ViT-Ti/16", {"representation_size": 192}, 6.4),
        ("R26+ViT-S/32", {"representation_size": 384}, 36.6),
        ("R50+ViT-L/32", {"representation_size": 1024}, 330.0),
        # arXiv:2105.01601, Table 1, which does not count the head.
        ("Mixer-S/32", {"num_classes": 0}, 19),
        ("Mixer-S/16", {"num_classes": 0}, 18),
        ("Mixer-B/32", {"num_classes": 0}, 60),
        ("Mixer-B/16", {"num_classes": 0}, 59),
        ("Mixer-L/32", {"num_classes": 0}, 206),
        ("Mixer-L/16", {"num_classes": 0}, 207),
        ("Mixer-H/14", {"num_classes": 0}, 431),
    ],
)
def test_counts_round_to_those_of_the_papers(name, options, millions):
    digits = 1 if isinstance(millions, float) else 0
    assert round(count(name, **options) / 1e6, digits) == millions


def test_names_of_any_patch_size_work_and_overrides_count():
    assert model_shape(model_options("ViT-S/4")).patch_size == 4
    halved = model_shape(model_options("ViT-B/32", width=384, mlp_dim=1536, num_heads=6))
    assert (halved.width, halved.depth, halved.mlp_dim, halved.num_heads) == (384, 12, 1536, 6)


MISTAKES = [
    ("ViT-Base16x", {}, ["unknown model 'ViT-Base16x'", "did you mean 'ViT-"]),
    ("ViT-B/0", {}, ["'ViT-B/"]),
    ("R50x1", {}, ["'BiT-R50x1'"]),
    ("R50+B/16", {}, ["'R50+ViT-B/16'"]),
    ("R26+ViT-S/8", {}, ["'R26+ViT-S/32'"]),
    ("Mixer-M/16", {}, ["'Mixer-"]),
    ("BiT-Mini", {}, ["'BiT-R-Mini'"]),
    ("vit_bass_patch16_224", {}, ["'ViT-B/16'"]),
    ("vit_base_patch16_siglip_224", {}, ["'ViT-B/16'"]),
    ("facebook/dinov2-small", {}, ["'ViT-S/14'"]),
    ("BiT-R50x1", {"representation": 1}, ["for a ResNet", "did you mean 'representation_size'?"]),
    ("Mixer-B/16", {"mlp_dim": 1}, ["unknown config key 'mlp_dim' for an MLP-Mixer",
                                    "did you mean 'token_mlp_dim'?"]),
    ("R50+ViT-B/16", {"poling": 1}, ["for a ViT", "did you mean 'pooling'?"]),
    ("ViT-B/16", {"imagesize": 1}, ["did you mean 'image_size'?"]),
    ("ViT-B/16", {"drop_path_rate": 1}, ["did you mean 'stochastic_depth'?"]),
    ("ViT-Ti/16", {"position_embedding": "relative", "position_placement": "every_layer"},
     ["position_placement every_layer with position_embedding relative", "learned_1d"]),
    ("ViT-Ti/16", {"position_embedding": "none", "position_placement": "shared"},
     ["position_placement shared with position_embedding none"]),
    ("ViT-Ti/16", {"class_token": False},
     ["pooling token with class_token False", "use pooling gap"]),
    ("R50+ViT-B/32", {"image_size": 240}, ["240x240", "stem and patches 32", "256x256"]),
    ("R+ViT-Ti/16", {"image_size": (224, 240)}, ["224x240", "stem and patches 32", "224x224"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "words"), MISTAKES)
def test_wrong_names_options_and_sizes_are_named_with_what_to_write_instead(name, options, words):
    with pytest.raises((ConfigError, ModelError)) as caught:
        vit_jax.create_model(name, **options)
    for word in words:
        assert word in str(caught.value)


def test_in_a_config_the_options_of_the_named_model_are_checked():
    data = {"name": "digits", "global_batch_size": 8, "image_size": 32, "train_split": "train"}
    base = {"data": data, "optimizer": {"learning_rate": 0.1}, "train_steps": 1}
    config = Config.from_mapping(base | {"model": {"name": "BiT-R50x1", "remat": "full"}})
    assert isinstance(config.model, ResNetConfig)
    with pytest.raises(ConfigError, match=r"key 'model\.dropout' for a ResNet"):
        Config.from_mapping(base | {"model": {"name": "BiT-R50x1", "dropout": 0.1}})
    with pytest.raises(ModelError, match="unknown model 'ViT-Q16'"):
        Config.from_mapping(base | {"model": {"name": "ViT-Q16"}})
    auto = base | {"model": {"name": "auto", "pooling": "gap"}, "init_from": "a.npz"}
    assert Config.from_mapping(auto).model.pooling == "gap"


@pytest.mark.parametrize(
    ("name", "units", "patch"),
    [
        ("R26+ViT-Ti/32", (2, 2, 2, 2), 1),
        ("R101+ViT-H/64", (3, 4, 23, 3), 2),
        ("R101+ViT-L/16", (3, 4, 26), 1),
    ],
)
def test_hybrids_of_any_size_are_parsed_from_their_names(name, units, patch):
    """The number after the slash is the stride between patches, in pixels."""
    shape = model_shape(model_options(name))
    assert (shape.stem.units, shape.patch_size) == (units, patch)
    assert shape.stride == int(name.rsplit("/")[-1])
    assert name not in list_models()


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        (
            "ViT-Ti/16",
            {"patch_embedding/kernel": 0, "class_token": 0, "norm/scale": 13,
             "encoder/blocks/mlp/expand/bias": (1, 12), "head/linear/bias": 13},
        ),
        (
            "R26+ViT-S/32",
            {"stem/stage1/blocks/conv1/kernel": 0, "encoder/blocks/norm/scale": None,
             "encoder/blocks/mlp_norm/scale": (1, 12), "head/linear/kernel": 13},
        ),
        (
            "BiT-R50x1",
            {"trunk/conv_root/kernel": 0, "trunk/stage1/first/conv1/kernel": 1,
             "trunk/stage1/blocks/conv1/kernel": (2, 3), "trunk/stage2/first/conv1/kernel": 4,
             "trunk/stage4/blocks/conv3/kernel": (15, 16), "norm/scale": 17},
        ),
        (
            "Mixer-S/32",
            {"patch_embedding/bias": 0, "blocks/token_mixing/expand/kernel": (1, 8),
             "norm/bias": 9, "head/linear/bias": 9},
        ),
    ],
)  # fmt: skip
def test_layers_are_numbered_in_the_order_of_the_forward_pass(name, layers):
    found = layer_indices(nnx.to_pure_dict(nnx.state(abstract(name))), model_options(name))
    for parameter, number in layers.items():
        if number is None:
            assert parameter not in found
        elif isinstance(number, int):
            assert found[parameter] == number
        else:
            first, last = number
            assert found[parameter].ravel().tolist() == list(range(first, last + 1))


@pytest.mark.parametrize(
    ("name", "ours", "side"),
    [
        ("vit_base_patch16_224", "ViT-B/16", 224),
        ("vit_tiny_patch16_384.augreg_in21k_ft_in1k", "ViT-Ti/16", 384),
        ("deit_small_patch16_224", "ViT-S/16", 224),
        ("google/vit-large-patch32-224-in21k", "ViT-L/32", 224),
        ("vit_b_16", "ViT-B/16", None),
        ("B/16", "ViT-B/16", None),
        ("vit-l/16", "ViT-L/16", None),
        ("ViT-B16", "ViT-B/16", None),
        ("vit_base_r50_s16_384", "R50+ViT-B/16", 384),
        ("mixer_b16_224", "Mixer-B/16", 224),
        ("resnetv2_101x3_bit", "BiT-R101x3", None),
        ("openai/clip-vit-base-patch32", "CLIP-ViT-B/32", None),
        ("google/siglip-base-patch16-224", "SigLIP-ViT-B/16", 224),
    ],
)
def test_names_of_other_projects_stand_for_models_of_the_same_sizes(name, ours, side):
    assert find_alias(name) == (ours, side)
    assert list_models(name) == [ours]
    assert model_options(name) == model_options(ours)
    assert default_image_size(name) == side or side is None


def test_a_name_of_timm_makes_the_model_at_its_image_size():
    model = nnx.eval_shape(lambda: vit_jax.create_model("vit_tiny_patch16_384", depth=1))
    assert model.image_size == (384, 384)
    assert find_alias("vit_base_patch14_dinov2") is None  # Other options than ViT-B/14.
