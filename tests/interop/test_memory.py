"""Loading holds little more than the weights themselves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# ViT-L/16: 304 million parameters, 1.2 GB, under the names of each format.
_WRITE = """
import sys
import numpy as np
from interop.files import to_timm, write_npz, write_safetensors

import interop.files as files
files.WIDTH, files.DEPTH, files.HIDDEN, files.HEADS = 1024, 24, 4096, 16
files.PATCH, files.GRID, files.CLASSES = 16, (14, 14), 1000
rng = np.random.default_rng(0)
files.weights = lambda shapes: {n: rng.random(s, np.float32) for n, s in shapes.items()}
tensors = files.tiny(grid=(14, 14))
if sys.argv[1].endswith(".npz"):
    write_npz(sys.argv[1], tensors)
else:
    from safetensors.numpy import save_file
    save_file(to_timm(tensors), sys.argv[1])
"""

_LOAD = """
import json, os, sys, time
import jax
from flax import nnx
from vit_jax.interop.load import load

def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024

jax.numpy.zeros(1).block_until_ready()
before, start = status("VmRSS"), time.monotonic()
loaded = load(sys.argv[1])
jax.block_until_ready(jax.tree.leaves(nnx.state(loaded.model)))
seconds = time.monotonic() - start
print(json.dumps({
    "name": loaded.options.name, "seconds": seconds,
    "ratio": (status("VmHWM") - before) / os.path.getsize(sys.argv[1]),
}))
"""


def python(script, *arguments):
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read in /proc")
@pytest.mark.parametrize("name", ["weights.npz", "weights.safetensors"])
def test_the_peak_is_at_most_one_and_a_half_times_the_file(tmp_path, name):
    path = tmp_path / name
    try:
        python(_WRITE, path)
        assert path.stat().st_size == pytest.approx(4 * 304_326_632, rel=1e-3)
        found = json.loads(python(_LOAD, path))
    finally:
        path.unlink(missing_ok=True)
    print(f"{name}: {found['seconds']:.1f} s, peak {found['ratio']:.2f} x the file")
    assert found["name"] == "ViT-L/16"
    assert 1 < found["ratio"] <= 1.5
