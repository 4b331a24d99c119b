"""Meshes over several TPU slices or GPU nodes, made of devices that are not there."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from fake_devices import gpu_nodes, v5e_slices

from vit_jax.config.mesh import MeshConfig
from vit_jax.errors import ConfigError
from vit_jax.parallel.mesh import batch_sharding, host_rows, make_mesh
from vit_jax.parallel.slices import slice_of_devices


def slices_of(mesh):
    """The slice of each device, in the order of the mesh."""
    return [device.slice_index for device in mesh.devices.flat]


def test_devices_state_their_slice_and_slices_are_numbered_from_zero():
    devices = v5e_slices(3, 2)[4:]  # Of slices 1 and 2.
    assert slice_of_devices(devices) == slice_of_devices(devices, 2) == [0] * 4 + [1] * 4
    assert slice_of_devices(list(reversed(gpu_nodes(2, 2)))) == [1, 1, 0, 0]


def test_devices_that_state_no_slice_are_one_or_are_cut_in_order():
    cpus = jax.devices()[:1] * 8
    assert slice_of_devices(cpus) == slice_of_devices(cpus, 1) == [0] * 8
    assert slice_of_devices(cpus, 2) == [0] * 4 + [1] * 4
    assert slice_of_devices(cpus, 8) == list(range(8))


def test_gpus_that_are_only_compiled_for_are_cut_into_nodes():
    """JAX gives each node a process, but no number."""
    gpus = [dataclasses.replace(device, slice_index=0) for device in gpu_nodes(2, 4)]
    assert slice_of_devices(gpus) == [0] * 8
    assert slice_of_devices(gpus, 2) == [0] * 4 + [1] * 4
    mesh = make_mesh(MeshConfig(fsdp=4, slices=2), gpus)
    assert [device.process_index for device in mesh.devices.flat] == [0] * 4 + [1] * 4


@pytest.mark.parametrize(
    ("devices", "slices", "message"),
    [
        (gpu_nodes(2, 4), 1, "'mesh.slices' is 1, but .* 2 slices or nodes; expected -1 or 2; set"),
        (gpu_nodes(1, 4), 2, "is 2, but the 4 devices are one slice or node; expected -1 or 1"),
        (gpu_nodes(2, 4)[:6], -1, r"slices or nodes with different numbers of devices \(4, 2\)"),
        (jax.devices()[:1] * 8, 3, "is 3 on 8 devices; expected a divisor"),
    ],
)  # fmt: skip
def test_a_wrong_number_of_slices_is_an_error(devices, slices, message):
    with pytest.raises(ConfigError, match=message):
        slice_of_devices(devices, slices)


@pytest.mark.parametrize("devices", [gpu_nodes(2, 8), v5e_slices(4, 2)])
@pytest.mark.parametrize(
    ("sizes", "shape"),
    [({}, (16, 1, 1)), ({"fsdp": 2, "tensor": 2}, (4, 2, 2)), ({"data": 4, "fsdp": -1}, (4, 4, 1))],
)
def test_data_is_divided_among_the_slices_and_the_other_axes_stay_inside(devices, sizes, shape):
    mesh = make_mesh(MeshConfig(**sizes), devices)
    assert mesh.axis_names == ("data", "fsdp", "tensor")
    assert mesh.devices.shape == shape
    assert set(mesh.devices.flat) == set(devices)
    assert slices_of(mesh) == sorted(slices_of(mesh))
    assert slices_of(mesh) == slice_of_devices(list(mesh.devices.flat))
    # Devices along fsdp and tensor are of one slice.
    for row in mesh.devices:
        assert len({device.slice_index for device in row.flat}) == 1


def test_fsdp_takes_the_slices_that_data_leaves():
    mesh = make_mesh(MeshConfig(data=1, fsdp=-1), gpu_nodes(2, 4))
    assert (mesh.devices.shape, slices_of(mesh)) == ((1, 8, 1), [0] * 4 + [1] * 4)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), gpu_nodes(4, 2))
    assert [[{d.slice_index for d in group} for group in row] for row in mesh.devices] == [
        [{0}, {1}],
        [{2}, {3}],
    ]


@pytest.mark.parametrize(
    ("devices", "sizes", "message"),
    [
        (gpu_nodes(2, 4), {"tensor": 8},
         "tensor=8 on 2 slices or nodes of 4 devices; .* set mesh.tensor=4 and mesh.data=-1"),
        (gpu_nodes(3, 4), {"data": 4, "fsdp": 3},
         "mesh.data to be a multiple of 3; set mesh.data=3 and mesh.fsdp=-1"),
        (v5e_slices(2, 2), {"fsdp": 3}, "mesh data=-1, fsdp=3, tensor=1 on 8 devices"),
    ],
)  # fmt: skip
def test_axes_that_slices_cannot_divide_are_an_error_with_sizes_that_work(devices, sizes, message):
    with pytest.raises(ConfigError, match=message):
        make_mesh(MeshConfig(**sizes), devices)


def test_the_sizes_that_an_error_recommends_work():
    assert make_mesh(MeshConfig(tensor=4), gpu_nodes(2, 4)).devices.shape == (2, 1, 4)
    assert make_mesh(MeshConfig(data=3, fsdp=-1), gpu_nodes(3, 4)).devices.shape == (3, 4, 1)


def test_devices_cut_into_slices_have_the_mesh_of_one_slice():
    cpus = jax.devices()[:1] * 8
    whole, cut = (make_mesh(MeshConfig(slices=n, fsdp=2), cpus) for n in (-1, 2))
    assert whole == cut
    with pytest.raises(ConfigError, match=r"mesh\.tensor to divide the 2 devices of a slice"):
        make_mesh(MeshConfig(slices=4, tensor=4), cpus)


def test_the_host_of_a_node_loads_the_rows_of_its_node():
    for host, axis in itertools.product((0, 1), ("fsdp", "tensor")):
        mesh = make_mesh(MeshConfig(**{axis: 2}), gpu_nodes(2, 4, here=host))
        assert host_rows(mesh, 32) == range(16 * host, 16 * host + 16)


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("sizes", [{}, {"fsdp": 4}, {"data": 1, "fsdp": -1}])
def test_the_hosts_of_tpu_slices_load_every_row_once(slices, sizes):
    """A mesh follows the links between chips, so the four chips of a host are not neighbours."""
    rows = []
    for host in range(4 * slices):
        mesh = make_mesh(MeshConfig(**sizes), v5e_slices(slices, 4, here=host))
        own = host_rows(mesh, 64 * slices)
        assert len(own) == 16
        assert {row // 64 for row in own} == {host // 4}  # Of its own slice.
        # The rows are those of its devices, in the order of the batch.
        where = batch_sharding(mesh).devices_indices_map((64 * slices,))
        held = {
            r for d, s in where.items() if d.process_index == host for r in range(64 * slices)[s[0]]
        }
        assert list(own) == sorted(held)
        rows += own
    assert sorted(rows) == list(range(64 * slices))


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("sizes", [{"fsdp": 2}, {"fsdp": 8}, {"fsdp": 2, "tensor": 2}])
def test_an_axis_may_be_a_part_of_a_side_of_a_slice(slices, sizes):
    """JAX's own make_mesh splits a side for v5e only: on v6e a mesh of 2 x 8 was an error."""
    devices = [
        dataclasses.replace(device, device_kind="TPU v6 lite") for device in v5e_slices(slices, 4)
    ]
    mesh = make_mesh(MeshConfig(**sizes), devices)
    assert mesh.shape["fsdp"] == sizes["fsdp"]
    assert set(mesh.devices.flat) == set(devices)


def test_rows_of_a_host_may_be_several_blocks():
    mesh = make_mesh(MeshConfig(), v5e_slices(1, 4))
    # Chips 0, 1 and 5, 4 of the ring 0 1 2 3 7 6 5 9 10 11 15 14 13 12 8 4.
    assert host_rows(mesh, 32) == (0, 1, 2, 3, 12, 13, 30, 31)
    np.testing.assert_array_equal(
        [d.process_index for d in mesh.devices.flat],
        [0, 0, 1, 1, 1, 1, 0, 2, 3, 3, 3, 3, 2, 2, 2, 0],
    )
