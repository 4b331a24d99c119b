"""Steps that are compiled ahead: which one fits, and what happens if none does."""

import json
import shutil

import jax
import numpy as np
import pytest
from processes import UNMIXED
from shared_programs import shared_program

from vit_jax.config.file import load_config
from vit_jax.errors import UserError
from vit_jax.parallel.mesh import make_mesh, to_devices
from vit_jax.run.compile_cache import without_compile_cache
from vit_jax.train import precompiled
from vit_jax.train.precompiled import load_step, save_step

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program():
    config = load_config(UNMIXED, ["train_steps=20"])
    return shared_program(config, make_mesh(config.mesh), num_classes=10, num_examples=1437)


@pytest.fixture(scope="module")
def saved(program, tmp_path_factory):
    """A folder with the compiled step, and the lowered step."""
    folder, lowered = tmp_path_factory.mktemp("saved"), program.lower()
    with without_compile_cache():
        compiled = program.compile(lowered)
    path = save_step(folder, lowered, compiled, program.mesh, {})
    assert path.parent == folder
    return folder, lowered


@pytest.fixture
def copy(saved, tmp_path):
    """A copy of that folder that may be changed."""
    shutil.copytree(saved[0], tmp_path / "copy")
    return tmp_path / "copy"


def test_the_loaded_step_computes_the_same(program, saved, tmp_path):
    folder, lowered = saved
    # A step for other devices in the same folder is passed over.
    (about,) = folder.glob("*.json")
    other = {**json.loads(about.read_text()), "devices": "16 TPU v5 lite"}
    (folder / "other.json").write_text(json.dumps(other))
    (folder / "other.step").write_bytes(b"")
    loaded = load_step(str(folder), lowered, program.mesh, {})
    batch = to_devices(program.example_batch(), program.mesh)
    results = [step(program.init(), batch) for step in (loaded, program.compiled)]
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_a_folder_holds_steps_of_several_compiler_options(program, saved, copy):
    _, lowered = saved
    with without_compile_cache():
        compiled = program.compile(lowered)
    save_step(copy, lowered, compiled, program.mesh, {"xla_cpu_enable_fast_min_max": True})
    assert len({json.loads(p.read_text())["compiler_options"] for p in copy.glob("1-*.json")}) == 2
    assert load_step(str(copy), lowered, program.mesh, {}) is not None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"jaxlib": "0.1.2"}, "jaxlib: 0.1.2 there, "),
        ({"program": "0"}, "the program differs: another config, data set or version of vit_jax"),
        ({"devices": "16 TPU v5 lite"}, "devices: 16 TPU v5 lite there, 1 cpu here"),
        ({"cpu": "x86_64 of another kind"}, "cpu: x86_64 of another kind there, "),
        ({"sha256": "0"}, "it is damaged"),
    ],
)
def test_a_step_that_does_not_fit_is_not_used_and_the_log_says_why(
    changed, words, program, saved, copy, caplog
):
    for path in copy.glob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    assert load_step(str(copy), saved[1], program.mesh, {}) is None
    (line,) = caplog.messages
    assert line.startswith("no step compiled ahead is used: ")
    assert words in line


def test_a_damaged_description_hides_no_other_step(program, saved, copy, caplog):
    (copy / "0.json").write_text("{")
    (copy / "0.step").write_bytes(b"")
    assert load_step(str(copy), saved[1], program.mesh, {}) is not None
    for path in copy.glob("*.json"):
        path.write_text("{")
    assert load_step(str(copy), saved[1], program.mesh, {}) is None
    assert f"{copy}/" in caplog.messages[0]
    assert ".json is damaged" in caplog.messages[0]


def test_other_options_and_flags_do_not_fit(program, saved, monkeypatch, caplog):
    folder, lowered = saved
    assert load_step(str(folder), lowered, program.mesh, {"xla_cpu_enable_fast_math": True}) is None
    assert "compiler_options: {} there" in caplog.messages[0]
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_some_flag=true")
    assert load_step(str(folder), lowered, program.mesh, {}) is None
    assert "(flags: none there, --xla_tpu_some_flag=true here)" in caplog.messages[1]


def test_a_folder_without_steps_is_no_error_but_a_wrong_address_is(
    program, saved, tmp_path, caplog
):
    assert load_step(str(tmp_path), saved[1], program.mesh, {}) is None
    assert f"plan --save has saved none in {tmp_path}" in caplog.messages[0]
    with pytest.raises(UserError, match="the address 'http://x'"):
        load_step("http://x", saved[1], program.mesh, {})


def test_all_hosts_compile_if_one_cannot_load_the_step(program, saved, monkeypatch, caplog):
    monkeypatch.setattr(precompiled, "gather", lambda name, value: [value, "host 1 has no file"])
    assert load_step(str(saved[0]), saved[1], program.mesh, {}) is None
    assert caplog.messages == ["no step compiled ahead is used: host 1 has no file"]


def test_steps_in_a_bucket(program, saved, bucket):
    folder = precompiled.user_path(f"{bucket.url}/compiled")
    for path in saved[0].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    assert load_step(f"{bucket.url}/compiled", saved[1], program.mesh, {}) is not None
