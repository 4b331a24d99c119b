import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vit_jax

_ROOT = Path(__file__).resolve().parents[1]
_HEAVY = ("tensorflow", "torch", "matplotlib", "jax", "flax", "orbax", "grain", "sklearn")


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    ).stdout


def test_importing_the_package_imports_no_heavy_modules():
    loaded = json.loads(run("import json, sys, vit_jax; print(json.dumps(list(sys.modules)))"))
    assert "vit_jax" in loaded
    assert [name for name in _HEAVY if name in loaded] == []


def test_the_models_need_neither_tensorflow_nor_torch_nor_matplotlib():
    code = "import json, sys, vit_jax; vit_jax.create_model; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(run(code))
    assert "flax" in loaded
    assert {"tensorflow", "torch", "matplotlib", "grain", "tensorflow_datasets"} & set(loaded) == (
        set()
    )


# Modules that take long to import, and that training without TensorBoard and curves does not need.
_NOT_FOR_TRAINING = (
    "IPython.core", "matplotlib", "pandas", "scipy.ndimage", "scipy.stats", "sklearn",
    "tensorboard", "tensorflow", "torch",
)  # fmt: skip


def test_help_and_a_run_import_only_what_they_need(tmp_path, digits_dir):
    code = f"""
import contextlib, io, sys
from vit_jax.__main__ import main
loaded = lambda names: [name for name in names if name in sys.modules]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main(["train", "--help"])
print(loaded({_HEAVY!r}))
with contextlib.redirect_stdout(io.StringIO()):
    code = main(["train", "--config=tests/e2e/tiny.py:unmixed", "--workdir={tmp_path}/run",
                 "--config.data.data_dir={digits_dir}", "--config.train_steps=1"])
print(code, loaded({_NOT_FOR_TRAINING!r}))
"""
    assert run(code).splitlines() == ["[]", "0 []"]


def test_every_public_name_exists_and_is_listed():
    for name in vit_jax.__all__:
        assert getattr(vit_jax, name) is not None
    assert dir(vit_jax) == sorted(vit_jax.__all__)
    assert vit_jax.__version__.count(".") == 2


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'vit_jax' has no attribute 'no_such_name'"):
        vit_jax.no_such_name  # noqa: B018
