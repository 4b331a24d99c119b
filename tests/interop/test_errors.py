"""Error messages of loading weights: what is loaded, kind, words that must be in the message."""

import json

import numpy as np
import pytest
from interop.files import (
    HEADS,
    WIDTH,
    by_kind,
    renamed,
    tiny,
    to_timm,
    to_transformers,
    write_golden,
    write_npz,
    write_safetensors,
    write_transformers,
)
from weight_files import random_loaded, random_weights

from vit_jax.errors import MemoryLimitError, ModelError, UserError, WeightsError
from vit_jax.interop.load import load
from vit_jax.interop.save import save


def check(call, kind, words):
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert "\n" not in str(error)
    assert min(len(part) for part in (error.got, error.expected, error.fix)) > 5
    for text in words:
        assert text in str(error)


def npz(tensors):
    return lambda folder: write_npz(folder / "w.npz", tensors)


def head_bias(values, dtype=np.float32):
    return npz(tiny() | {"head/bias": np.array(values).astype(dtype)})


def timm(change=lambda tensors: tensors):
    return lambda folder: write_safetensors(folder / "w.safetensors", change(to_timm(tiny())))


def transformers(**config):
    return lambda folder: write_transformers(folder, to_transformers(tiny()), **config)


def ours(name="ViT-Ti/8", **options):
    def make(folder):
        random_weights(folder / "model", name, **options)
        return folder / "model"

    return make


def file(name, text):
    def make(folder):
        (folder / name).write_text(text)
        return folder / name

    return make


def index(**files):
    """An index of shards, of which a.safetensors exists and holds x."""

    def make(folder):
        write_safetensors(folder / "a.safetensors", {"x": np.zeros(3, np.float32)})
        return file("model.safetensors.index.json", json.dumps({"weight_map": files}))(folder)

    return make


def two_files(folder):
    for name in ("a.npz", "b.npz"):
        write_npz(folder / name, tiny())
    return folder


def config_without(text):
    def make(folder):
        path = transformers()(folder) / "config.json"
        path.write_text(path.read_text().replace(text, "", 1))
        return folder

    return make


def config_that_is(text):
    def make(folder):
        folder = transformers()(folder)
        (folder / "config.json").write_text(text)
        return folder

    return make


def video(tensors):
    kernel = tensors["patch_embed.proj.weight"][:, :, None]
    return tensors | {"patch_embed.proj.weight": kernel}


def short_qkv(tensors):
    return tensors | {"blocks.1.attn.qkv.weight": tensors["blocks.1.attn.qkv.weight"][:-1]}


def without(part, tensors=None):
    return {n: a for n, a in (tensors or tiny()).items() if part not in n}


NAN = ("tensor 'head/bias'", "NaN or infinite")
UNKNOWN = {n: np.zeros(2, np.float32) for n in ("MixerBlock_0/token_mixing/kernel", "a", "b", "c")}
NORM = "Transformer/encoder_norm/scale"
HYBRID = {"conv_root/kernel": (7, 7, 3, 8), "embedding/kernel": (4, 4, 8, WIDTH)}
ROOT = {"resnet/root_block/standardized_conv2d/kernel": np.zeros((7, 7, 3, 8), np.float32)}
TWO_HEADS = {"num_heads": HEADS}
MIXER = {"width": 8, "depth": 1, "token_mlp_dim": 5, "channel_mlp_dim": 12, "image_size": (16, 24)}
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123456\n"
FILES = [
    (head_bias([0, np.nan, 0]), {}, NAN),
    (head_bias([0, -np.inf, 0]), {}, NAN),
    (head_bias([0, 1e39, 0], np.float64), {}, NAN),
    (head_bias([0, 0, 0], "int8"), {}, ("tensor 'head/bias', holds int8", "floating-point")),
    (head_bias([0, 0, 0], "<U3"), {}, ("holds strings",)),
    (index(x="a.safetensors", y="b.safetensors"), {}, ("b.safetensors cannot be read: ",)),
    (index(x="a.safetensors", y="a.safetensors"), {}, ("index.json cannot be read: 'y'",)),
    (file("model.safetensors.index.json", "{"), {}, ("index.json is damaged: ",)),
    *((file(name, LFS), {}, (f"{name} is a Git LFS pointer", "git lfs pull"))
      for name in ("w.npz", "model.safetensors", "model.safetensors.index.json")),
    (config_that_is(LFS), {}, ("config.json is a Git LFS pointer", "git lfs pull")),
    (file("w.txt", "hello"), {}, ("not a known kind of file", ".npz or .safetensors")),
    (lambda folder: folder / "nowhere.npz", {}, ("nowhere.npz does not exist",)),
    (lambda folder: folder, {}, ("has 0 files of weights",)),
    (two_files, {}, ("has 2 files of weights", "model.safetensors")),
    (npz(UNKNOWN), {}, ("unknown architecture (MixerBlock_0/token_mixing/kernel, a, b, ...)",
                        "big_vision", "big_transfer", "transformers", "timm", "vit_jax")),
    (transformers(model_type="swin"), {}, ("model of type 'swin'", "model_type 'vit'")),
    (transformers(hidden_act="relu"), {}, ("has no usable 'relu'",)),
    (config_without('"hidden_size": 16, '), {}, ("has no usable 'hidden_size'",)),
    (config_without("{"), {}, ("config.json is damaged: ",)),
    (transformers(num_hidden_layers=10**9), {}, ("1,000,000,000 layers, and the file has 2",)),
    (npz(renamed(tiny(), ("MlpBlock_3", "Moe_3"))), {},
     ("encoder blocks with unknown parts",)),
    (timm(lambda tensors: renamed(tensors, ("mlp.fc", "mlp.w"))), TWO_HEADS,
     ("blocks with unknown parts", "mlp.fc1")),
    (timm(video), TWO_HEADS, ("do not make a complete model",)),
    (timm(short_qkv), TWO_HEADS, ("blocks.1.attn.qkv.weight in", "attention/qkv/kernel",
                                  "(47, 16) in the file")),
    (npz(tiny() | {NORM: np.zeros(WIDTH + 1)}), {}, (NORM, "(17,) in the file, (16,) in the")),
    (npz(tiny(grid=(2, 6))), {}, ("table of 13 vectors and grid None",)),
    (npz(tiny(grid=(2, 6))), {"grid": (3, 5)}, ("and grid (3, 5)", "with grid")),
    (npz(without("pos_embedding", by_kind(tiny(pooling="gap")))), {},
     ("without a position table", "give image_size=")),
    (timm(), {}, ("a model of width 16", "give num_heads=")),
    (npz(tiny(**HYBRID)), {}, ("a hybrid of ViTShape(width=16, ", "sizes of ViT-{Ti,S,M,B,")),
    (npz(ROOT), {}, ("ResNet with stages of [] units and width 8", "BiT-R26x1")),
    (npz(by_kind(tiny(pooling="gap"))), {"pooling": "token"}, ("lacks cls (class_token here)",)),
    (npz(without("head/")), {"num_classes": 5, "keep_head": True}, ("keep_head",)),
    (npz(without(NORM)), {}, (f"lacks {NORM} (norm/scale here)", "allow_missing=")),
    (npz(without(NORM)), {"allow_missing": ["norm", "scale", "xnorm/.*"]}, (f"lacks {NORM}",)),
    (npz(tiny() | {"extra/a": np.zeros(1), "step": np.zeros(1)}), {}, ("extra/a, step",)),
    (npz(tiny() | {"extra/a": np.zeros(1), "step": np.zeros(1)}),
     {"allow_unexpected": ["extra/.*", "ste"]}, ("does not use: step; ",)),
    (npz(tiny() | {f"x{i}": np.zeros(1) for i in range(5)}), {}, ("x0, x1, x2 and 2 more",)),
    (npz(without("encoderblock_1/MlpBlock_3/Dense_1/bias")), {},
     ("encoderblock_1/MlpBlock_3/Dense_1/bias (encoder/blocks/mlp/contract/bias here)",)),
    (npz(without("Dense_1")), {"allow_unexpected": [".*"]},
     ("lacks Transformer/encoderblock_*/MlpBlock_3/Dense_1/bias (encoder/blocks/mlp",)),
    (ours(image_size=(16, 16), position_embedding="relative"), {"image_size": 24},
     ("relative/table for a grid of 2x2 patches", "3x3 patches")),
    (ours("Mixer-S/4", **MIXER), {"image_size": (32, 24)},
     ("for a grid of 4x6 patches", "8x6 patches", "set image_size to (16, 24)")),
    (ours("Mixer-S/4", **MIXER), {"patch_size": 8}, ("2x3 patches", "image_size to (32, 48)")),
    (lambda folder: write_golden("r_ti16_224", folder), {"patch_size": 8},
     ("patch_size 8 for R+ViT-Ti/16",)),
]  # fmt: skip


@pytest.mark.parametrize(("make", "arguments", "words"), FILES)
def test_files(tmp_path, make, arguments, words):
    path = make(tmp_path)
    check(lambda: load(path, **arguments), WeightsError, words)


ARGUMENTS = [
    ({"num_classes": 0, "keep_head": True}, WeightsError, ("keep_head with num_classes 0",)),
    ({"allow_missing": "*"}, WeightsError, ("pattern '*'", "a regular expression")),
    ({"allow_unexpected": "*"}, WeightsError, ("pattern '*'", "a regular expression")),
    ({"image_size": 0}, UserError, ("image_size",)),
    ({"image_size": 18}, ModelError, ("image size 18x18 with patch size 4",)),
    ({"image_size": 8_000_000}, MemoryLimitError, ("position_embedding/table has the shape",)),
    ({"image_size": (8, 32)}, WeightsError, ("4 x 4 patches and the 2 x 8", "with grid")),
    ({"pooling": "gap"}, WeightsError, ("does not use: cls (class_token here);",)),
    ({"pooling": "map"}, WeightsError, ("lacks MAPHead_0/", "(attention_pooling/", "more")),
    ({"num_registers": 2}, WeightsError, ("lacks registers;",)),
    ({"class_token": False}, UserError, ("pooling token with class_token False",)),
    ({"qkv_bias": False}, WeightsError, ("does not use: ", "query/bias", "qkv/bias here);")),
    ({"depth": 1}, WeightsError, ("of shape (2, 16); expected (1, 16)",)),
    ({"num_heads": 4}, WeightsError, ("(2, 16, 3, 2, 8); expected (2, 16, 3, 4, 4)",)),
]


@pytest.mark.parametrize(("arguments", "kind", "words"), ARGUMENTS)
def test_arguments(tiny_path, arguments, kind, words):
    check(lambda: load(tiny_path, **arguments), kind, words)


PLACES = [
    ("there", "trasformers", {}, ("'trasformers'", "did you mean 'transformers'")),
    ("old", "transformers", {}, ("exists", "a new path")),
    ("file/there", "timm", {}, ("file is a file", "a folder")),
    ("long" * 100, "timm", {}, ("too long",)),
    ("there", "vision_transformer", {}, ("ends in .npz",)),
    ("there.npz", "vision_transformer", {"image_size": (16, 48)}, ("16x48", "a square image")),
    ("there", "transformers", {"image_size": (16, 48)}, ("16x48", "a square image")),
]


@pytest.mark.parametrize(("place", "format", "options", "words"), PLACES)
def test_places_to_save(tmp_path, place, format, options, words):
    (tmp_path / "old").mkdir()
    (tmp_path / "file").write_text("mine")
    check(lambda: save(random_loaded(**options), tmp_path / place, format), UserError, words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "old"]
    assert (tmp_path / "file").read_text() == "mine"
