import numpy as np
import pytest
from fake_devices import mesh_of
from jax.sharding import PartitionSpec

from vit_jax.config.mesh import MeshConfig
from vit_jax.errors import ConfigError
from vit_jax.parallel.mesh import batch_sharding, check_batch_size, make_mesh, to_devices


@pytest.mark.parametrize(
    ("devices", "sizes", "expected"),
    [
        (1, {}, (1, 1, 1)),
        (8, {"fsdp": 2, "tensor": 2}, (2, 2, 2)),
        (8, {"data": 1, "fsdp": -1}, (1, 8, 1)),
        (8, {"data": 4, "fsdp": 2, "tensor": 1}, (4, 2, 1)),
        (6, {"tensor": 3}, (2, 1, 3)),
    ],
)
def test_an_axis_of_minus_one_gets_the_remaining_devices(devices, sizes, expected):
    mesh = mesh_of(devices, **sizes)
    assert mesh.axis_names == ("data", "fsdp", "tensor")
    assert mesh.devices.shape == expected


@pytest.mark.parametrize(
    ("devices", "sizes", "shown"),
    [
        (1, {"fsdp": 2}, "data=-1, fsdp=2, tensor=1"),
        (8, {"data": 2, "fsdp": 2}, "data=2, fsdp=2, tensor=1"),
        (8, {"data": 16}, "data=16, fsdp=1, tensor=1"),
    ],
)
def test_sizes_that_do_not_match_the_number_of_devices_are_an_error(devices, sizes, shown):
    with pytest.raises(ConfigError) as caught:
        mesh_of(devices, **sizes)
    assert caught.value.got == f"mesh {shown} on {devices} devices"
    assert caught.value.expected == f"sizes whose product is {devices}"


def test_batches_are_sharded_over_data_and_fsdp_but_not_tensor():
    assert batch_sharding(mesh_of(8)).spec == PartitionSpec(("data", "fsdp"))
    sharding = batch_sharding(make_mesh(MeshConfig()))
    assert sharding.shard_shape((16, 3)) == (16, 3)


@pytest.mark.parametrize(
    ("sizes", "batch", "parts", "message"),
    [
        ({}, 20, 1, "is 20 on 8 devices; expected a multiple of 8; use 16 or 24"),
        ({}, 3, 1, "is 3 on 8 devices; expected a multiple of 8; use 8"),
        ({"fsdp": 2, "tensor": 2}, 6, 1, "is 6 on 4 devices; expected a multiple of 4; use 4 or 8"),
        ({}, 8, 2, "is 8 on 8 devices in 2 microbatches; expected a multiple of 16; use 16"),
    ],
)
def test_a_batch_that_does_not_divide_is_an_error_with_sizes_that_do(sizes, batch, parts, message):
    with pytest.raises(ConfigError) as caught:
        check_batch_size(mesh_of(8, **sizes), batch, "evaluation.batch_size", parts)
    assert str(caught.value) == f"evaluation.batch_size {message}"


def test_a_batch_is_not_changed_by_sharding():
    batch = {
        "image": np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3),
        "label": np.array([3, 4], np.int32),
        "mask": np.array([True, False]),
    }
    mesh = make_mesh(MeshConfig())
    found = to_devices(batch, mesh)
    for name, rows in batch.items():
        np.testing.assert_array_equal(found[name], rows)
        assert found[name].dtype == rows.dtype
        assert found[name].sharding == batch_sharding(mesh)
