"""Rooflines computed by hand, and the published figures of chips."""

import pytest

from vit_jax.train.chips import (
    GIB,
    GPUS,
    TPUS,
    Chip,
    Roofline,
    Work,
    cpu_chip,
    gpu_chip,
    peak_flops,
)


def test_a_step_of_vit_l_16_on_v5e():
    # 15.8 TFLOP at 197 TFLOP/s, 81.9 GB at 819 GB/s, 2 GB at 200 GB/s.
    found = Roofline(Work(11.82e12, 15.76e12, 81.9e9, 2e9), TPUS["v5e"])
    assert found.parts == pytest.approx({"compute": 0.08, "memory": 0.1, "network": 0.01})
    assert found.overlapped_s == pytest.approx(0.1)
    assert found.in_turn_s == pytest.approx(0.19)
    assert found.limited_by == "memory"
    assert found.mfu(found.overlapped_s) == pytest.approx(0.6)


def test_unknown_figures_are_left_out_and_without_a_peak_there_is_no_bound():
    half = Chip("half", "half", None, 1e12, None, None, "ours")
    found = Roofline(Work(5e11, 5e11, 1e9, 1e9), half)
    assert (found.overlapped_s, found.in_turn_s, found.limited_by) == (0.5, 0.5, "compute")
    none = Roofline(Work(5e11, 5e11, 1e9, 1e9), Chip("none", "none", None, None, 1e9, None, "ours"))
    assert (none.overlapped_s, none.in_turn_s, none.mfu(1.0)) == (None, None, None)


def test_traffic_between_slices_has_its_own_time():
    # Of 2 GB received, 0.5 GB come over the 25 Gbit/s that each chip has between slices.
    found = Roofline(Work(11.82e12, 15.76e12, 81.9e9, 2e9, 0.5e9), TPUS["v5e"])
    parts = {"compute": 0.08, "memory": 0.1, "network": 0.0075, "dcn": 0.16}
    assert found.parts == pytest.approx(parts)
    assert (found.limited_by, found.overlapped_s) == ("dcn", pytest.approx(0.16))
    # The rate of v4 is not published.
    assert "dcn" not in Roofline(Work(1.0, 1.0, 1.0, 2.0, 1.0), TPUS["v4"]).parts


def test_one_device_needs_no_network_whatever_the_chip():
    alone = Chip("alone", "alone", None, 1e12, None, None, "ours")
    assert Roofline(Work(1e12, 1e12, None, 0.0), alone).network_s == 0.0


def test_mfu_is_never_above_one():
    # A step executes fewer FLOPs than convention counts: nothing needs a gradient to the images.
    chip = Chip("c", "c", None, 1e12, 1.0, 1.0, "")
    assert Roofline(Work(1.01e12, 1e12, 0.0, 0.0), chip).mfu(1) == 1


@pytest.mark.parametrize(
    ("name", "gib", "tflops", "memory", "links", "chips", "dcn"),
    [
        ("v4", 30.75, 275, 1228, 300, 4096, None),
        ("v5e", 15.75, 197, 819, 200, 256, 3.125),
        ("v5p", 95.74, 459, 2765, 600, 8960, 6.25),
        ("v6e", 31.25, 918, 1640, 400, 256, 12.5),
    ],
)
def test_tpu_chips_have_their_published_figures(name, gib, tflops, memory, links, chips, dcn):
    chip = TPUS[name]
    assert chip.memory_bytes == gib * GIB
    assert chip.peak_flops == tflops * 1e12 == peak_flops(chip.kind)
    assert (chip.memory_bandwidth, chip.link_bandwidth) == (memory * 1e9, links * 1e9)
    assert chip.pod_chips == chips
    assert chip.dcn_bandwidth == (None if dcn is None else dcn * 1e9)


def test_gpus_are_found_by_their_device_name():
    sxm, pcie = gpu_chip("NVIDIA H100 80GB HBM3", 79e9), gpu_chip("NVIDIA H100 PCIe", None)
    assert (sxm.memory_bytes, sxm.link_bandwidth, sxm.memory_bandwidth) == (79e9, 450e9, 3350e9)
    # PCIe 5.0 x16, in one direction.
    assert (pcie.memory_bytes, pcie.link_bandwidth, pcie.peak_flops) == (80e9, 64e9, 756e12)
    other = gpu_chip("NVIDIA Unheard-of", 1e9)
    assert (other.memory_bytes, other.peak_flops, other.memory_bandwidth) == (1e9, None, None)


@pytest.mark.parametrize(
    ("name", "kind", "gb", "tflops", "memory", "links", "node"),
    [
        ("a100", "NVIDIA A100-SXM4-80GB", 80, 312, 2039, 300, 25e9),
        ("h100", "NVIDIA H100 80GB HBM3", 80, 989, 3350, 450, 50e9),
        ("h200", "NVIDIA H200", 141, 989, 4800, 450, 50e9),
        ("b200", "NVIDIA B200", 180, 2250, 8000, 900, 50e9),
        ("l40s", "NVIDIA L40S", 48, 362, 864, 32, None),
        ("l4", "NVIDIA L4", 24, 121, 300, 32, None),
        ("rtx4090", "NVIDIA GeForce RTX 4090", 24, 165, 1008, 32, None),
    ],
)
def test_gpus_have_their_published_figures(name, kind, gb, tflops, memory, links, node):
    chip = GPUS[name]
    assert chip == gpu_chip(kind, None)
    assert (chip.memory_bytes, chip.peak_flops) == (gb * 1e9, tflops * 1e12)
    assert (chip.memory_bandwidth, chip.link_bandwidth) == (memory * 1e9, links * 1e9)
    assert chip.dcn_bandwidth == node


def test_forced_cpu_devices_share_one_cpu():
    one, eight = cpu_chip(1), cpu_chip(8)
    assert one.memory_bytes is not None
    assert eight.memory_bytes is not None
    assert one.memory_bytes == pytest.approx(8 * eight.memory_bytes)
    assert one.memory_bytes > 1e8
    if one.peak_flops is not None and eight.peak_flops is not None:
        assert one.peak_flops > 1e9
        assert eight.peak_flops < one.peak_flops
