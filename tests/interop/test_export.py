"""A StableHLO file runs in a process without this package."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from interop.files import logits
from weight_files import random_loaded

from vit_jax.errors import WeightsError
from vit_jax.interop.export import export_stablehlo

_READER = """
import sys
import numpy as np
from jax import export

images = np.load("images.npy")
with open("model.stablehlo", "rb") as file:
    exported = export.deserialize(bytearray(file.read()))
np.savez("logits.npz", one=exported.call(images[:1]), all=exported.call(images))
assert not any(name.startswith(("vit_jax", "flax")) for name in sys.modules)
"""


@pytest.mark.parametrize("name", ["ViT-Ti/8", pytest.param("BiT-R-Nano", marks=pytest.mark.slow)])
def test_an_exported_model_runs_at_any_batch_size_without_this_package(name, tmp_path):
    loaded = random_loaded(name, num_classes=7, image_size=(24, 32))
    images = np.random.default_rng(1).uniform(-1, 1, (3, 24, 32, 3)).astype(np.float32)
    np.save(tmp_path / "images.npy", images)
    path = tmp_path / "model.stablehlo"
    assert export_stablehlo(loaded, path) == ("batch", "7")
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (tmp_path / "model.stablehlo.sha256").read_text() == f"{checksum}  {path.name}\n"
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", _READER], cwd=tmp_path, env=clean, check=True)
    with np.load(tmp_path / "logits.npz") as file:
        found = dict(file)
    want = logits(loaded.model, images)
    assert found["one"].shape == (1, 7)
    np.testing.assert_allclose(found["all"], want, atol=1e-5 * np.abs(want).max())
    np.testing.assert_allclose(found["one"], want[:1], atol=1e-5 * np.abs(want).max())


def test_an_existing_file_is_not_overwritten(tmp_path):
    (tmp_path / "model.stablehlo").write_text("mine")
    with pytest.raises(WeightsError, match="exists"):
        export_stablehlo(random_loaded(), tmp_path / "model.stablehlo")
    assert (tmp_path / "model.stablehlo").read_text() == "mine"
