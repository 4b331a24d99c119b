import os
import subprocess
import sys

import pytest
from processes import ROOT

import vit_jax

_HEAVY = ("tensorflow", "torch", "matplotlib", "jax", "flax", "orbax", "grain", "sklearn")


def run(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment
    )
    return done.stdout


@pytest.mark.parametrize(
    ("code", "left_out"),
    [
        ("vit_jax", _HEAVY),
        ("vit_jax.create_model", ("tensorflow", "torch", "matplotlib", "grain", "sklearn")),
    ],
)
def test_the_package_and_its_models_import_no_heavy_modules(code, left_out):
    loaded = run(f"import sys, vit_jax; {code}; print(*sys.modules)").split()
    assert "vit_jax" in loaded
    assert [name for name in left_out if name in loaded] == []


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
print(loaded({(*_HEAVY, "numpy", "PIL")!r}))
with contextlib.redirect_stdout(io.StringIO()):
    code = main(["train", "--config=tests/e2e/tiny.py:unmixed", "--workdir={tmp_path}/run",
                 "--config.data.data_dir={digits_dir}", "--config.train_steps=1"])
print(code, loaded({_NOT_FOR_TRAINING!r}))
"""
    assert run(code).splitlines() == ["[]", "0 []"]


def test_public_names_are_listed_and_an_unknown_one_is_an_attribute_error():
    assert dir(vit_jax) == sorted(vit_jax.__all__)
    for name in vit_jax.__all__:
        assert getattr(vit_jax, name) is not None
    with pytest.raises(AttributeError, match="module 'vit_jax' has no attribute 'no_such_name'"):
        vit_jax.no_such_name  # noqa: B018
