"""Every format against the logits that its own project's code computes."""

import pytest
from golden.recipe import images
from interop.files import GOLDEN, assert_close_to_golden, golden, logits, write_golden

from vit_jax.interop.load import load
from vit_jax.interop.report import Status
from vit_jax.models.registry import model_options

# What is to be read off each file; all other options are the defaults.
OPTIONS = {
    "bit_r50x1_128": {"name": "BiT-R50x1"},
    "bv_s16_sincos_gap": {
        "name": "ViT-S/16", "pooling": "gap", "position_embedding": "sincos_2d",
    },
    "bv_ti16_map": {"name": "ViT-Ti/16", "pooling": "map"},
    "hf_ti16_224": {"name": "ViT-Ti/16", "gelu_approximate": False, "norm_epsilon": 1e-12},
    "r_ti16_224": {"name": "R+ViT-Ti/16"},
    "timm_dinov2_s14_reg4_224": {
        "name": "ViT-S/14", "gelu_approximate": False, "num_registers": 4, "layer_scale": 1e-5,
    },
    "timm_dinov3_s16_256": {
        "name": "ViT-S/16", "gelu_approximate": False, "num_registers": 4, "layer_scale": 1e-5,
        "pooling": "gap", "class_token": True, "norm_epsilon": 1e-5, "qkv_bias": False,
        "position_embedding": "rope_2d",
    },
    "timm_ti16_224": {"name": "ViT-Ti/16", "gelu_approximate": False},
    "vit_ti16_224": {"name": "ViT-Ti/16"},
    "vit_ti16_224_to_384": {"name": "ViT-Ti/16"},
}  # fmt: skip
# Files that do not say the image size, and the one that is to be resampled.
SIZE_IS_GIVEN = ("bit_r50x1_128", "bv_s16_sincos_gap", "timm_dinov3_s16_256", "vit_ti16_224_to_384")
# Of every format, the quicker files are in the default tests.
SLOW = ("bv_s16_sincos_gap", "timm_dinov2_s14_reg4_224", "vit_ti16_224_to_384")
# DINOv2's class token has no position in the file: ours is a row of zeros.
RESIZED = {
    "timm_dinov2_s14_reg4_224": ["position_embedding/table"],
    "vit_ti16_224_to_384": ["position_embedding/table"],
}


def test_every_golden_is_tested():
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(OPTIONS)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in OPTIONS]
)
def test_logits_equal_those_of_the_reference(name, tmp_path):
    about, _ = golden(name)
    size = about["image_size"]
    path = write_golden(name, tmp_path)
    loaded = load(path, image_size=size if name in SIZE_IS_GIVEN else None)
    assert loaded.report.format == about["format"]
    assert loaded.options == model_options(**OPTIONS[name])
    assert loaded.image_size == (size, size)
    assert loaded.num_classes == about["num_classes"]
    assert {status for status, _, _ in loaded.report.entries} <= {Status.TAKEN, Status.RESIZED}
    assert loaded.report.names(Status.RESIZED) == RESIZED.get(name, [])
    assert_close_to_golden(logits(loaded.model, images(size)), name)
