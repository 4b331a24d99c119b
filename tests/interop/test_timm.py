"""What timm's files do not say, and the kinds of blocks that timm has under other names."""

import json
from pathlib import Path

import numpy as np
import pytest
from golden.recipe import images
from interop.files import (
    DEPTH,
    HEADS,
    HIDDEN,
    WIDTH,
    assert_same,
    intermediates,
    logits,
    params,
    run_reference,
    tiny,
    to_timm,
    weights,
    write_safetensors,
)
from safetensors.numpy import load_file, save_file
from weight_files import random_loaded

from vit_jax.errors import WeightsError
from vit_jax.interop import timm
from vit_jax.interop.load import load
from vit_jax.interop.save import save
from vit_jax.interop.tensors import TensorFile

GATES = ("blocks.{}.mlp.fc1_g", "blocks.{}.mlp.fc1_x")


def packed_and_split(**options):
    """Returns the tiny model with SwiGLU, gate and value in one layer and in two."""
    tensors = to_timm(tiny(**options))
    shapes = {}
    for layer in range(DEPTH):
        for gate in GATES:
            name = gate.format(layer)
            shapes |= {f"{name}.weight": (HIDDEN, WIDTH), f"{name}.bias": (HIDDEN,)}
    split = {n: a for n, a in tensors.items() if ".mlp.fc1." not in n} | weights(shapes)
    packed = {n: a for n, a in split.items() if n not in shapes}
    for layer in range(DEPTH):
        for leaf in ("weight", "bias"):
            parts = [split[f"{gate.format(layer)}.{leaf}"] for gate in GATES]
            packed[f"blocks.{layer}.mlp.fc1.{leaf}"] = np.concatenate(parts)
    return packed, split


def as_dinov3(tensors):
    """Returns tensors of the tiny model as DINOv3 has them: rotations in place of the table."""
    kept = {n: a for n, a in tensors.items() if n != "pos_embed" and "qkv.bias" not in n}
    scales = {f"blocks.{layer}.gamma_{i}": (WIDTH,) for layer in range(DEPTH) for i in (1, 2)}
    return kept | weights(scales | {"reg_token": (1, 4, WIDTH)})


@pytest.mark.parametrize("rotary", [False, True])
def test_fused_and_split_swiglu_layers_are_equal(tmp_path, rotary):
    packed, split = packed_and_split()
    if rotary:
        packed, split = as_dinov3(packed), as_dinov3(split)
    options = {"num_heads": HEADS, "num_classes": 0, "image_size": 16}
    one = load(write_safetensors(tmp_path / "one.safetensors", packed), **options)
    two = load(write_safetensors(tmp_path / "two.safetensors", split), **options)
    assert one.options.mlp == "swiglu"
    assert one.options.position_embedding == ("rope_2d" if rotary else "learned_1d")
    assert one.options.num_registers == (4 if rotary else 0)
    assert one.options.layer_scale == (1e-5 if rotary else None)
    assert_same(one, two)
    x = images(16)
    np.testing.assert_array_equal(logits(one.model, x), logits(two.model, x))
    found = params(one.model)
    for ours, theirs in (("gate", GATES[0]), ("value", GATES[1])):
        kernel = found[f"encoder/blocks/mlp/{ours}/kernel"][1]
        np.testing.assert_array_equal(kernel, split[f"{theirs.format(1)}.weight"].T)


def described(*, width, depth, hidden, patch=16, rotary=False, gated=False, config=(), **given):
    """Returns the options read from the shapes of a timm model, without any tensors."""
    shapes = {
        "patch_embed.proj.weight": (width, 3, patch, patch),
        "cls_token": (1, 1, width),
        "norm.weight": (width,),
        "blocks.0.mlp.fc2.weight": (width, hidden),
        f"blocks.0.mlp.fc1{'_g' if gated else ''}.weight": (hidden, width),
        **{f"blocks.{i}.attn.qkv.weight": (3 * width, width) for i in range(depth)},
    }
    shapes |= {"reg_token": (1, 4, width)} if rotary else {"pos_embed": (1, 197, width)}
    configs = {"config.json": dict(config)}
    file = TensorFile(Path("model.safetensors"), shapes, 0, lambda name: np.zeros(0), configs)
    return timm.describe(file, given).options


@pytest.mark.parametrize(
    ("sizes", "name", "heads"),
    [
        # DINOv3 of timm: S, S+, H+, 7B.
        ({"width": 384, "depth": 12, "hidden": 1536, "rotary": True}, "ViT-S/16", 6),
        ({"width": 384, "depth": 12, "hidden": 1536, "rotary": True, "gated": True}, "ViT-S/16", 6),
        (
            {"width": 1280, "depth": 32, "hidden": 5120, "rotary": True, "gated": True},
            "ViT-H/16", 20,
        ),
        (
            {"width": 4096, "depth": 40, "hidden": 8192, "rotary": True, "gated": True},
            "ViT-G/16", 32,
        ),
        # H/16; DINOv2-g; SigLIP-g.
        ({"width": 1280, "depth": 32, "hidden": 5120}, "ViT-H/16", 16),
        ({"width": 1536, "depth": 40, "hidden": 4096, "patch": 14, "gated": True}, "ViT-G/14", 24),
        ({"width": 1536, "depth": 40, "hidden": 6144}, "ViT-G/16", 16),
    ],
)  # fmt: skip
def test_heads_and_hidden_features_of_the_published_models(sizes, name, heads):
    from vit_jax.models.registry import model_options, model_shape
    from vit_jax.models.vit_options import ViTShape, mlp_hidden

    options = model_options(**described(**sizes))
    shape = model_shape(options)
    assert isinstance(shape, ViTShape)
    assert options.name == name
    assert (shape.width, shape.depth, shape.num_heads) == (sizes["width"], sizes["depth"], heads)
    assert mlp_hidden(shape, options) == sizes["hidden"]
    assert described(**sizes, num_heads=2)["num_heads"] == 2


SMALL = {"width": 384, "depth": 12, "hidden": 1536}


def test_config_json_determines_pooling_and_activation():
    assert described(**SMALL)["pooling"] == "token"
    assert described(**SMALL)["class_token"] is None
    assert described(**SMALL, rotary=True)["pooling"] == "gap"
    averaged = described(**SMALL, config={"global_pool": "avg"})
    assert (averaged["pooling"], averaged["class_token"]) == ("gap", True)
    rotary = described(**SMALL, rotary=True, config={"global_pool": "token"})
    assert (rotary["pooling"], rotary["class_token"]) == ("token", None)
    with pytest.raises(WeightsError, match="pooled by 'avgmax'; expected one of token, avg, map"):
        described(**SMALL, config={"global_pool": "avgmax"})

    def is_tanh(**config):
        return described(**SMALL, config=config)["gelu_approximate"]

    assert is_tanh(model_args={"act_layer": "gelu_tanh"})
    assert not is_tanh(model_args={"act_layer": "gelu"})
    assert is_tanh(architecture="vit_so400m_patch16_siglip_384")
    assert is_tanh(architecture="vit_large_patch16_siglip_gap_512")
    assert not is_tanh(architecture="vit_so400m_patch14_siglip_384")
    assert not is_tanh(architecture="vit_base_patch16_224")
    assert not is_tanh()


def test_config_json_beside_a_single_file_is_read(tmp_path):
    path = write_safetensors(tmp_path / "model.safetensors", to_timm(tiny()))
    arguments = {"num_heads": 4, "img_size": [8, 32], "patch_size": 4}
    (tmp_path / "config.json").write_text(json.dumps({"model_args": arguments}))
    loaded = load(path)
    assert loaded.options.num_heads == 4
    assert loaded.image_size == (8, 32)
    assert load(path, num_heads=HEADS).options.num_heads == HEADS


def test_both_heads_of_a_deit_are_read(tmp_path):
    """DeiT's table has a vector for its second token, which is added to the token."""
    tensors = to_timm(tiny())
    table = tensors["pos_embed"]
    extra = {
        "dist_token": (1, 1, WIDTH),
        "head_dist.weight": tensors["head.weight"].shape,
        "head_dist.bias": tensors["head.bias"].shape,
        "pos_embed": (1, table.shape[1] + 1, WIDTH),
    }
    tensors |= weights(extra)
    loaded = load(write_safetensors(tmp_path / "m.safetensors", tensors), num_heads=HEADS)
    options = loaded.options
    assert (options.num_registers, options.register_head, loaded.image_size) == (1, True, (16, 16))
    x = images(16)
    found = intermediates(loaded.model, x, "embedded", "encoded")
    for index, token in enumerate(("cls_token", "dist_token")):
        want = (tensors[token] + tensors["pos_embed"][:, [index]])[0, 0]
        np.testing.assert_allclose(found["embedded"][0, index], want, rtol=1e-6)
    found_table = loaded.model.position_embedding.table[0, 1:]
    np.testing.assert_array_equal(found_table, tensors["pos_embed"][0, 2:])
    heads = [
        found["encoded"][:, index] @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]
        for index, name in enumerate(("head", "head_dist"))
    ]
    np.testing.assert_allclose(logits(loaded.model, x), np.mean(heads, axis=0), atol=1e-5)
    larger = load(tmp_path / "m.safetensors", num_heads=HEADS, image_size=32, num_classes=7)
    assert larger.model.position_embedding.table.shape == (1, 65, WIDTH)
    assert not larger.options.register_head


_SAVE = """
import sys, numpy as np
from experiments.speed.import_timm import import_timm
timm = import_timm()
import torch
from safetensors.torch import save_file
name, folder, size, heads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
model = timm.create_model(name, num_classes=5, img_size=size).eval()
generator = torch.Generator().manual_seed(0)
with torch.no_grad():
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        wide = parameter.ndim == 2 and parameter.shape[1] > 1
        parameter.copy_(noise / parameter.shape[1] ** 0.5 if wide else 0.1 * noise + (
            parameter.mean().round() if parameter.ndim == 1 else 0))
    images = torch.from_numpy(np.load(f"{folder}/images.npy")).permute(0, 3, 1, 2)
    np.save(f"{folder}/logits.npy", model(images).numpy())
assert model.blocks[0].attn.num_heads == heads
save_file({n: a.contiguous() for n, a in model.state_dict().items()}, f"{folder}/m.safetensors")
"""


@pytest.mark.interop
@pytest.mark.parametrize(
    ("name", "size", "heads", "options"),
    [
        ("vit_small_plus_patch16_dinov3", 64, 6, {"mlp": "swiglu", "mlp_dim": 1536}),
        ("vit_tiny_patch16_dinov3_qkvb", 64, 3, {"qkv_bias": True, "num_registers": 4}),
        ("vit_base_patch16_siglip_224", 64, 12, {"pooling": "map"}),
        ("vit_base_patch16_siglip_gap_224", 64, 12, {"pooling": "gap", "class_token": None}),
        ("deit3_small_patch16_224", 64, 6, {"pooling": "token", "layer_scale": 1e-5}),
        ("deit_tiny_distilled_patch16_224", 64, 3, {"register_head": True, "num_registers": 1}),
    ],
)
def test_logits_equal_those_of_timm(tmp_path, name, size, heads, options):
    x = images(size)
    np.save(tmp_path / "images.npy", x)
    run_reference("timm", _SAVE, name, tmp_path, size, heads)
    loaded = load(tmp_path / "m.safetensors", image_size=size)
    for key, value in options.items():
        assert getattr(loaded.options, key) == value
    want = np.load(tmp_path / "logits.npy")
    assert np.abs(want).max() > 0.1
    assert np.abs(logits(loaded.model, x) - want).max() <= 1e-4 * max(1, np.abs(want).max())


def changed(folder, change=lambda tensors: tensors, **config):
    """Writes a random model as timm's files, with other tensors and keys of config.json."""
    save(random_loaded(), folder, "timm")
    content = json.loads((folder / "config.json").read_text())
    arguments = content["model_args"] | config.pop("model_args", {})
    (folder / "config.json").write_text(json.dumps(content | config | {"model_args": arguments}))
    tensors = change(load_file(folder / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors")
    return load(folder)


@pytest.mark.parametrize("prefix", ["module.", "visual.trunk.", "module._orig_mod."])
def test_a_prefix_of_all_tensors_and_keys_that_change_nothing_are_left_out(tmp_path, prefix):
    found = changed(
        tmp_path / "it",
        lambda tensors: {prefix + n: a for n, a in tensors.items()},
        model_args={"qk_norm": False, "proj_bias": True, "dynamic_img_size": True},
    )
    assert_same(found, random_loaded())


def test_the_norm_after_the_mean_is_read(tmp_path):
    def renamed(tensors):
        return {f"fc_{n}" if n.startswith("norm.") else n: a for n, a in tensors.items()}

    pooling = {"global_pool": "avg"}
    found = changed(tmp_path / "it", renamed, **pooling, model_args=pooling)
    assert found.options.norm_after_pooling
    plain = params(random_loaded().model)
    np.testing.assert_array_equal(params(found.model)["norm/scale"], plain["norm/scale"])


def test_the_image_tower_of_clip_is_read(tmp_path):
    def as_clip(tensors):
        width = tensors["norm.weight"].shape
        del tensors["patch_embed.proj.bias"]
        twos, zeros = np.full(width, 2, np.float32), np.zeros(width, np.float32)
        return tensors | {"norm_pre.weight": twos, "norm_pre.bias": zeros}

    config = {
        "architecture": "vit_tiny_patch16_clip_224",
        "model_args": {"act_layer": "quick_gelu"},
    }
    found = changed(tmp_path / "it", as_clip, **config)
    assert (found.options.mlp, found.options.norm_epsilon) == ("quick_gelu", 1e-5)
    loaded = params(found.model)
    assert (loaded["embedding_norm/scale"] == 2).all()
    assert not loaded["patch_embedding/bias"].any()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_args": {"act_layer": "relu"}}, "act_layer 'relu'; expected one of gelu"),
        ({"model_args": {"pool_include_prefix": True}}, "model_args.pool_include_prefix = True"),
        ({"new_key": 1}, "with new_key"),
        ({"global_pool": "avg", "model_args": {"global_pool": "token"}}, "two values of global_po"),
        ({"mean": [0.5] * 3}, r"mean at the top, as in an old timm; .*; move them"),
        ({"architecture": "vit_base_patch16_rope_224"}, "unknown kind of position embedding"),
        (
            {"change": lambda t: t | {f"model.{n}": a * 0.5 for n, a in t.items()}},
            r"prefix 'model\.' and others",
        ),
    ],
)
def test_what_may_change_the_model_is_refused_by_name(tmp_path, config, said):
    with pytest.raises(WeightsError, match=said):
        changed(tmp_path / "it", **config)


def test_what_no_config_json_says_is_told(tmp_path):
    save(random_loaded(), tmp_path / "it", "timm")
    assert "this is assumed" not in load(tmp_path / "it").report.line()
    (tmp_path / "it" / "config.json").unlink()
    said = load(tmp_path / "it", num_heads=2).report.line()
    for part in ("assumed: images in [-1, 1]", "0.875", "pooling 'token'", "the exact GELU"):
        assert part in said
