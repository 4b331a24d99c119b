"""Files of any content: weights and configs are read, or refused with one line."""

import functools
import io
import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
from attacks.draws import MANY, SEED
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from weight_files import random_loaded

from vit_jax.config.file import load_config
from vit_jax.errors import UserError
from vit_jax.interop.load import read_weights
from vit_jax.interop.save import save

DTYPES = ["<f4", "<f8", "<f2", "<i4", "<u1", "?", "<c8", "<U3", "S3", "<M8[s]"]
NAMES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["embedding/kernel", "cls", "head/bias", "../x", "/", "a/b", "Transformer/"]),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
ARRAYS = st.builds(
    lambda dtype, shape: np.zeros(shape, dtype),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=4),
)
# (where, what to do there, byte)
EDITS = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(["set", "cut", "insert"]),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=6,
)


def attack(*drawn):
    """Decorates a test that takes drawn examples."""
    limits = settings(
        max_examples=MANY or 5,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    return lambda function: seed(SEED)(limits(given(*drawn)(function)))


def edited(content, edits):
    """Returns bytes with some bytes set or inserted, or the rest cut off."""
    data = bytearray(content)
    for where, what, byte in edits:
        at = int(where * len(data))
        if what == "cut":
            del data[at:]
        elif what == "insert" or not data:
            data.insert(at, byte)
        else:
            data[at] = byte
    return bytes(data)


def survives(read, name, content):
    """Reads a file with this content, and checks an error if there is one."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / name
        path.write_bytes(content)
        found = None
        try:
            read(path)
        except UserError as error:
            found = error
    assert found is None or (found.got and found.expected and "\n" not in str(found))


@functools.cache
def good_npz():
    """Returns the bytes of good weights."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "good.npz"
        save(random_loaded(), path, "vision_transformer")
        return path.read_bytes()


@attack(st.dictionaries(NAMES, ARRAYS, max_size=5))
def test_npz_files_of_any_arrays(arrays):
    file = io.BytesIO()
    kept = {name: array for name, array in arrays.items() if name and "\x00" not in name}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            np.savez(file, **{name: array for name, array in kept.items() if name != "file"})
        except (UnicodeError, ValueError):
            return  # NumPy cannot write such a name.
    survives(read_weights, "weights.npz", file.getvalue())


@attack(EDITS)
def test_damaged_npz_files(edits):
    survives(read_weights, "weights.npz", edited(good_npz(), edits))


ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "I64", "X", 3]),
        "shape": st.lists(st.integers(-1, 2**62), max_size=3),
        "data_offsets": st.lists(st.integers(-1, 2**62), max_size=3),
    },
)


@attack(
    JSON | st.dictionaries(NAMES, ENTRY, max_size=4), st.integers(-5, 5), st.binary(max_size=40)
)
def test_safetensors_files_of_any_header(header, wrong_by, data):
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    size = max(0, len(text) + wrong_by)
    survives(read_weights, "model.safetensors", size.to_bytes(8, "little") + text + data)


@attack(st.sampled_from(["w.npz", "w.safetensors", "config.json"]), st.binary(max_size=200))
def test_weights_of_any_bytes(name, content):
    survives(read_weights, name, content)


def read_config(path):
    load_config(str(path), [])


@attack(JSON)
def test_configs_of_any_json(content):
    survives(read_config, "config.json", json.dumps(content).encode("utf-8", "surrogatepass"))


KEYS = ["seed", "model", "model.name", "data", "data.name", "optimizer.learning_rate",
        "mesh.rules", "evaluation.splits", "train_steps", "data.subset"]  # fmt: skip


@attack(st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1, max_size=3))
def test_config_keys_of_any_value(values):
    tree = {}
    for key, value in values.items():
        section, _, leaf = key.rpartition(".")
        inner = tree.setdefault(section, {}) if section else tree
        if isinstance(inner, dict):
            inner[leaf] = value
    survives(read_config, "config.json", json.dumps(tree).encode("utf-8", "surrogatepass"))


@attack(
    st.sampled_from(["seed", "model.name", "data.subset.fraction", "mesh.rules", "nope"]),
    st.text(max_size=20),
)
def test_overrides_of_any_text(key, text):
    survives(lambda path: load_config(str(path), [f"{key}={text}"]), "config.json", b"{}")
