"""Plans by the real TPU compiler. They need its wheel but no TPU."""

import importlib.util
from pathlib import Path

import pytest
from plan import real_compilers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: jax[tpu]"
    ),
]


def plan(tmp_path, topology, *overrides):
    return real_compilers.plan(tmp_path, topology, "--config.model.depth=3", *overrides)


def test_a_small_step_compiles_for_a_tpu_slice(tmp_path):
    figures, shown = plan(tmp_path, "v5e:2x4", "--config.data.global_batch_size=64")
    assert (figures["devices"], figures["fits"]) == (8, True)
    assert "64 images a step on 8 x TPU v5e" in shown
    # The scanned layers run three times in both directions, so that their gradients, bfloat16,
    # and those outside of them reach every chip: between 2 and 4 bytes a parameter.
    ring = 2 * 7 / 8 * figures["parameters"] / 1e9
    assert 2 * ring < figures["received_gb"] < 4 * ring
    state, total = figures["memory_state_gib"], figures["memory_gib"]
    # bfloat16 momentum: 10 bytes a parameter, and the batch; tiles can only add to it.
    assert state >= 10 * figures["parameters"] / 2**30
    assert state < total < 0.5
    # Products are kept and attention's logits recomputed: within five percent of the model's.
    assert 0.95 < figures["executed_tflop_a_device"] / figures["model_tflop_a_device"] < 1.05


def test_a_small_step_compiles_for_two_slices(tmp_path):
    figures, shown = plan(
        tmp_path,
        "2*v5e:2x4",
        "--config.data.global_batch_size=64",
        "--config.mesh.data=2",
        "--config.mesh.fsdp=8",
    )
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


def test_a_run_that_does_not_fit_is_reported_without_an_error(tmp_path):
    figures, shown = plan(
        tmp_path,
        "v5e:1x1",
        "--config.data.global_batch_size=16384",
        "--config.model.scan=false",
        "--config.model.dtype=float32",
    )
    assert (figures["devices"], figures["fits"]) == (1, False)
    assert "Does not fit" in shown
