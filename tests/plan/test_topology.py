"""Names of topologies and the devices they stand for."""

import dataclasses
import os

import pytest
from plan.test_estimate import config

from vit_jax.config.mesh import MeshConfig
from vit_jax.errors import ConfigError
from vit_jax.plan.gpu_target import GPU_TARGETS, target_config
from vit_jax.plan.topology import (
    chip_of,
    find_devices,
    prepare,
    with_nodes,
)
from vit_jax.plan.topology_names import parse_topology
from vit_jax.train.chips import GPUS


@pytest.mark.parametrize(
    ("name", "platform", "generation", "shape", "slices"),
    [
        ("v5e:16x16", "tpu", "v5e", (16, 16), 1),
        ("v4:4x4x8", "tpu", "v4", (4, 4, 8), 1),
        ("2*v5e:16x16", "tpu", "v5e", (16, 16), 2),
        ("cpu:8", "cpu", "cpu", (8,), 1),
        ("gpu", "gpu", "gpu", (), 1),
        ("h200:8", "gpu", "h200", (8,), 1),
        # GPUs of a node, then nodes.
        ("h100:8x4", "gpu", "h100", (8,), 4),
        ("h100:4x16", "gpu", "h100", (4,), 16),
        ("h100:8 nodes x 4", "gpu", "h100", (4,), 8),
        ("l4", "gpu", "l4", (1,), 1),
        ("h100-pcie:2", "gpu", "h100-pcie", (2,), 1),
    ],
)
def test_topology_names_are_parsed(name, platform, generation, shape, slices):
    found = parse_topology(name)
    assert (found.platform, found.generation, found.shape) == (platform, generation, shape)
    assert (found.name, found.slices) == (name, slices)


@pytest.mark.parametrize(
    ("name", "understood", "shape", "slices"),
    [
        # Table of accelerator types in cloud.google.com/tpu/docs.
        ("v5litepod-1", "v5e:1x1", (1, 1), 1),
        ("v5litepod-8", "v5e:2x4", (2, 4), 1),
        ("v5litepod-16", "v5e:4x4", (4, 4), 1),
        ("v5litepod-128", "v5e:8x16", (8, 16), 1),
        ("v5litepod-256", "v5e:16x16", (16, 16), 1),
        ("v5e-256", "v5e:16x16", (16, 16), 1),
        ("2*v6e-32", "2*v6e:4x8", (4, 8), 2),
        ("tpu-v5-lite-podslice:4x8", "v5e:4x8", (4, 8), 1),
        ("tpu-v5p-slice:4x4x4", "v5p:4x4x4", (4, 4, 4), 1),
        # These count cores, two of a chip.
        ("v4-8", "v4:2x2x1", (2, 2, 1), 1),
        ("v4-32", "v4:2x2x4", (2, 2, 4), 1),
        ("v5p-16", "v5p:2x2x2", (2, 2, 2), 1),
        ("v5p-64", "v5p:2x4x4", (2, 4, 4), 1),
        ("v5p-2048", "v5p:8x8x16", (8, 8, 16), 1),
    ],
)
def test_the_names_of_the_cloud_are_understood(name, understood, shape, slices):
    found = parse_topology(name)
    assert (found.name, found.shape, found.slices) == (understood, shape, slices)
    assert found.note == f"--topology={name} is {understood}"
    assert parse_topology(understood) == dataclasses.replace(found, note="")


@pytest.mark.parametrize(
    ("name", "gpus", "nodes"),
    [
        ("h100:8x4", 8, 4),
        ("h100:4x8", 8, 4),
        ("h100:4 nodes x 8", 8, 4),
        ("h100:4 Nodes of 8 GPUs", 8, 4),
        ("h100:3x8", 8, 3),
        ("h100:16x8", 8, 16),
        ("h100:2x4", 4, 2),
        ("h100:4x16", 4, 16),
        ("h100:8 nodes x 4", 4, 8),
        ("h100:4 nodes x 2", 2, 4),
    ],
)
def test_the_larger_number_that_a_node_can_have_is_that_of_its_gpus(name, gpus, nodes):
    found = parse_topology(name)
    assert (found.shape, found.slices) == ((gpus,), nodes)
    assert found.note == f"--topology={name} is {nodes} nodes with {gpus} GPUs each"
    assert parse_topology(found.name) == dataclasses.replace(
        found, note=found.note.replace(name, found.name)
    )


def test_one_node_whose_gpus_may_be_nodes_has_a_note():
    found = parse_topology("l4:1x8")
    assert (found.name, found.shape, found.slices) == ("l4:8", (8,), 1)
    assert found.note == (
        "--topology=l4:1x8 is one node with 8 GPUs; 8 nodes with one are 'l4:8 nodes x 1'"
    )
    assert parse_topology("l4:8 nodes x 1").slices == 8
    assert parse_topology("l4:8x1") == dataclasses.replace(found, note="")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("v5:4x4", "did you mean 'v5"),
        ("v5e:4x4x4", "expected 2 sides, because TPU v5e is a 2-D torus; use e.g. v5e:16x16"),
        ("v5p:4x4", "expected 3 sides"),
        ("2*v5e:32x32", "1,024 chips; expected at most 256 chips, the size of a TPU v5e pod"),
        ("cpu:2x2", "expected cpu or cpu:COUNT"),
        ("cpu:0", "expected cpu or cpu:COUNT"),
        ("v5e 4x4", "v5e:16x16"),
        ("H100:8", "did you mean 'h100'"),
        ("h100:32", "with 32 GPUs in a node; expected 1, 2, 4 or 8 GPUs in each node, as vendors"),
        ("h100:32", "use e.g. h100:8x4"),
        ("h100:3", "with 3 GPUs in a node; .*; use e.g. h100:4"),
        ("h100:3x5", "with 3 GPUs in a node; .*; use e.g. h100:8x2"),
        ("h100:4 nodes x 6", "with 6 GPUs in a node; .*; use e.g. h100:8x3"),
        ("v5p-24", "its number of chips does not determine them; use e.g. v5p:4x4x8"),
        ("v5p-9", "expected an even number, because v5p counts cores, .* two; use e.g. v5p-8"),
        ("v4-1", "expected an even number, because v4 counts cores, .* two; use e.g. v4-8"),
        ("v5litepod-512", "512 chips; expected at most 256 chips"),
        ("tpu-v5-lite-podslice", "expected 2 sides"),
        ("h100:8x0", "expected h100:GPUS or h100:GPUSxNODES; use e.g. h100:8x4 for 4 nodes with 8"),
        ("v5e:3x5", "a slice of TPU v5e: 1x1, 2x2, 2x4, .*; use e.g. v5e:4x4"),
        ("v6e:2x8", "a slice of TPU v6e"),
        ("v5e:1x2", "a slice of TPU v5e"),
        ("v6e:16x32", r"plan for several slices, e.g. 2\*v6e:16x16, or for another TPU"),
        ("0*v5e:4x4", "a number of TPU slices in front of *"),
        ("two*v5e:4x4", "use --topology=v5e:4x4"),
        ("2*h100:8", "; use --topology=h100:8x2"),
        ("8*h100", "; use --topology=h100:8"),
        ("2*cpu:4", "use --topology=cpu:4, and --config.mesh.slices=N"),
    ],
)
def test_the_error_for_a_wrong_name_lists_examples(name, line):
    with pytest.raises(ConfigError, match=line.replace("(", r"\(").replace("of *", r"of \*")):
        parse_topology(name)


@pytest.mark.parametrize("name", ["cpu:4096", "gpu:2"])
def test_more_devices_than_this_machine_has_is_an_error(name):
    with pytest.raises(ConfigError, match=rf"{name} on a machine with \d+ such devices"):
        find_devices(parse_topology(name))


def test_the_flags_of_the_gpu_compiler_come_before_those_of_the_user(monkeypatch):
    """XLA uses the last value of a flag."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4 --xla_dump_to=dump")
    prepare(parse_topology("h100:8"))
    assert os.environ["XLA_FLAGS"].split() == [
        "--xla_gpu_autotune_level=0",
        "--xla_gpu_enable_triton_gemm=false",
        "--xla_gpu_autotune_level=4",
        "--xla_dump_to=dump",
    ]
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=dump")
    prepare(parse_topology("gpu"))
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=dump"


def test_the_nodes_of_the_topology_become_slices_of_the_mesh():
    four = parse_topology("h100:8x4")
    assert with_nodes(config(), four).mesh.slices == 4
    own = config().replace(mesh=MeshConfig(slices=4))
    assert with_nodes(own, four) == own
    assert with_nodes(config(), parse_topology("gpu")) == config()
    with pytest.raises(
        ConfigError, match=r"'mesh\.slices' is 4, but --topology=h100:8x2 has 2 nodes"
    ):
        with_nodes(own, parse_topology("h100:8x2"))


def test_every_gpu_of_the_table_has_a_target_that_cudnn_supports():
    """The rules of `choose_attention` need compute capability 8.0."""
    assert set(GPUS) == set(GPU_TARGETS)
    assert min(target.architecture.capability for target in GPU_TARGETS.values()) >= (8, 0)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("a100", ["core_count: 108", "fpus_per_core: 64", "shared_memory_per_core: 167936",
                  "shared_memory_per_block_optin: 166912", "l2_cache_size: 41943040",
                  "cuda_compute_capability { major: 8 minor: 0 feature_extension: NONE }"]),
        ("h200", ["core_count: 132", "shared_memory_per_core: 233472", "clock_rate_ghz: 1.98",
                  "threads_per_core_limit: 2048", "device_memory_size: 141000000000",
                  "feature_extension: ACCELERATED_FEATURES"]),
    ],
)  # fmt: skip
def test_the_description_for_xla_has_the_published_figures(name, lines):
    chip = GPUS[name]
    text = target_config(GPU_TARGETS[name], "toy", chip.memory_bytes, chip.memory_bandwidth)
    for line in [*lines, 'platform_name: "CUDA"', 'device_description_str: "toy"']:
        assert line in text, line


def test_jax_takes_three_quarters_of_a_gpus_memory_unless_it_is_told_otherwise(monkeypatch):
    for variable in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(variable, raising=False)
    topology = parse_topology("h100:8")
    assert chip_of(topology, []).memory_bytes == 60e9
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
    assert chip_of(topology, []).memory_bytes == pytest.approx(76e9)
