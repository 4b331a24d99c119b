"""Named tensors in npz and safetensors files, read one at a time and never with pickle."""

import dataclasses
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from vit_jax.errors import WeightsError
from vit_jax.run.digest import array_digest
from vit_jax.storage.files import LFS_FIX, LFS_POINTER, is_lfs_pointer, parse_json, read_json

# JAX on a CPU uses an array's memory without a copy if its address is a multiple of this.
_ALIGNMENT = 64
# JSON files next to safetensors files that describe how to use the weights.
CONFIG_FILES = ("config.json", "preprocessor_config.json", "processor_config.json")
DIGESTS = "vit_jax.digests"
"""Key of the metadata of a safetensors file that this package wrote: name -> digest, as JSON.

A member of an npz file has a checksum in any case.
"""
# Errors that NumPy, zipfile, safetensors and JSON raise for damaged files.
_DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    SyntaxError,
    MemoryError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)


@dataclasses.dataclass(frozen=True)
class TensorFile:
    """Named tensors on disk."""

    path: Path  # File or folder that contains them.
    shapes: Mapping[str, tuple[int, ...]]  # From the headers.
    size_bytes: int  # Of the file or files.
    load: Callable[[str], np.ndarray]  # Name -> array as stored.
    configs: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor as float32. It must be of a float type and have finite values."""
        try:
            array = self.load(name)
        except _DAMAGED as error:
            raise _damaged_error(self.path, error, f"tensor '{name}'") from None
        if array.dtype == np.dtype("V2"):  # npz files store bfloat16 as V2.
            array = array.view(ml_dtypes.bfloat16)
        if not jax.numpy.issubdtype(array.dtype, np.floating):
            raise WeightsError(
                f"{self.path}, tensor '{name}', holds {_kind(array.dtype)}",
                "floating-point numbers",
                "convert it to float32 first; quantised weights need their scales for this",
            )
        with np.errstate(over="ignore"):  # Too large for float32: found below.
            found = np.asarray(array, np.float32)
        # The minimum of an array with a NaN is NaN.
        if found.size and not np.isfinite([found.min(), found.max()]).all():
            raise WeightsError(
                f"{self.path}, tensor '{name}', has values that are NaN or infinite",
                "finite numbers",
                "use another copy, or weights of an earlier step",
            )
        return found

    def renamed(self, names: Mapping[str, str]) -> "TensorFile":
        """Returns the file with tensors renamed by {new: old}. Other tensors are dropped."""
        shapes = {new: self.shapes[old] for new, old in names.items()}
        return dataclasses.replace(self, shapes=shapes, load=lambda name: self.load(names[name]))

    def config(self, name: str = "config.json") -> Mapping[str, Any]:
        """Returns the JSON object in a file next to the weights; empty if there is no such file."""
        return self.configs.get(name, {})


def empty_aligned(shape: tuple[int, ...]) -> np.ndarray:
    """Returns an uninitialised float32 array that JAX on a CPU uses without a copy."""
    size_bytes = math.prod(shape) * 4
    memory = np.empty(size_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size_bytes].view(np.float32).reshape(shape)


def to_jax(array: np.ndarray) -> jax.Array:
    """Returns a float32 array as a JAX array. They may share memory: do not write to `array`."""
    # jnp.asarray would copy, and keep the original alive until the next garbage collection.
    if array.ctypes.data % _ALIGNMENT or not array.flags.c_contiguous:
        copy = empty_aligned(array.shape)
        copy[...] = array
        array = copy
    return jax.device_put(array)


def open_tensors(path: Path) -> TensorFile:
    """Opens an npz file, a safetensors file, or the index of several safetensors files.

    The JSON files next to safetensors files are read as well. What needs pickle is refused.
    """
    if not path.is_file():
        raise WeightsError(f"no file {path}", "an npz or safetensors file", "check the path")
    with path.open("rb") as file:
        start = file.read(100)
    if is_lfs_pointer(start):
        raise WeightsError(f"{path} is {LFS_POINTER}", "an npz or safetensors file", LFS_FIX)
    if path.suffix == ".npz":
        return _open_npz(path)
    if path.suffix == ".safetensors" or path.name.endswith(".safetensors.index.json"):
        file = _open_safetensors(path) if path.suffix == ".safetensors" else _open_shards(path)
        beside = {name: path.parent / name for name in CONFIG_FILES}
        fix = "correct the file, or remove it"
        configs = {
            name: read_json(config, error=WeightsError, fix=fix)
            for name, config in beside.items()
            if config.is_file()
        }
        return dataclasses.replace(file, configs=configs)
    if start[:2] == b"PK" or start[:1] == b"\x80" or path.suffix in (".bin", ".pt", ".pth"):
        raise WeightsError(
            f"{path} is a PyTorch or pickle file, and loading it can execute code",
            "safetensors or npz",
            "save it as safetensors first (transformers and timm publish them)",
        )
    raise WeightsError(
        f"{path} is not a known kind of file", ".npz or .safetensors", "give such a file"
    )


def _open_npz(path: Path) -> TensorFile:
    shapes, pickled = {}, []
    try:
        archive = zipfile.ZipFile(path)  # Closed when `load` below is garbage collected.
        members = {member.removesuffix(".npy"): member for member in archive.namelist()}
        for name, member in members.items():
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                read_header = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }[version]
                shape, _, dtype = read_header(file)
            shapes[name] = tuple(shape)
            if dtype.hasobject:
                pickled.append(name)
    except _DAMAGED as error:
        raise _damaged_error(path, error) from None
    if pickled:
        raise WeightsError(
            f"{path} contains Python objects ('{pickled[0]}'), and loading them can execute code",
            "arrays of numbers",
            "save only the arrays",
        )

    def load(name: str) -> np.ndarray:
        with archive.open(members[name]) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1):  # Reading to the end also compares the checksum of the member.
                raise ValueError("there is more data than its header says")
            return array

    return TensorFile(path, shapes, path.stat().st_size, load)


def _open_safetensors(path: Path) -> TensorFile:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            names = file.keys()
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
            digests = parse_json((file.metadata() or {}).get(DIGESTS, "{}"))
            if digests and digests.keys() != shapes.keys():
                raise ValueError("its tensors are not those that were saved")
    except (SafetensorError, *_DAMAGED) as error:
        raise _damaged_error(path, error) from None
    load = partial(_load_safetensors, path, digests)
    return TensorFile(path, shapes, path.stat().st_size, load)


def _load_safetensors(path: Path, digests: Mapping[str, str], name: str) -> np.ndarray:
    from safetensors import SafetensorError, safe_open

    # The file is reopened for each tensor, so that pages of earlier tensors do not stay mapped.
    try:
        with safe_open(path, framework="np") as file:
            array = file.get_tensor(name)
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    if digests and digests[name] != array_digest(array):
        raise ValueError("it differs from what was saved")
    return array


def _open_shards(path: Path) -> TensorFile:
    try:
        files = read_json(path, error=WeightsError)["weight_map"]
        names = sorted(set(files.values()))
        parts = {name: _open_safetensors(path.parent / name) for name in names}
        shapes = {name: parts[file].shapes[name] for name, file in files.items()}
    except _DAMAGED as error:
        if isinstance(error, WeightsError):
            raise
        raise _damaged_error(path, error) from None
    size = sum(part.size_bytes for part in parts.values())
    return TensorFile(path, shapes, size, lambda name: parts[files[name]].load(name))


def _kind(dtype: np.dtype) -> str:
    """Returns what an array holds, as text for a message."""
    return {"U": "strings", "S": "bytes", "M": "dates", "m": "times"}.get(dtype.kind, dtype.name)


def _damaged_error(path: Path, error: Exception, what: str = "") -> WeightsError:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    where = f"{path}, {what}," if what else f"{path}"
    return WeightsError(
        f"{where} cannot be read: {reason}",
        "a complete npz or safetensors file",
        "download it again",
    )
