import math
import re

import jax
import pytest
from flax import nnx

import vit_jax
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, ModelError
from vit_jax.models.aliases import find_alias
from vit_jax.models.family import ImageModel
from vit_jax.models.image_families import IMAGE_FAMILIES
from vit_jax.models.registry import (
    build_model,
    default_image_size,
    family_of,
    layer_indices,
    list_models,
    model_options,
    model_shape,
)
from vit_jax.models.resnet import ResNetConfig
from vit_jax.named_tree import leaf_names

IMAGE_MODELS = [name for family in IMAGE_FAMILIES for name in family.sizes]

# Parameters with a 1000-class linear head at 224 px, small models at 32 px. B/16, L/16, H/14, Ti/16
# as published (timm); the rest follow from the sizes of arXiv:2010.11929, Table 1,
# arXiv:2106.04560, Table 2 and arXiv:1912.11370.
VITS = {  # With patches of 32, 16, 14 and 8 pixels.
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
BITS = {  # Of width 1, 2, 3 and 4.
    "R26": (15_987_496, 59_785_832, 131_396_008, 230_818_024),
    "R50": (25_549_352, 97_988_712, 217_319_080, 383_540_456),
    "R101": (44_541_480, 173_852_776, 387_934_888, 686_787_816),
    "R152": (60_185_128, 236_335_208, 528_451_240, 936_533_224),
    "R200": (64_666_152, 254_210_152, 568_633_000, 1_007_934_696),
}
SMALL_MODELS = {  # ViT, hybrid and ResNet.
    "Mini": (1_531_880, 979_208, 1_286_152),
    "Micro": (322_408, 260_852, 352_756),
    "Nano": (87_560, 71_254, 127_558),
    "Pico": (28_712, 26_289, 56_917),
}
PARAMETERS = {
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
for size, counts in VITS.items():
    PARAMETERS |= {f"ViT-{size}/{p}": n for p, n in zip((32, 16, 14, 8), counts, strict=True)}
for depth, counts in BITS.items():
    PARAMETERS |= {f"BiT-{depth}x{width}": n for width, n in enumerate(counts, 1)}
for size, counts in SMALL_MODELS.items():
    names = (f"ViT-{size}/4", f"R+ViT-{size}/4", f"BiT-R-{size}")
    PARAMETERS |= dict(zip(names, counts, strict=True))

# Sizes again, apart from the registry's: width, depth, MLP dim of the encoders ...
ENCODERS = {
    "Ti": (192, 12, 768),
    "S": (384, 12, 1536),
    "M": (512, 12, 2048),
    "B": (768, 12, 3072),
    "L": (1024, 24, 4096),
    "So400m": (1152, 27, 4304),
    "H": (1280, 32, 5120),
    "g": (1408, 40, 6144),
    "G": (1664, 48, 8192),
}
MIXERS = {  # Depth and hidden features of the MLPs over tokens and channels.
    "S": (512, 8, 256, 2048),
    "B": (768, 12, 384, 3072),
    "L": (1024, 24, 512, 4096),
    "H": (1280, 32, 640, 5120),
}
# ... units of the stages of a ResNet by its depth ...
UNITS = {
    "26": (2, 2, 2, 2),
    "50": (3, 4, 6, 3),
    "101": (3, 4, 23, 3),
    "152": (3, 8, 36, 3),
    "200": (3, 24, 36, 3),
}
# ... and hybrids: encoder, units of the stem, its channels, patch size on its map, patches.
HYBRIDS = {
    "R+ViT-Ti/16": ("Ti", (), 64, 8, 49),
    "R26+ViT-S/32": ("S", UNITS["26"], 2048, 1, 49),
    "R50+ViT-B/32": ("B", UNITS["50"], 2048, 1, 49),
    "R50+ViT-B/16": ("B", (3, 4, 9), 1024, 1, 196),
    "R50+ViT-L/32": ("L", UNITS["50"], 2048, 1, 49),
    "R50+ViT-L/16": ("L", (3, 4, 9), 1024, 1, 196),
}


# Models for small images: encoder of the ViT and of the hybrid, units of the ResNet, root's width.
SMALL = {
    "Mini": ((128, 7, 512), (128, 3, 512), (1, 1, 2), 32),
    "Micro": ((64, 5, 256), (64, 3, 256), (1, 2, 3), 12),
    "Nano": ((32, 4, 128), (32, 2, 128), (1, 2, 2), 6),
    "Pico": ((16, 3, 64), (16, 1, 128), (1, 2, 2), 3),
}

# In the default tests, one of each kind of encoder, stem and ResNet; the others are slow.
QUICK = re.compile(
    r"ViT-(Ti/32|S/14|M/16|B/16|L/32|So400m/14|H/14|g/14|G/14|Mini/4)|R\+ViT-(Ti/16|Micro/4)|"
    r"R50\+ViT-B/16|Mixer-(S/32|B/16|L/16|H/14)|BiT-R(50x1|101x3|152x2|200x4|-Nano)"
)


def abstract_model(name, image_size=224, num_classes=3, **options):
    """A model of shapes alone, and its parameters as nested dicts."""
    config = model_options(name, **options)
    sizes = {"num_classes": num_classes, "image_size": image_size, "key": jax.random.key(0)}
    model = nnx.eval_shape(lambda: build_model(config, **sizes))
    return model, nnx.to_pure_dict(nnx.state(model))


def count(name, **options):
    size = 32 if any(small in name for small in SMALL) else 224
    _, params = abstract_model(name, size, 1000, **options)
    return sum(math.prod(p.shape) for p in jax.tree.leaves(params))


def block_by_hand(d, mlp):
    """Queries, keys, values and output; the MLP; two norms."""
    return 4 * (d * d + d) + (d * mlp + mlp) + (mlp * d + d) + 4 * d


def vit_by_hand(d, depth, mlp, *, patch, channels, patches):
    """Patch embedding, class token, positions, blocks, norm, head."""
    embedding = (patch * patch * channels * d + d) + d + (patches + 1) * d
    return embedding + depth * block_by_hand(d, mlp) + 2 * d + (d * 1000 + 1000)


def resnet_by_hand(version, units, width, root=7):
    """Kernels without bias, and scale and bias of norms, up to the last unit.

    A unit has 1x1, 3x3 and 1x1 kernels, a stage's first unit one more of 1x1 to project. BiT (2)
    normalises before each of the three, the stem of hybrids (1) after every kernel.
    """
    total, inputs = root * root * 3 * width, width
    total += 2 * width if version == 1 else 0
    for stage, number in enumerate(units):
        middle = width * 2**stage
        outputs = 4 * middle
        for unit in range(number):
            total += inputs * middle + 3 * 3 * middle * middle + middle * outputs
            total += 2 * (middle + middle + (outputs if version == 1 else inputs))
            if unit == 0:
                total += inputs * outputs + (2 * outputs if version == 1 else 0)
            inputs = outputs
    return total


def by_hand(name):
    family, _, size = name.partition("/")[0].rpartition("-")
    if size in SMALL:
        vit, hybrid, units, root_width = SMALL[size]
        if family == "ViT":
            return vit_by_hand(*vit, patch=4, channels=3, patches=64)
        if family == "R+ViT":
            stem = resnet_by_hand(1, (1, 1), root_width, root=3)
            return stem + vit_by_hand(*hybrid, patch=2, channels=8 * root_width, patches=64)
        head = 16 * root_width
        return resnet_by_hand(2, units, root_width, root=3) + 2 * head + head * 1000 + 1000
    if name in HYBRIDS:
        encoder, units, channels, patch, patches = HYBRIDS[name]
        sizes = {"patch": patch, "channels": channels, "patches": patches}
        return resnet_by_hand(1, units, 64) + vit_by_hand(*ENCODERS[encoder], **sizes)
    if name.startswith("Mixer-"):
        size, patch = name.removeprefix("Mixer-").split("/")
        d, depth, token_mlp, channel_mlp = MIXERS[size]
        n = (224 // int(patch)) ** 2
        mlps = 2 * n * token_mlp + token_mlp + n + 2 * d * channel_mlp + channel_mlp + d
        embedding = int(patch) ** 2 * 3 * d + d
        return embedding + depth * (mlps + 4 * d) + 2 * d + d * 1000 + 1000
    if name.startswith("BiT-R"):
        depth, factor = name.removeprefix("BiT-R").split("x")
        channels = 2048 * int(factor)
        head = 2 * channels + channels * 1000 + 1000
        return resnet_by_hand(2, UNITS[depth], 64 * int(factor)) + head
    encoder, patch = name.removeprefix("ViT-").split("/")
    sizes = {"patch": int(patch), "channels": 3, "patches": (224 // int(patch)) ** 2}
    return vit_by_hand(*ENCODERS[encoder], **sizes)


def test_the_table_covers_every_image_model():
    assert set(PARAMETERS) == set(IMAGE_MODELS)
    assert set(IMAGE_MODELS) < set(vit_jax.list_models())


@pytest.mark.parametrize(
    "name",
    [n if QUICK.fullmatch(n) else pytest.param(n, marks=pytest.mark.slow) for n in IMAGE_MODELS],
)
def test_models_have_the_published_parameter_counts(name):
    assert count(name) == PARAMETERS[name] == by_hand(name)


@pytest.mark.parametrize(("name", "millions"), [("B/16", 86), ("L/32", 307), ("H/14", 632)])
def test_counts_without_the_head_round_to_the_papers_millions(name, millions):
    """307M for L in Table 1 is L/32. L/16 has 304.4M, because its patch embedding is smaller."""
    width = {"B/16": 768, "L/32": 1024, "H/14": 1280}[name]
    counted = count(f"ViT-{name}", representation_size=width) - 1000 * (width + 1)
    assert round(counted / 1e6) == millions


@pytest.mark.parametrize(
    ("name", "width", "millions"),
    [("R+ViT-Ti/16", 192, 6.4), ("R26+ViT-S/32", 384, 36.6), ("R50+ViT-L/32", 1024, 330.0)],
)
def test_hybrids_have_the_parameter_counts_of_augreg(name, width, millions):
    """arXiv:2106.10270, Table 2, which counts the tanh layer and 1000 classes."""
    assert round(count(name, representation_size=width) / 1e6, 1) == millions


def test_the_stem_of_the_smallest_hybrid_is_the_root_and_patches_of_8():
    model, params = abstract_model("R+ViT-Ti/16")
    assert model.patch_embedding.kernel.shape == (8, 8, 64, 192)
    assert model.grid == (7, 7)
    assert set(params["stem"]) == {"conv_root", "norm_root"}


def test_names_of_any_patch_size_work_and_overrides_count():
    assert model_shape(model_options("ViT-S/4")).patch_size == 4
    halved = model_shape(model_options("ViT-B/32", width=384, mlp_dim=1536, num_heads=6))
    assert (halved.width, halved.depth, halved.mlp_dim, halved.num_heads) == (384, 12, 1536, 6)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ViT-Base16x", "'ViT-"),
        ("ViT-B/0", "'ViT-B/"),
        ("BiT-R152x5", "'BiT-R152x"),
        ("R50+B/16", "'R50+ViT-B/16'"),
        ("R26+ViT-S/8", "'R26+ViT-S/32'"),
        ("vit_bass_patch16_224", "'ViT-B/16'"),
        ("deit3_base_patch16_224", "'ViT-B/16'"),
        ("facebook/dinov2-small", "'ViT-S/14'"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(name, hint):
    with pytest.raises(ModelError) as caught:
        vit_jax.create_model(name)
    assert caught.value.got == f"unknown model {name!r}"
    assert "did you mean '" in caught.value.fix
    assert hint in caught.value.fix


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "ViT-Ti/16",
            {"position_embedding": "relative", "position_placement": "every_layer"},
            ["position_placement every_layer with position_embedding relative", "learned_1d"],
        ),
        (
            "ViT-Ti/16",
            {"position_embedding": "none", "position_placement": "shared"},
            ["position_placement shared with position_embedding none"],
        ),
        (
            "ViT-Ti/16",
            {"class_token": False},
            ["class_token False", "use pooling gap"],
        ),
        ("R50+ViT-B/32", {"image_size": 240}, ["240x240", "stem and patches 32", "256x256"]),
        ("R+ViT-Ti/16", {"image_size": (224, 240)}, ["224x240", "stem and patches 32", "224x224"]),
    ],
)
def test_unsupported_options_and_sizes_are_named(name, options, words):
    with pytest.raises(ModelError) as caught:
        vit_jax.create_model(name, **options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "option", "family", "hint"),
    [
        ("BiT-R50x1", "representation", "a ResNet", "representation_size"),
        ("Mixer-B/16", "mlp_dim", "an MLP-Mixer", "token_mlp_dim"),
        ("R50+ViT-B/16", "poling", "a ViT", "pooling"),
    ],
)
def test_an_option_of_another_family_is_an_error_that_names_the_nearest(name, option, family, hint):
    with pytest.raises(ConfigError) as caught:
        model_options(name, **{option: 1})
    assert caught.value.got == f"unknown config key '{option}' for {family}"
    assert caught.value.fix == f"did you mean '{hint}'?"
    assert caught.value.key == option


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
        ("R26+ViT-B/48", (2, 2, 4), 3),
    ],
)
def test_hybrids_of_any_size_are_parsed_from_their_names(name, units, patch):
    """The number after the slash is the stride between patches, in pixels."""
    shape = model_shape(model_options(name))
    assert (shape.stem.units, shape.patch_size) == (units, patch)
    assert shape.stride == int(name.rsplit("/")[-1])
    assert name not in list_models()


def test_every_image_family_has_a_valid_entry_in_every_field():
    for family in IMAGE_FAMILIES:
        name = next(iter(family.sizes))
        model, params = abstract_model(name)
        assert isinstance(model, ImageModel)
        assert (model.image_size, model.head.linear.out_features) == ((224, 224), 3)
        assert family_of(name) is family
        assert all(len(row) == 3 for row in family.describe(model_options(name), model))
        for leaves in (family.layer_order, [pattern for pattern, _ in family.sharding_rules]):
            names = leaf_names(params)
            if not leaves:  # A head alone.
                assert all(name.startswith("head/") for name in names)
                continue
            assert any(re.fullmatch(pattern, n) for pattern in leaves for n in names)


@pytest.mark.parametrize(
    ("name", "options", "layers"),
    [
        (
            "ViT-Ti/16",
            {"position_placement": "every_layer"},
            {"patch_embedding/kernel": 0, "class_token": 0, "norm/scale": 13,
             "encoder/blocks/position_embedding/table": (1, 12),
             "encoder/blocks/mlp/expand/bias": (1, 12), "head/linear/bias": 13},
        ),
        (
            "R26+ViT-S/32",
            {"num_registers": 1, "pooling": "map", "class_token": True},
            {"stem/stage1/blocks/conv1/kernel": 0, "stem/conv_root/kernel": 0,
             "patch_embedding/kernel": 0, "position_embedding/table": 0, "registers": 0,
             "encoder/blocks/norm/scale": None, "encoder/blocks/mlp_norm/scale": (1, 12),
             "norm/scale": 13, "attention_pooling/query/kernel": 13, "head/linear/kernel": 13},
        ),
        (
            "BiT-R50x1",
            {},
            {"trunk/conv_root/kernel": 0, "trunk/stage1/first/conv_proj/kernel": 1,
             "trunk/stage1/blocks/conv1/kernel": (2, 3), "trunk/stage2/first/norm1/scale": 4,
             "trunk/stage2/blocks/norm1/scale": (5, 7), "trunk/stage3/first/conv3/kernel": 8,
             "trunk/stage3/blocks/norm2/bias": (9, 13), "trunk/stage4/first/conv2/kernel": 14,
             "trunk/stage4/blocks/conv3/kernel": (15, 16), "norm/scale": 17,
             "head/linear/kernel": 17},
        ),
        (
            "Mixer-S/32",
            {},
            {"patch_embedding/bias": 0, "blocks/token_mixing/expand/kernel": (1, 8),
             "norm/bias": 9, "head/linear/bias": 9},
        ),
    ],
)  # fmt: skip
def test_layers_are_numbered_in_the_order_of_the_forward_pass(name, options, layers):
    found = layer_indices(abstract_model(name, **options)[1])
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


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("drop_path_rate", "stochastic_depth"),
        ("nclasses", "num_classes"),
    ],
)
def test_an_unknown_argument_of_create_model_names_the_one_that_is_meant(argument, hint):
    with pytest.raises(ConfigError) as caught:
        vit_jax.create_model("ViT-B/16", **{argument: 1})
    assert caught.value.fix == f"did you mean '{hint}'?"
