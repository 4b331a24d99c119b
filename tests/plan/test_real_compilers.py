"""Plans by XLA's real compilers for TPUs and GPUs.

They need libtpu or JAX's CUDA plugin, but no TPU, GPU or driver.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from processes import ROOT

from vit_jax.plan.topology import has_cuda_plugin

pytestmark = pytest.mark.slow
on_tpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: jax[tpu]"
)
on_gpu = pytest.mark.skipif(
    not has_cuda_plugin(), reason="JAX's CUDA plugin is not installed: jax[cuda13]"
)


@pytest.fixture
def plan(tmp_path):
    """A function that plans a ViT-Ti/16 run; it returns the figures, and what is printed."""

    def call(topology, batch_size, *overrides):
        path = tmp_path / "plan.json"
        # The flags of the tests are for CPUs.
        environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
        recipe = f"--config={ROOT / 'configs/augreg.py'}:Ti/16"
        command = [sys.executable, "-m", "vit_jax", "plan", recipe, f"--topology={topology}"]
        size = f"--config.data.global_batch_size={batch_size}"
        done = subprocess.run(
            [*command, f"--output={path}", size, *overrides],
            capture_output=True,
            text=True,
            timeout=1500,
            env={**environment, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith("compiling for ")
        return json.loads(path.read_text()), done.stdout

    return call


@pytest.mark.parametrize(
    ("topology", "depth"),
    [pytest.param("v5e:2x4", 3, marks=on_tpu), pytest.param("h200:8", 2, marks=on_gpu)],
)
def test_a_small_step_compiles_for_eight_devices(plan, topology, depth):
    figures, shown = plan(topology, 64, f"--config.model.depth={depth}")
    assert (figures["devices"], figures["fits"]) == (8, True)
    assert "64 images a step on 8 x " in shown
    if topology.startswith("h200"):
        assert "all-gather" not in shown  # Each GPU keeps its own activations.
    # Gradients, bfloat16 or float32, reach every device: between 2 and 4 bytes a parameter.
    ring = 2 * 7 / 8 * figures["parameters"] / 1e9
    assert 2 * ring <= figures["received_gb"] < 4.1 * ring
    # bfloat16 momentum: 10 bytes a parameter, and the batch; tiles can only add to it.
    assert figures["memory_state_gib"] >= 10 * figures["parameters"] / 2**30
    assert figures["memory_state_gib"] < figures["memory_gib"] < 1
    # Products are kept and attention's logits computed again, but nothing computes the gradient to
    # the images. Without cuDNN's kernels it would be 0.82.
    assert 0.95 < figures["executed_tflop_a_device"] / figures["model_tflop_a_device"] < 1.05


@on_tpu
def test_a_small_step_compiles_for_two_slices(plan):
    sizes = ("--config.model.depth=3", "--config.mesh.data=2", "--config.mesh.fsdp=8")
    figures, shown = plan("2*v5e:2x4", 64, *sizes)
    assert (figures["devices"], figures["slices"], figures["mesh_data"]) == (16, 2, 2)
    assert "mesh data=2, fsdp=8, tensor=1 on 2 slices or nodes" in shown
    # Each chip exchanges its eighth of the gradients, bfloat16 or float32, which are padded to
    # whole tiles. Without slices an eighth would not be enough: all of them would cross.
    shard = figures["parameters"] / 8 / 1e9
    assert 2 * shard < figures["dcn_gb"] < 4 * shard
    assert figures["dcn_gb"] < 0.1 * figures["received_gb"]
    # The compiler reduces and scatters inside a slice, then sums over the two slices.
    rows = [line.split() for line in shown.splitlines()]
    assert any(row[:2] == ["all-reduce", "2"] and "slices" in row for row in rows)
    assert any(row[:2] == ["reduce-scatter", "8"] for row in rows)
    assert any(row[0] == "dcn" and "3.12" in row for row in rows if row)


@on_tpu
def test_a_run_that_does_not_fit_is_reported_without_an_error(plan):
    sizes = (
        "--config.model.depth=3",
        "--config.data.image_size=448",
        "--config.model.dtype=float32",
    )
    figures, shown = plan("v5e:1x1", 16384, *sizes)
    assert (figures["devices"], figures["fits"]) == (1, False)
    assert "Does not fit" in shown


@on_gpu
@pytest.mark.parametrize("name", ["a100", "b200", "l4"])
def test_a_small_step_compiles_for_every_architecture(plan, name):
    figures, _ = plan(name, 8, "--config.model.depth=2")
    assert (figures["devices"], figures["fits"], figures["received_gb"]) == (1, True, 0)
    # Without cuDNN's kernels, which compute the logits again, it would be 0.82.
    assert figures["executed_tflop_a_device"] > 0.95 * figures["model_tflop_a_device"]


@on_gpu
def test_traffic_between_nodes_is_counted_apart(plan):
    figures, shown = plan("h100:4 nodes x 2", 64, "--config.model.depth=2")
    assert (figures["devices"], figures["fits"]) == (8, True)
    # Every node sends the sum of its gradients once around: of 2 to 4 bytes a parameter each of the
    # two GPUs receives half, twice 3/4 of it.
    ring = 2 * 3 / 4 / 2 * figures["parameters"] / 1e9
    assert 2 * ring <= figures["dcn_gb"] < 4.1 * ring
    assert figures["dcn_gb"] < figures["received_gb"]
    assert "50.00 GB/s" in shown
