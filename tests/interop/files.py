"""Files of weights for tests: the goldens, and a tiny ViT under the names of every format."""

import importlib.util
import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from golden import recipe

from vit_jax.named_tree import leaf_names

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
# Sizes of the tiny ViT: 4x4 patches of 4 pixels, a class token, 3 classes.
WIDTH, DEPTH, HIDDEN, HEADS, PATCH, GRID, CLASSES = 16, 2, 32, 2, 4, (4, 4), 3
IMAGE_SIZE = (16, 16)
_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_BY_KIND = {
    "LayerNorm_2": "LayerNorm_1",
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "MlpBlock_3": "MlpBlock_0",
}


def golden(name):
    """Returns the description of a golden and its logits."""
    return json.loads((GOLDEN / f"{name}.json").read_text()), np.load(GOLDEN / f"{name}.npy")


def weights(shapes):
    """Returns the recipe's weights as float32, which is what the references computed with."""
    return {name: array.astype(np.float32) for name, array in recipe.weights(shapes).items()}


def write_golden(name, folder):
    """Writes the weights of a golden in its format and returns what to load."""
    about, _ = golden(name)
    tensors = weights(about["shapes"])
    if about["format"].endswith("npz"):
        return write_npz(folder / "weights.npz", tensors)
    if config := about.get("hf_config"):
        (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder if config else folder / "model.safetensors"


def write_npz(path, tensors):
    np.savez(path, **tensors)
    return path


def write_safetensors(path, tensors):
    """Writes by the format's definition: 8 bytes with the header's length, header, data."""
    header, start = {}, 0
    for name, array in tensors.items():
        end = start + array.nbytes
        kind = _DTYPES[array.dtype.name]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def write_transformers(folder, tensors, **config):
    """Writes a folder as of `save_pretrained`."""
    folder.mkdir(exist_ok=True)
    sizes = {
        "model_type": "vit",
        "hidden_size": WIDTH,
        "num_hidden_layers": DEPTH,
        "intermediate_size": HIDDEN,
        "num_attention_heads": HEADS,
        "patch_size": PATCH,
        "image_size": IMAGE_SIZE[0],
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-6,
    }
    (folder / "config.json").write_text(json.dumps(sizes | config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def tiny(*, pooling="token", grid=GRID, width=WIDTH, **more):
    """Returns the tensors of the tiny ViT as vision_transformer names them; `more`: shapes."""
    head_dim = width // HEADS
    table = math.prod(grid) + (pooling == "token")
    shapes = {
        "embedding/kernel": (PATCH, PATCH, 3, width),
        "embedding/bias": (width,),
        "Transformer/posembed_input/pos_embedding": (1, table, width),
        "Transformer/encoder_norm/scale": (width,),
        "Transformer/encoder_norm/bias": (width,),
        "head/kernel": (width, CLASSES),
        "head/bias": (CLASSES,),
    }
    if pooling == "token":
        shapes["cls"] = (1, 1, width)
    attention = {
        **{f"{n}/kernel": (width, HEADS, head_dim) for n in ("query", "key", "value")},
        **{f"{n}/bias": (HEADS, head_dim) for n in ("query", "key", "value")},
        "out/kernel": (HEADS, head_dim, width),
        "out/bias": (width,),
    }
    mlp = {
        "Dense_0/kernel": (width, HIDDEN), "Dense_0/bias": (HIDDEN,),
        "Dense_1/kernel": (HIDDEN, width), "Dense_1/bias": (width,),
    }  # fmt: skip
    norm = {"scale": (width,), "bias": (width,)}
    parts = [(f"Transformer/encoderblock_{layer}", ("0", "2", "1", "3")) for layer in range(DEPTH)]
    if pooling == "map":
        shapes["MAPHead_0/probe"] = (1, 1, width)
        parts.append(("MAPHead_0", ("0", None, "0", "0")))
    for where, (norm_1, norm_2, heads, dense) in parts:
        for number in (norm_1, norm_2):
            if number is not None:
                shapes |= {f"{where}/LayerNorm_{number}/{n}": s for n, s in norm.items()}
        name = f"{where}/MultiHeadDotProductAttention_{heads}"
        shapes |= {f"{name}/{n}": s for n, s in attention.items()}
        shapes |= {f"{where}/MlpBlock_{dense}/{n}": s for n, s in mlp.items()}
    return weights(shapes | more)


def renamed(tensors, *pairs):
    """Returns tensors with parts of their names replaced."""
    found = {}
    for name, array in tensors.items():
        for old, new in pairs:
            name = name.replace(old, new)
        found[name] = array
    return found


def by_kind(tensors, table="pos_embedding"):
    """Returns tensors of vision_transformer under the names that number modules by kind."""
    return renamed(tensors, *_BY_KIND.items(), ("Transformer/posembed_input/pos_embedding", table))


def scanned(tensors):
    """Returns tensors numbered by kind, stacked over the layers, as in big_vision."""
    found, layers = {}, {}
    for name, array in tensors.items():
        where, _, rest = name.partition("/encoderblock_")
        if rest:
            layer, _, leaf = rest.partition("/")
            layers.setdefault(f"{where}/encoderblock/{leaf}", {})[int(layer)] = array
        else:
            found[name] = array
    stacks = {n: np.stack([parts[i] for i in range(len(parts))]) for n, parts in layers.items()}
    return found | stacks


def to_timm(tensors):
    """Returns tensors of vision_transformer or big_vision under timm's names, as PyTorch's."""
    tensors = by_kind(tensors)
    found = {}

    def linear(new, kernel, bias, inputs=1):
        outputs = math.prod(kernel.shape[inputs:])
        found[f"{new}.weight"] = np.ascontiguousarray(kernel.reshape(-1, outputs).T)
        found[f"{new}.bias"] = bias.reshape(-1)

    def norm(new, old):
        found[f"{new}.weight"] = tensors[f"{old}/scale"]
        found[f"{new}.bias"] = tensors[f"{old}/bias"]

    def dense(new, old, inputs=1):
        linear(new, tensors[f"{old}/kernel"], tensors[f"{old}/bias"], inputs)

    def joined(new, old, names):
        parts = [[tensors[f"{old}/{n}/{leaf}"] for n in names] for leaf in ("kernel", "bias")]
        linear(new, np.stack(parts[0], 1), np.stack(parts[1]))

    found["patch_embed.proj.weight"] = tensors["embedding/kernel"].transpose(3, 2, 0, 1)
    found["patch_embed.proj.bias"] = tensors["embedding/bias"]
    found["pos_embed"] = tensors["pos_embedding"]
    if "cls" in tensors:
        found["cls_token"] = tensors["cls"]
    norm("norm", "Transformer/encoder_norm")
    dense("head", "head")
    depth = sum(n.endswith("LayerNorm_0/scale") and "encoderblock" in n for n in tensors)
    for layer in range(depth):
        old, new = f"Transformer/encoderblock_{layer}", f"blocks.{layer}"
        norm(f"{new}.norm1", f"{old}/LayerNorm_0")
        norm(f"{new}.norm2", f"{old}/LayerNorm_1")
        attention = f"{old}/MultiHeadDotProductAttention_0"
        joined(f"{new}.attn.qkv", attention, ("query", "key", "value"))
        dense(f"{new}.attn.proj", f"{attention}/out", inputs=2)
        dense(f"{new}.mlp.fc1", f"{old}/MlpBlock_0/Dense_0")
        dense(f"{new}.mlp.fc2", f"{old}/MlpBlock_0/Dense_1")
    if "MAPHead_0/probe" in tensors:
        old, new = "MAPHead_0", "attn_pool"
        found[f"{new}.latent"] = tensors[f"{old}/probe"]
        dense(f"{new}.q", f"{old}/MultiHeadDotProductAttention_0/query")
        joined(f"{new}.kv", f"{old}/MultiHeadDotProductAttention_0", ("key", "value"))
        dense(f"{new}.proj", f"{old}/MultiHeadDotProductAttention_0/out", inputs=2)
        norm(f"{new}.norm", f"{old}/LayerNorm_0")
        dense(f"{new}.mlp.fc1", f"{old}/MlpBlock_0/Dense_0")
        dense(f"{new}.mlp.fc2", f"{old}/MlpBlock_0/Dense_1")
    return found


def to_transformers(tensors):
    """Returns tensors of vision_transformer under the names of ViTForImageClassification."""
    found = {}
    names = (
        ("cls_token", "embeddings.cls_token"),
        ("pos_embed", "embeddings.position_embeddings"),
        ("patch_embed.proj", "embeddings.patch_embeddings.projection"),
        ("head", "classifier"),
        ("blocks", "encoder.layer"),
        ("norm1", "layernorm_before"),
        ("norm2", "layernorm_after"),
        ("attn.proj", "attention.output.dense"),
        ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"),
    )
    for name, array in to_timm(tensors).items():
        name = f"layer{name}" if name.startswith("norm.") else name
        prefix = "" if name.startswith("head") else "vit."
        if ".attn.qkv." not in name:
            ((name, _),) = renamed({name: array}, *names).items()
            found[prefix + name] = array
            continue
        for part, third in zip(("query", "key", "value"), np.split(array, 3), strict=True):
            new = name.replace("blocks", "encoder.layer")
            found[prefix + new.replace("attn.qkv", f"attention.attention.{part}")] = third
    return found


def params(model):
    """Returns a model's parameters by name."""
    state = nnx.to_pure_dict(nnx.state(model))
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
    return dict(zip(leaf_names(state), leaves, strict=True))


def assert_same(got, want):
    """Two loaded models are the same function: options, sizes and every bit of every parameter."""
    assert got.options == want.options
    assert (got.num_classes, got.image_size) == (want.num_classes, want.image_size)
    assert_same_params(params(got.model), params(want.model))


def assert_same_params(got, want):
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


def logits(model, images):
    """Returns a model's output with float32 matmuls as exact as they get."""
    return np.asarray(_call(model, images, ()))


def intermediates(model, images, *names):
    """Returns intermediates of a model by name, computed as `logits` does."""
    _, found = _call(model, images, names)
    return {name: np.asarray(array) for name, array in found.items()}


def _call(model, images, names):
    graphdef, state = nnx.split(model)

    def call(state, images):
        return nnx.merge(graphdef, state)(images, return_intermediates=names)

    with jax.default_matmul_precision("highest"):
        return jax.jit(call)(state, images)


def assert_close_to_golden(found, name):
    _, want = golden(name)
    assert np.abs(found - want).max() <= 1e-4 * max(1, np.abs(want).max())


def run_reference(package, script, *arguments):
    """Runs code of torch and a package in a process of its own, because timm needs a stand-in.

    Returns what it prints.
    """
    for name in ("torch", package):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}: pip install -e .[interop]")
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{root}:{root / 'tests'}"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
