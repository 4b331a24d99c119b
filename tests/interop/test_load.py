"""The same weights under the names of every format, and of every generation of each."""

import json

import ml_dtypes
import numpy as np
import pytest
from golden.recipe import images, weight
from interop.files import (
    CLASSES,
    DEPTH,
    GRID,
    HEADS,
    HIDDEN,
    IMAGE_SIZE,
    WIDTH,
    assert_same,
    by_kind,
    golden,
    intermediates,
    logits,
    params,
    renamed,
    scanned,
    tiny,
    to_timm,
    to_transformers,
    weights,
    write_npz,
    write_safetensors,
    write_transformers,
)

from vit_jax.interop.load import load
from vit_jax.interop.report import Status
from vit_jax.models.registry import model_options

SIZES = {"name": "ViT-Ti/4", "width": WIDTH, "depth": DEPTH, "mlp_dim": HIDDEN, "num_heads": HEADS}


def test_the_architecture_is_read_from_the_shapes(tiny_loaded):
    assert tiny_loaded.options == model_options(**SIZES)
    assert tiny_loaded.image_size == IMAGE_SIZE
    assert tiny_loaded.num_classes == CLASSES
    assert tiny_loaded.model.grid == GRID
    assert tiny_loaded.class_names is None
    found, tensors = params(tiny_loaded.model), tiny()
    block = "Transformer/encoderblock_1"
    value = tensors[f"{block}/MultiHeadDotProductAttention_1/value/kernel"]
    np.testing.assert_array_equal(found["encoder/blocks/attention/qkv/kernel"][1, :, 2], value)
    bias = tensors[f"{block}/MultiHeadDotProductAttention_1/key/bias"]
    np.testing.assert_array_equal(found["encoder/blocks/attention/qkv/bias"][1, 1], bias)


@pytest.mark.parametrize(
    ("table", "format"),
    [
        ("Transformer/pos_embedding", "big_vision npz"),
        ("pos_embedding", "big_vision npz"),
        ("Transformer/posembed_input/pos_embedding", "vision_transformer npz"),
    ],
)
def test_modules_numbered_by_kind_and_a_table_elsewhere(table, format, tmp_path, tiny_loaded):
    found = load(write_npz(tmp_path / "new.npz", by_kind(tiny(), table)))
    assert found.report.format == format
    assert_same(found, tiny_loaded)


def test_all_layers_in_one_tensor(tmp_path, tiny_loaded):
    tensors = scanned(by_kind(tiny()))
    kernel = tensors["Transformer/encoderblock/MultiHeadDotProductAttention_0/key/kernel"]
    assert kernel.shape == (DEPTH, WIDTH, HEADS, WIDTH // HEADS)
    assert_same(load(write_npz(tmp_path / "scanned.npz", tensors)), tiny_loaded)


def test_parameters_beside_an_optimizer_state(tmp_path, tiny_loaded):
    tensors = {f"params/{name}": array for name, array in by_kind(tiny()).items()}
    moments = {f"opt/0/mu/{name}": array for name, array in tensors.items()}
    found = load(write_npz(tmp_path / "state.npz", tensors | moments))
    assert found.report.names(Status.UNEXPECTED) == []
    assert_same(found, tiny_loaded)


def test_a_map_head_without_a_module_of_its_own(tmp_path):
    tensors = by_kind(tiny(pooling="map"))
    want = load(write_npz(tmp_path / "module.npz", tensors))
    inlined = renamed(tensors, ("MAPHead_0/", ""))
    assert "probe" in inlined
    assert "MlpBlock_0/Dense_0/kernel" in inlined
    assert want.options == model_options(**SIZES, pooling="map")
    assert_same(load(write_npz(tmp_path / "inlined.npz", inlined)), want)


def test_a_table_without_a_row_for_the_class_token(tmp_path, tiny_loaded):
    name = "Transformer/posembed_input/pos_embedding"
    tensors = tiny()
    found = load(write_npz(tmp_path / "tok.npz", tensors | {name: tensors[name][:, 1:]}))
    assert found.options == tiny_loaded.options
    assert found.report.names(Status.RESIZED) == ["position_embedding/table"]
    table = params(found.model)["position_embedding/table"]
    np.testing.assert_array_equal(table[:, 0], 0)
    np.testing.assert_array_equal(table[:, 1:], tensors[name][:, 1:])


PRE_LOGITS = {"pre_logits/kernel": (WIDTH, 8), "pre_logits/bias": (8,), "head/kernel": (8, CLASSES)}


def test_the_tanh_layer_is_kept_with_the_head_and_left_out_with_a_new_one(tmp_path):
    tensors = tiny(**PRE_LOGITS)
    path = write_npz(tmp_path / "pre_logits.npz", tensors)
    loaded = load(path)
    assert loaded.options.representation_size == 8
    kernel = params(loaded.model)["head/pre_logits/kernel"]
    np.testing.assert_array_equal(kernel, tensors["pre_logits/kernel"])
    x = images(16)
    found = intermediates(loaded.model, x, "encoded", "pre_logits")
    before = found["encoded"][:, 0] @ tensors["pre_logits/kernel"]
    want = np.tanh(before + tensors["pre_logits/bias"])
    np.testing.assert_allclose(found["pre_logits"], want, atol=1e-5)
    new = load(path, num_classes=7)
    assert new.options.representation_size is None
    left_out = new.report.names(Status.LEFT_OUT)
    assert [name.split("/")[1] for name in left_out] == ["pre_logits"] * 2 + ["linear"] * 2
    assert params(new.model)["head/linear/kernel"].shape == (WIDTH, 7)


def test_group_norms_of_a_hybrid_have_four_axes_or_one(tmp_path):
    tensors = weights(golden("r_ti16_224")[0]["shapes"])
    assert tensors["gn_root/scale"].shape == (1, 1, 1, 64)
    want = load(write_npz(tmp_path / "four.npz", tensors))
    flat = {n: a.reshape(-1) if n.startswith("gn_root") else a for n, a in tensors.items()}
    assert_same(load(write_npz(tmp_path / "one.npz", flat)), want)


def test_numbered_convolutions_of_a_resnet(tmp_path):
    old = "resnet/block1/unit01/a/standardized_conv2d/kernel"
    shapes = golden("bit_r50x1_128")[0]["shapes"]
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    tensors[old] = weight(old, shapes[old]).astype(np.float32)
    first = "block1/unit01/a/standardized_conv2d"
    named = renamed(tensors, (f"{first}/", f"{first}_1/"))
    assert old not in named
    loaded = load(write_npz(tmp_path / "numbered.npz", named))
    assert loaded.options.name == "BiT-R50x1"
    found = params(loaded.model)["trunk/stage1/first/conv1/kernel"]
    np.testing.assert_array_equal(found, tensors[old])


def test_siglip_of_timm_equals_the_map_head_of_big_vision(tmp_path):
    """test_goldens.py compares the logits of the big_vision file with the reference."""
    tensors = weights(golden("bv_ti16_map")[0]["shapes"])
    want = load(write_npz(tmp_path / "big_vision.npz", tensors))
    path = write_safetensors(tmp_path / "timm.safetensors", to_timm(tensors))
    found = load(path, gelu_approximate=True)  # timm's small SigLIP towers have the exact form.
    assert found.report.format == "timm safetensors"
    assert_same(found, want)
    assert load(path).options.gelu_approximate is False


def test_transformers_with_the_same_weights(tmp_path, tiny_loaded):
    found = load(write_transformers(tmp_path / "model", to_transformers(tiny())))
    assert found.report.format == "transformers safetensors"
    assert_same(found, tiny_loaded)


def test_a_transformers_vit_model_gives_the_pooler_output(tmp_path, tiny_loaded):
    shapes = {"pooler.dense.weight": (8, WIDTH), "pooler.dense.bias": (8,)}
    pooler = weights(shapes)
    classifier = ("classifier.weight", "classifier.bias")
    named = to_transformers(tiny())
    tensors = {n.removeprefix("vit."): a for n, a in named.items() if n not in classifier}
    loaded = load(write_transformers(tmp_path / "model", tensors | pooler))
    assert loaded.num_classes == 0
    assert loaded.options.representation_size == 8
    assert loaded.report.names(Status.LEFT_OUT) == []
    x = images(16)
    encoded = intermediates(tiny_loaded.model, x, "encoded")["encoded"]
    before = encoded[:, 0] @ pooler["pooler.dense.weight"].T
    want = np.tanh(before + pooler["pooler.dense.bias"])
    np.testing.assert_allclose(logits(loaded.model, x), want, atol=1e-5)


def test_class_names_of_transformers(tmp_path):
    labels = {"10": "no such class", "2": "bird", "0": "cat", "1": "dog"}
    three = {key: name for key, name in labels.items() if key != "10"}
    tensors = to_transformers(tiny())
    path = write_transformers(tmp_path / "model", tensors, id2label=three)
    assert load(path).class_names == ("cat", "dog", "bird")
    assert load(path, num_classes=7).class_names is None
    path = write_transformers(tmp_path / "four", tensors, id2label=labels)
    assert load(path).class_names is None  # Four names do not go with three classes.


def test_biases_of_queries_and_values_only(tmp_path):
    tensors = to_timm(tiny())
    biases = {n: np.split(a, 3) for n, a in tensors.items() if n.endswith("qkv.bias")}
    for name, (query, _, value) in biases.items():
        del tensors[name]
        where = name.removesuffix("qkv.bias")
        tensors |= {f"{where}q_bias": query, f"{where}v_bias": value}
    loaded = load(write_safetensors(tmp_path / "m.safetensors", tensors), num_heads=HEADS)
    assert loaded.options.qkv_bias is True
    found = params(loaded.model)["encoder/blocks/attention/qkv/bias"]
    for layer in range(DEPTH):
        query, _, value = biases[f"blocks.{layer}.attn.qkv.bias"]
        want = np.stack([query, np.zeros_like(query), value])
        np.testing.assert_array_equal(found[layer], want.reshape(3, HEADS, -1))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_low_precision_becomes_float32_exactly(dtype, tmp_path):
    low = {name: array.astype(dtype) for name, array in tiny().items()}
    exact = {name: array.astype(np.float32) for name, array in low.items()}
    found = load(write_npz(tmp_path / "low.npz", low))
    assert_same(found, load(write_npz(tmp_path / "exact.npz", exact)))
    tensors = {name: array.astype(dtype) for name, array in to_timm(tiny()).items()}
    loaded = load(write_safetensors(tmp_path / "low.safetensors", tensors), num_heads=HEADS)
    exact = {name: array.astype(np.float32) for name, array in tensors.items()}
    assert not np.array_equal(exact["norm.weight"], to_timm(tiny())["norm.weight"])
    assert_same(loaded, load(write_safetensors(tmp_path / "m.safetensors", exact), num_heads=HEADS))
    assert {array.dtype for array in params(loaded.model).values()} == {np.dtype(np.float32)}


def test_a_model_in_several_files(tmp_path):
    tensors = to_timm(tiny())
    names = sorted(tensors)
    parts = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
    for file, inside in parts.items():
        write_safetensors(tmp_path / file, {name: tensors[name] for name in inside})
    where = {name: file for file, inside in parts.items() for name in inside}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    one = load(write_safetensors(tmp_path / "one.safetensors", tensors), num_heads=HEADS)
    (tmp_path / "one.safetensors").unlink()
    for path in (index, tmp_path):
        found = load(path, num_heads=HEADS)
        assert_same(found, one)
        assert found.report.size_bytes == sum((tmp_path / f).stat().st_size for f in parts)


def test_mean_pooling_works_with_an_unused_class_token(tiny_path, tiny_loaded):
    loaded = load(tiny_path, pooling="gap", class_token=True)
    x = images(16)
    want = intermediates(tiny_loaded.model, x, "encoded")["encoded"]
    mean = want[:, 1:].mean(1)
    want = mean @ tiny()["head/kernel"] + tiny()["head/bias"]
    np.testing.assert_allclose(logits(loaded.model, x), want, atol=1e-4)
