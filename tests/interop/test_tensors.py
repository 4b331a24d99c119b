"""Files that cannot be read or understood: one line that says what was got, and no code run."""

import gc
import json
import pickle
import re
import weakref
import zipfile
from pathlib import Path

import numpy as np
import pytest
from interop.files import (
    HEADS,
    WIDTH,
    by_kind,
    params,
    tiny,
    to_timm,
    to_transformers,
    write_npz,
    write_safetensors,
    write_transformers,
)
from weight_files import random_loaded

from vit_jax.errors import WeightsError
from vit_jax.interop.load import load
from vit_jax.interop.opening import known_formats
from vit_jax.interop.save import save
from vit_jax.interop.tensors import empty_aligned, open_tensors, to_jax


def refusal(path, **arguments):
    """Returns what loading says: one line of what was got, what expected, and how to fix it."""
    with pytest.raises(WeightsError) as caught:
        load(path, **arguments)
    error = caught.value
    assert "\n" not in str(error)
    assert str(error) == f"{error.got}; expected {error.expected}; {error.fix}"
    assert min(len(part) for part in (error.got, error.expected, error.fix)) > 5
    return str(error)


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])
    return path


@pytest.mark.parametrize("part", [0, 0.01, 0.5, 0.999])
def test_a_truncated_npz(tmp_path, part):
    path = write_npz(tmp_path / "w.npz", tiny())
    said = refusal(cut(path, int(path.stat().st_size * part)))
    assert "w.npz cannot be read: " in said
    assert "expected a complete npz or safetensors file; download it again" in said


@pytest.mark.parametrize("part", [0, 0.01, 0.5, 0.999])
def test_a_truncated_safetensors(tmp_path, part):
    path = write_safetensors(tmp_path / "w.safetensors", to_timm(tiny()))
    said = refusal(cut(path, int(path.stat().st_size * part)), num_heads=HEADS)
    assert "w.safetensors cannot be read: " in said


def test_a_tensor_damaged_inside_a_zip_is_named(tmp_path):
    large = {"head/kernel": (WIDTH, 1000), "head/bias": (1000,)}
    path = write_npz(tmp_path / "w.npz", tiny(**large))
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("head/kernel.npy").header_offset
    data = bytearray(path.read_bytes())
    data[start + 40_000 : start + 40_008] = b"\xff" * 8  # Far behind the header.
    path.write_bytes(data)
    assert "tensor 'head/kernel', cannot be read: Bad CRC-32" in refusal(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_tensor_with_a_value_that_is_not_finite_is_named(tmp_path, value):
    tensors = tiny()
    tensors["head/bias"][1] = value
    said = refusal(write_npz(tmp_path / "w.npz", tensors))
    assert "tensor 'head/bias', has values that are NaN or infinite" in said


def test_a_value_too_large_for_float32_is_refused(tmp_path):
    tensors = tiny()
    tensors["head/bias"] = np.full(tensors["head/bias"].shape, 1e39)
    said = refusal(write_npz(tmp_path / "w.npz", tensors))
    assert "tensor 'head/bias', has values that are NaN or infinite" in said


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("int8", "int8"), ("complex64", "complex64"), ("bool", "bool"), ("<U3", "strings")],
)
def test_a_tensor_that_holds_no_floats_is_named(tmp_path, dtype, kind):
    tensors = tiny()
    tensors["head/bias"] = np.zeros(tensors["head/bias"].shape).astype(dtype)
    said = refusal(write_npz(tmp_path / "w.npz", tensors))
    assert f"tensor 'head/bias', holds {kind}; expected floating-point numbers" in said


def test_a_changed_value_in_a_converted_safetensors_file_is_named(tmp_path):
    save(random_loaded(), tmp_path / "out", "timm")
    load(tmp_path / "out")
    path = tmp_path / "out" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    assert re.search(
        r"tensor '.*', cannot be read: it differs from what was saved", refusal(tmp_path / "out")
    )


def test_a_zip_member_that_is_not_an_array_is_named(tmp_path):
    path = write_npz(tmp_path / "w.npz", tiny())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "hello")
    assert "w.npz cannot be read: " in refusal(path)


def test_a_missing_shard_or_tensor_is_named(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    write_safetensors(tmp_path / "a.safetensors", {"x": np.zeros(3, np.float32)})
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    assert "b.safetensors cannot be read: " in refusal(index)
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "a.safetensors"}}))
    assert "index.json cannot be read: 'y'" in refusal(index)
    index.write_text("{")
    assert "index.json is damaged: " in refusal(index)


class Harmful:
    """Pickled, it makes a file when read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_unpickling_the_harmful_pickle_would_run_its_code(tmp_path):
    pickle.loads(pickle.dumps(Harmful(tmp_path / "harm")))
    assert (tmp_path / "harm").exists()


def test_a_pickle_in_an_npz_is_refused_and_not_run(tmp_path):
    harm = tmp_path / "harm"
    objects = np.array([Harmful(harm), None], dtype=object)
    path = write_npz(tmp_path / "w.npz", tiny() | {"opt/state": objects})
    said = refusal(path)
    assert "contains Python objects ('opt/state'), and loading them can execute code" in said
    assert not harm.exists()


@pytest.mark.parametrize(
    "name", ["w.npz", "w.safetensors", "w.bin", "w.pt", "w.pth", "w.ckpt", "w"]
)
def test_a_bare_pickle_is_refused_under_any_name_and_not_run(tmp_path, name):
    harm = tmp_path / "harm"
    path = tmp_path / name
    path.write_bytes(pickle.dumps({"weight": Harmful(harm)}))
    said = refusal(path)
    if path.suffix not in (".npz", ".safetensors"):
        assert "is a PyTorch or pickle file, and loading it can execute code" in said
    assert not harm.exists()


def test_a_torch_file_is_refused_whatever_its_name(tmp_path):
    path = tmp_path / "model.weights"
    with zipfile.ZipFile(path, "w") as archive:  # What torch.save writes is a zip with a pickle.
        archive.writestr("archive/data.pkl", pickle.dumps({}))
    assert "PyTorch or pickle file" in refusal(path)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "w.txt").write_text("hello")
    assert "is not a known kind of file; expected .npz or .safetensors" in refusal(
        tmp_path / "w.txt"
    )
    assert "nowhere.npz does not exist" in refusal(tmp_path / "nowhere.npz")
    with pytest.raises(WeightsError, match="no file"):
        open_tensors(tmp_path / "nowhere.npz")


def test_a_folder_with_no_weights_or_too_many(tmp_path):
    assert "has 0 files of weights" in refusal(tmp_path)
    for name in ("a.npz", "b.npz"):
        write_npz(tmp_path / name, tiny())
    assert "has 2 files of weights; expected model.safetensors" in refusal(tmp_path)
    (tmp_path / "b.npz").unlink()
    assert load(tmp_path).num_classes == 3


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_an_unknown_architecture_lists_the_formats(tmp_path, suffix):
    write = write_npz if suffix == ".npz" else write_safetensors
    names = ("MixerBlock_0/token_mixing/kernel", "stem/kernel", "a", "b")
    path = write(tmp_path / f"w{suffix}", {name: np.zeros(2, np.float32) for name in names})
    said = refusal(path)
    assert (
        "tensors of an unknown architecture (MixerBlock_0/token_mixing/kernel, a, b, ...)" in said
    )
    assert f"one of the formats {known_formats()}" in said
    assert {
        "vision_transformer",
        "big_vision",
        "big_transfer",
        "transformers",
        "timm",
        "vit_jax",
    } <= set(known_formats().split(", "))


def test_another_transformers_model_is_refused(tmp_path):
    path = write_transformers(tmp_path / "m", to_transformers(tiny()), model_type="swin")
    assert "is a model of type 'swin'; expected model_type 'vit'" in refusal(path)


def test_an_unsupported_transformers_config_is_refused(tmp_path):
    path = write_transformers(tmp_path / "m", to_transformers(tiny()), hidden_act="relu")
    assert "has no usable 'relu'" in refusal(path)
    config = json.loads((path / "config.json").read_text())
    del config["hidden_size"]
    (path / "config.json").write_text(json.dumps(config))
    assert "has no usable 'hidden_size'" in refusal(path)
    (path / "config.json").write_text("{")
    assert "config.json is damaged: " in refusal(path)


def test_blocks_with_unknown_parts_are_refused(tmp_path):
    tensors = {n.replace("MlpBlock_3", "Moe_3"): a for n, a in tiny().items()}
    assert "encoder blocks with unknown parts" in refusal(write_npz(tmp_path / "w.npz", tensors))
    tensors = {n.replace("mlp.fc", "mlp.w"): a for n, a in to_timm(tiny()).items()}
    path = write_safetensors(tmp_path / "w.safetensors", tensors)
    assert "blocks with unknown parts; expected blocks with mlp.fc1" in refusal(
        path, num_heads=HEADS
    )


def test_tensors_with_another_number_of_axes_are_refused(tmp_path):
    """Videos have patches with one axis more."""
    tensors = to_timm(tiny())
    tensors["patch_embed.proj.weight"] = tensors["patch_embed.proj.weight"][:, :, None]
    path = write_safetensors(tmp_path / "w.safetensors", tensors)
    assert "tensors that do not make a complete model" in refusal(path, num_heads=HEADS)


def test_the_error_for_a_wrong_shape_names_both_shapes(tmp_path):
    tensors = tiny() | {"Transformer/encoder_norm/scale": np.zeros(WIDTH + 1, np.float32)}
    said = refusal(write_npz(tmp_path / "w.npz", tensors))
    assert "Transformer/encoder_norm/scale in " in said
    assert "w.npz do not fit norm/scale: shape (17,) in the file, (16,) in the model" in said
    tensors = to_timm(tiny())
    tensors["blocks.1.attn.qkv.weight"] = tensors["blocks.1.attn.qkv.weight"][:-1]
    said = refusal(write_safetensors(tmp_path / "w.safetensors", tensors), num_heads=HEADS)
    assert "blocks.1.attn.qkv.weight in " in said
    assert "do not fit encoder/blocks/attention/qkv/kernel: shape (47, 16) in the file," in said


def test_a_table_that_is_not_square_needs_the_grid(tmp_path):
    path = write_npz(tmp_path / "w.npz", tiny(grid=(2, 6)))
    assert "a position table of 13 vectors and grid None" in refusal(path)
    said = refusal(path, grid=(3, 5))
    assert "a position table of 13 vectors and grid (3, 5)" in said
    assert said.endswith("; give rows and columns with grid")


def test_positions_of_registers_are_added_to_the_registers(tmp_path):
    """timm may give registers rows of the table; ours have none."""
    registers, rows = np.full((1, 2, WIDTH), 0.5, np.float32), np.ones((1, 2, WIDTH), np.float32)
    tensors = to_timm(tiny()) | {"reg_token": registers}
    table = tensors["pos_embed"]
    tensors["pos_embed"] = np.concatenate([table[:, :1], rows, table[:, 1:]], axis=1)
    found = params(
        load(write_safetensors(tmp_path / "w.safetensors", tensors), num_heads=HEADS).model
    )
    np.testing.assert_array_equal(found["registers"], registers + rows)
    np.testing.assert_array_equal(found["position_embedding/table"], table)


def test_a_file_without_a_table_needs_the_image_size(tmp_path):
    tensors = by_kind(tiny(pooling="gap"))
    del tensors["pos_embedding"]
    path = write_npz(tmp_path / "w.npz", tensors)
    said = refusal(path)
    assert "a big_vision npz file without a position table" in said
    assert said.endswith("; give image_size=")
    assert load(path, image_size=16).options.position_embedding == "sincos_2d"


def test_a_file_of_unknown_width_needs_the_number_of_heads(tmp_path):
    path = write_safetensors(tmp_path / "w.safetensors", to_timm(tiny()))
    said = refusal(path)
    assert "a model of width 16, whose file does not contain the number of heads" in said
    assert said.endswith("; give num_heads=")
    assert load(path, num_heads=HEADS).options.num_heads == HEADS


def test_a_hybrid_and_a_resnet_of_unknown_sizes_are_errors(tmp_path):
    small = {"conv_root/kernel": (7, 7, 3, 8), "embedding/kernel": (4, 4, 8, WIDTH)}
    path = write_npz(tmp_path / "hybrid.npz", tiny(**small))
    said = refusal(path)
    assert "is a hybrid of ViTShape(width=16, " in said
    assert "expected the sizes of ViT-{Ti,S,M,B," in said
    root = {"resnet/root_block/standardized_conv2d/kernel": np.zeros((7, 7, 3, 8), np.float32)}
    said = refusal(write_npz(tmp_path / "resnet.npz", root))
    assert "a ResNet with stages of [] units and width 8; expected one of BiT-R26x1" in said


@pytest.mark.parametrize("shape", [(), (3,), (5, 7, 3)])
def test_arrays_become_jax_arrays_without_a_copy_where_memory_is_aligned(shape):
    aligned = empty_aligned(shape)
    aligned[...] = np.random.default_rng(0).standard_normal(shape)
    assert aligned.dtype == np.float32
    assert aligned.ctypes.data % 64 == 0
    assert to_jax(aligned).unsafe_buffer_pointer() == aligned.ctypes.data
    np.testing.assert_array_equal(to_jax(aligned), aligned)


@pytest.mark.parametrize("transposed", [False, True])
def test_unaligned_memory_is_copied_and_freed_at_once(transposed):
    memory = np.arange(2**20 + 1, dtype=np.float32)
    start = 1 if memory.ctypes.data % 64 == 0 else 0
    array = memory[start : start + 2**20].reshape(64, -1)
    array = array.T if transposed else array
    assert array.ctypes.data % 64
    held = weakref.ref(memory)
    gc.disable()
    try:
        found = to_jax(array)
        np.testing.assert_array_equal(found, array)
        del array, memory
        assert held() is None
    finally:
        gc.enable()
