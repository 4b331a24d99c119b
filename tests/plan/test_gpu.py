"""Plans by XLA's real GPU compiler. They need JAX's CUDA plugin but no GPU or driver."""

from pathlib import Path

import pytest
from plan import real_compilers

from vit_jax.plan.topology import has_cuda_plugin

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not has_cuda_plugin(), reason="JAX's CUDA plugin is not installed: jax[cuda13]"
    ),
]


def plan(tmp_path, topology, *overrides):
    return real_compilers.plan(tmp_path, topology, "--config.model.depth=2", *overrides)


def test_a_small_step_compiles_for_a_node_of_gpus(tmp_path):
    figures, shown = plan(tmp_path, "h200:8", "--config.data.global_batch_size=64")
    assert (figures["devices"], figures["fits"]) == (8, True)
    assert "64 images a step on 8 x H200 SXM" in shown
    # bfloat16 or float32 gradients reach every GPU: between 2 and 4 bytes a parameter.
    ring = 2 * 7 / 8 * figures["parameters"] / 1e9
    assert 2 * ring <= figures["received_gb"] < 4.1 * ring
    assert "all-gather" not in shown  # Each GPU keeps its own activations.
    # bfloat16 momentum: 10 bytes a parameter, and the batch.
    assert figures["memory_state_gib"] >= 10 * figures["parameters"] / 2**30
    assert figures["memory_state_gib"] < figures["memory_gib"] < 1
    assert figures["memory_of_chip_gib"] == round(0.75 * 141e9 / 2**30, 3)
    # Products are kept. cuDNN's backward pass computes the logits again, but nothing computes the
    # gradient to the images. Without cuDNN's kernels it would be 0.82.
    assert 0.95 < figures["executed_tflop_a_device"] / figures["model_tflop_a_device"] < 1.05


@pytest.mark.parametrize("name", ["a100", "b200", "l4"])
def test_a_small_step_compiles_for_every_architecture(tmp_path, name):
    figures, _ = plan(tmp_path, name, "--config.data.global_batch_size=8")
    assert (figures["devices"], figures["fits"], figures["received_gb"]) == (1, True, 0)
    # Without cuDNN's kernels, which compute the logits again, it would be 0.82.
    assert figures["executed_tflop_a_device"] > 0.95 * figures["model_tflop_a_device"]


def test_traffic_between_nodes_is_counted_apart(tmp_path):
    figures, shown = plan(tmp_path, "h100:2x4", "--config.data.global_batch_size=64")
    assert (figures["devices"], figures["fits"]) == (8, True)
    # Every node sends the sum of its gradients once around: of 2 to 4 bytes a parameter each of the
    # two GPUs receives half, twice 3/4 of it.
    ring = 2 * 3 / 4 / 2 * figures["parameters"] / 1e9
    assert 2 * ring <= figures["dcn_gb"] < 4.1 * ring
    assert figures["dcn_gb"] < figures["received_gb"]
    assert "50.00 GB/s" in shown
