"""Names of topologies and the devices they stand for."""

import sys

import pytest

from vit_jax.errors import ConfigError
from vit_jax.plan.topology import MissingLibraryError, find_devices, parse_topology


@pytest.mark.parametrize(
    ("name", "platform", "generation", "shape", "slices"),
    [
        ("v5e:16x16", "tpu", "v5e", (16, 16), 1),
        ("v4:4x4x8", "tpu", "v4", (4, 4, 8), 1),
        ("v5p:2x2x1", "tpu", "v5p", (2, 2, 1), 1),
        ("2*v5e:16x16", "tpu", "v5e", (16, 16), 2),
        ("cpu:8", "cpu", "cpu", (8,), 1),
        ("cpu", "cpu", "cpu", (), 1),
        ("gpu:4", "gpu", "gpu", (4,), 1),
    ],
)
def test_topology_names_are_parsed(name, platform, generation, shape, slices):
    found = parse_topology(name)
    assert (found.platform, found.generation, found.shape) == (platform, generation, shape)
    assert (found.name, found.slices) == (name, slices)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("v5:4x4", "did you mean 'v5"),
        ("v5e:4x4x4", "expected 2 sides, because TPU v5e is a 2-D torus; use e.g. v5e:16x16"),
        ("v5p:4x4", "expected 3 sides"),
        ("v5e", "expected 2 sides"),
        ("v5e:32x32", "1,024 chips; expected at most 256 chips, the size of a TPU v5e pod"),
        ("cpu:2x2", "expected cpu or cpu:COUNT"),
        ("cpu:0", "expected cpu or cpu:COUNT"),
        ("v5e 4x4", "v5e:16x16"),
        ("2*v5e:32x32", "at most 256 chips"),
        ("v6e:16x32", r"plan for several slices, e.g. 2\*v6e:16x16, or for another TPU"),
        ("0*v5e:4x4", "a number of TPU slices in front of *"),
        ("two*v5e:4x4", "use --topology=v5e:4x4"),
        ("2*cpu:4", "use --topology=cpu:4, and --config.mesh.slices=N"),
    ],
)
def test_the_error_for_a_wrong_name_lists_examples(name, line):
    with pytest.raises(ConfigError, match=line.replace("(", r"\(").replace("of *", r"of \*")):
        parse_topology(name)


def test_more_devices_than_this_machine_has_is_an_error():
    with pytest.raises(ConfigError, match=r"cpu:4096 on a machine with \d+ such devices"):
        find_devices(parse_topology("cpu:4096"))


def test_a_machine_without_gpus_cannot_plan_for_gpus():
    with pytest.raises(ConfigError, match="gpu:2 on a machine with 0 such devices"):
        find_devices(parse_topology("gpu:2"))


def test_without_the_tpu_compiler_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "libtpu", None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with pytest.raises(MissingLibraryError, match=r"pip install 'vit_jax\[tpu\]'"):
        find_devices(parse_topology("v5e:2x2"))
