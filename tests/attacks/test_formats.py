"""Files of any content: weights and configs are read, or refused with one line."""

import io
import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from attacks.draws import SEED
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from weight_files import random_loaded

from vit_jax.config.file import load_config
from vit_jax.errors import UserError
from vit_jax.interop.load import read_weights
from vit_jax.interop.save import save

COUNTS = [pytest.param(5, id="short"), pytest.param(100, id="whole", marks=pytest.mark.slow)]
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


def attack(count):
    """Decorates a test of any number of drawn examples."""

    def decorate(function):
        limits = settings(
            max_examples=count,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        )
        return seed(SEED)(limits(function))

    return decorate


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


def written(format_name, suffix):
    """Returns the bytes of good weights."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"good{suffix}"
        save(random_loaded(), path, format_name)
        found = path if path.is_file() else next(path.glob(f"*{suffix}"))
        return found.read_bytes()


@pytest.mark.parametrize("count", COUNTS)
def test_npz_files_of_any_arrays(count):
    @attack(count)
    @given(st.dictionaries(NAMES, ARRAYS, max_size=5))
    def run(arrays):
        file = io.BytesIO()
        kept = {name: array for name, array in arrays.items() if name and "\x00" not in name}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                np.savez(file, **{name: array for name, array in kept.items() if name != "file"})
            except (UnicodeError, ValueError):
                return  # NumPy cannot write such a name.
        survives(read_weights, "weights.npz", file.getvalue())

    run()


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_npz_files(count):
    good = written("vision_transformer", ".npz")

    @attack(count)
    @given(EDITS)
    def run(edits):
        survives(read_weights, "weights.npz", edited(good, edits))

    run()


@pytest.mark.parametrize("count", COUNTS)
def test_safetensors_files_of_any_header(count):
    entry = st.fixed_dictionaries(
        {},
        optional={
            "dtype": st.sampled_from(["F32", "BF16", "I64", "X", 3]),
            "shape": st.lists(st.integers(-1, 2**62), max_size=3),
            "data_offsets": st.lists(st.integers(-1, 2**62), max_size=3),
        },
    )
    headers = JSON | st.dictionaries(NAMES, entry, max_size=4)

    @attack(count)
    @given(headers, st.integers(-5, 5), st.binary(max_size=40))
    def run(header, wrong_by, data):
        text = json.dumps(header).encode("utf-8", "surrogatepass")
        size = max(0, len(text) + wrong_by)
        survives(read_weights, "model.safetensors", size.to_bytes(8, "little") + text + data)

    run()


@pytest.mark.parametrize("count", COUNTS)
def test_weights_of_any_bytes(count):
    @attack(count)
    @given(st.sampled_from(["w.npz", "w.safetensors", "config.json"]), st.binary(max_size=200))
    def run(name, content):
        survives(read_weights, name, content)

    run()


@pytest.mark.parametrize("count", COUNTS)
def test_configs_of_any_json(count):
    @attack(count)
    @given(JSON)
    def run(content):
        text = json.dumps(content).encode("utf-8", "surrogatepass")
        survives(lambda path: load_config(str(path), []), "config.json", text)

    run()


@pytest.mark.parametrize("count", COUNTS)
def test_config_keys_of_any_value(count):
    keys = ["seed", "model", "model.name", "data", "data.name", "optimizer.learning_rate",
            "mesh.rules", "evaluation.splits", "train_steps", "data.subset"]  # fmt: skip

    @attack(count)
    @given(st.dictionaries(st.sampled_from(keys), JSON, min_size=1, max_size=3))
    def run(values):
        tree = {}
        for key, value in values.items():
            section, _, leaf = key.rpartition(".")
            inner = tree.setdefault(section, {}) if section else tree
            if isinstance(inner, dict):
                inner[leaf] = value
        text = json.dumps(tree).encode("utf-8", "surrogatepass")
        survives(lambda path: load_config(str(path), []), "config.json", text)

    run()


@pytest.mark.parametrize("count", COUNTS)
def test_overrides_of_any_text(count):
    @attack(count)
    @given(
        st.sampled_from(["seed", "model.name", "data.subset.fraction", "mesh.rules", "nope"]),
        st.text(max_size=20),
    )
    def run(key, text):
        def read(path):
            load_config(str(path), [f"{key}={text}"])

        survives(read, "config.json", b"{}")

    run()
