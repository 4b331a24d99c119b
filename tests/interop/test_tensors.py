"""Files that cannot be read or understood: one line that says what was got, and no code run."""

import gc
import pickle
import re
import weakref
import zipfile
from pathlib import Path

import numpy as np
import pytest
from interop.files import HEADS, WIDTH, params, tiny, to_timm, write_npz, write_safetensors
from weight_files import random_loaded

from vit_jax.errors import WeightsError
from vit_jax.interop.load import load
from vit_jax.interop.save import save
from vit_jax.interop.tensors import empty_aligned, to_jax


def refusal(path, **arguments):
    """Returns what loading says: one line of what was got, what expected, and how to fix it."""
    with pytest.raises(WeightsError) as caught:
        load(path, **arguments)
    error = caught.value
    assert "\n" not in str(error)
    assert str(error) == f"{error.got}; expected {error.expected}; {error.fix}"
    assert min(len(part) for part in (error.got, error.expected, error.fix)) > 5
    return str(error)


@pytest.mark.parametrize("part", [0, 0.01, 0.5, 0.999])
@pytest.mark.parametrize("name", ["w.npz", "w.safetensors"])
def test_a_truncated_file(tmp_path, name, part):
    if name == "w.npz":
        path = write_npz(tmp_path / name, tiny())
    else:
        path = write_safetensors(tmp_path / name, to_timm(tiny()))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    said = refusal(path, num_heads=HEADS)
    assert f"{name} cannot be read: " in said
    assert "expected a complete npz or safetensors file; download it again" in said


def test_a_tensor_damaged_inside_a_zip_is_named(tmp_path):
    large = {"head/kernel": (WIDTH, 1000), "head/bias": (1000,)}
    path = write_npz(tmp_path / "w.npz", tiny(**large))
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("head/kernel.npy").header_offset
    data = bytearray(path.read_bytes())
    data[start + 40_000 : start + 40_008] = b"\xff" * 8  # Far behind the header.
    path.write_bytes(data)
    assert "tensor 'head/kernel', cannot be read: Bad CRC-32" in refusal(path)


def test_a_changed_value_in_a_converted_safetensors_file_is_named(tmp_path):
    save(random_loaded(), tmp_path / "out", "timm")
    load(tmp_path / "out")
    path = tmp_path / "out" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    said = refusal(tmp_path / "out")
    assert re.search(r"tensor '.*', cannot be read: it differs from what was saved", said)


def test_a_zip_member_that_is_not_an_array_is_named(tmp_path):
    path = write_npz(tmp_path / "w.npz", tiny())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "hello")
    assert "w.npz cannot be read: " in refusal(path)


class Harmful:
    """Pickled, it makes a file when read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_in_an_npz_is_refused_and_not_run(tmp_path):
    harm = tmp_path / "harm"
    objects = np.array([Harmful(harm), None], dtype=object)
    path = write_npz(tmp_path / "w.npz", tiny() | {"opt/state": objects})
    said = refusal(path)
    assert "contains Python objects ('opt/state'), and loading them can execute code" in said
    assert not harm.exists()


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors", "w.bin", "w.pt", "w"])
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


def test_a_folder_with_one_file_of_weights(tmp_path):
    write_npz(tmp_path / "b.npz", tiny())
    assert load(tmp_path).num_classes == 3


def test_positions_of_registers_are_added_to_the_registers(tmp_path):
    """timm may give registers rows of the table; ours have none."""
    registers, rows = np.full((1, 2, WIDTH), 0.5, np.float32), np.ones((1, 2, WIDTH), np.float32)
    tensors = to_timm(tiny()) | {"reg_token": registers}
    table = tensors["pos_embed"]
    tensors["pos_embed"] = np.concatenate([table[:, :1], rows, table[:, 1:]], axis=1)
    path = write_safetensors(tmp_path / "w.safetensors", tensors)
    found = params(load(path, num_heads=HEADS).model)
    np.testing.assert_array_equal(found["registers"], registers + rows)
    np.testing.assert_array_equal(found["position_embedding/table"], table)


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
