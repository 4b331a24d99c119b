"""Collectives and the bytes they move, computed by hand."""

import pytest
from plan.programs import LAYER, LOOP, WINDOWED

from vit_jax.plan.hlo import parse
from vit_jax.plan.replica_groups import replica_groups, source_target_pairs
from vit_jax.plan.traffic import (
    Collectives,
    bytes_between_slices,
    find_collectives,
    sum_collectives,
)

(ALL_REDUCE,) = [line for line in LOOP.splitlines() if " all-reduce(" in line]


def test_a_collective_in_a_loop_counts_every_iteration():
    (one,) = find_collectives(parse(LOOP), 16)
    assert (one.kind, one.group, one.bytes, one.count) == ("all-reduce", 8, 24 * LAYER, 24)
    assert one.part == "backward, in the layers"
    # A ring passes 7/8 of the value twice.
    assert one.received == pytest.approx(24 * LAYER * 2 * 7 / 8)


@pytest.mark.parametrize(
    ("line", "size", "received"),
    [
        # Each device puts in 1/16 of what is gathered and lacks the other 15.
        ("all-gather(%layer), channel_id=7, replica_groups=[1,16]<=[16], dimensions={0}",
         16 * LAYER, 15 * LAYER),
        ("reduce-scatter(%layer), channel_id=7, replica_groups=[1,16]<=[16], to_apply=%add",
         LAYER, LAYER * 15 / 16),
        ("all-to-all(%layer), channel_id=7, replica_groups={{0,1,2,3},{4,5,6,7}}", LAYER,
         LAYER * 3 / 4),
        ("collective-permute(%layer), channel_id=7, source_target_pairs={{0,1},{1,0}}", LAYER,
         LAYER),
        ("all-gather-start(%layer), channel_id=7, replica_groups=mesh['a'=2,'b'=8] {'a','b'}",
         16 * LAYER, 15 * LAYER),
    ],
)  # fmt: skip
def test_bytes_of_each_kind_of_collective(line, size, received):
    text = LOOP.replace(ALL_REDUCE, f"  %whole = bf16[512,256]{{1,0}} {line}")
    (one,) = find_collectives(parse(text), 16)
    assert (one.bytes, one.received) == (24 * size, pytest.approx(24 * received))


def test_parts_of_a_collective_with_one_channel_count_once():
    piece = ALL_REDUCE.replace("%whole =", "%piece =")
    text = LOOP.replace(ALL_REDUCE, f"{piece}\n{ALL_REDUCE}")
    assert len(find_collectives(parse(text), 16)) == 1


def test_an_all_gather_and_a_reduce_scatter_of_one_channel_are_two():
    """On v5e, those of the weights and of their gradients can share one."""
    gather = ALL_REDUCE.replace("%whole =", "%gathered =").replace("all-reduce(", "all-gather(")
    scatter = ALL_REDUCE.replace("all-reduce(", "reduce-scatter(")
    found = find_collectives(parse(LOOP.replace(ALL_REDUCE, f"{gather}\n{scatter}")), 16)
    # Of eight devices, each has LAYER to gather, or to reduce.
    assert [(one.kind, one.count, one.received) for one in found] == [
        ("all-gather", 24, 24 * 7 * LAYER),
        ("reduce-scatter", 24, 24 * 7 / 8 * LAYER),
    ]


def test_the_collective_of_an_iteration_that_is_taken_out_of_the_loop_counts_too():
    peeled = ALL_REDUCE.replace("%whole", "%whole.0").replace("%layer", "%cast")
    text = LOOP.replace("%start = s32[] constant(0)", "%start = s32[] constant(1)")
    text = text.replace("  %space = ", f"{peeled}\n  %space = ")
    text = text.replace("  %cast = bf16[24,512,256]{2,1,0}", "  %cast = bf16[512,256]{1,0}")
    (one,) = find_collectives(parse(text), 16)
    assert (one.count, one.bytes) == (24, 24 * LAYER)


def test_a_windowed_matmul_by_hand():
    """The loop runs twice with four permutes, one is before it; the all-gather happens once."""
    permutes, gather = find_collectives(parse(WINDOWED), 8)
    weights = 48 * 1152 * 2
    assert (permutes.kind, permutes.count) == ("collective-permute", 4 / 2 * 4 + 1)
    assert permutes.received == permutes.bytes == 9 * weights == 995_328
    assert (gather.kind, gather.count, gather.bytes) == ("all-gather", 1, 384 * 1000 * 2)
    assert gather.received == 7 * 48 * 1000 * 2


def test_collectives_of_a_single_device_do_not_count():
    assert find_collectives(parse(LOOP.replace("[2,8]<=[16]", "[16,1]<=[16]")), 16) == []


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,2},{1,3}}, x", [[0, 2], [1, 3]]),
        ("replica_groups={{0,1,2},{3}}, x={{4}}", [[0, 1, 2], [3]]),
        ("replica_groups=[2,4]<=[8], x", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        # Devices [data=2, fsdp=2, tensor=2], each group along data and tensor.
        ("replica_groups=[2,4]<=[2,2,2]T(1,0,2)", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("replica_groups=mesh['a'=2,'b'=1,'c'=3] {'a','b'}", [[0, 3], [1, 4], [2, 5]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'b','a'}", [[0, 2, 1, 3]]),
        ("replica_groups=@mesh_1['a'=2,'b'=2] {'b'}", [[0, 1], [2, 3]]),
        # Half of an axis: 8 = 2 x 4, groups along the first part, or along the second.
        ("replica_groups=mesh['a'=8] {'a':(1)2}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("replica_groups=mesh['a'=8] {'a':(2)4}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        # The devices of the mesh in another order: 0 2 1 3.
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}, x", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=(3,1,2,0) {'b'}", [[3, 1], [2, 0]]),
        ("replica_groups={}", [[*range(12)]]),
        ("no groups", [[*range(12)]]),
    ],
)
def test_replica_groups(text, groups):
    assert replica_groups(text, 12) == groups


def test_pairs_of_a_permute():
    assert source_target_pairs("source_target_pairs={{0,1},{1,0}}, x={{2,3}}") == [(0, 1), (1, 0)]


# Four slices of two devices; a value of 1200 bytes.
SLICES = [0, 0, 1, 1, 2, 2, 3, 3]
ALL, INSIDE, ACROSS = [[*range(8)]], [[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.parametrize(
    ("kind", "groups", "received"),
    [
        # Two devices share what enters their slice: 2 * 3/4 of the value.
        ("all-reduce", ALL, 900),
        ("reduce-scatter", ALL, 450),
        ("all-gather", ALL, 450),
        # Each of two devices sends 1/8 of its 1200 bytes to each of six devices outside.
        ("all-to-all", ALL, 900),
        ("all-reduce", INSIDE, 0),
        ("all-gather", INSIDE, 0),
        # Each device reduces a value of its own.
        ("all-reduce", ACROSS, 1800),
        ("reduce-scatter", ACROSS, 900),
        ("all-gather", ACROSS, 900),
        ("collective-permute", [[0, 2], [1, 3], [2, 0], [3, 1]], 1200),
        # One of two devices of a slice receives from another slice.
        ("collective-permute", [[i, (i + 1) % 8] for i in range(8)], 600),
        ("collective-permute", [[0, 1], [1, 0]], 0),
        ("collective-broadcast", ALL, 600),
    ],
)
def test_bytes_that_enter_a_slice(kind, groups, received):
    assert bytes_between_slices(kind, 1200, groups, SLICES) == received
    assert bytes_between_slices(kind, 1200, groups, [0] * 8) == 0


def test_what_a_device_receives_is_inside_plus_between_slices():
    """An all-reduce over all devices is one inside each slice, then one of a part across."""
    whole = Collectives("all-reduce", 8, "backward", 1, 1200).received
    inside = Collectives("all-reduce", 2, "backward", 1, 1200).received
    assert whole == inside + bytes_between_slices("all-reduce", 1200, ALL, SLICES)


def test_collectives_between_slices_are_found_by_their_groups():
    (one,) = find_collectives(parse(LOOP), 16, [device // 8 for device in range(16)])
    assert (one.group, one.between) == (8, 0.0)
    # Groups of eight over slices of four: a fourth of twice half the value enters for each.
    (one,) = find_collectives(parse(LOOP), 16, [device // 4 for device in range(16)])
    assert one.between == 24 * LAYER / 4
    assert one.received == pytest.approx(24 * LAYER * 2 * 7 / 8)


RECV = (
    "  %recv = (bf16[64,256]{1,0}, u32[], token[]) recv(%i), channel_id=7, is_host_transfer=true,"
    ' frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",'
    '_xla_megascale_target=TARGET,_xla_megascale_transfer_type="KIND"}'
)


@pytest.mark.parametrize(
    ("kind", "target", "group", "received"),
    [
        # Slices x chips: sums over two slices, or over four; the value is received once or 1.5x.
        ("ALL_REDUCE", '"{1,2}x{0:7}"', 2, 1.0),
        ("ALL_REDUCE", '"{1,2,3,4}x{0:3}"', 4, 1.5),
        ("ALL_REDUCE", '"{1:4}x{0:3}"', 4, 1.5),
        # Pairs of devices: each already has its half of what is gathered.
        ("ALL_GATHER", "{{100000,200000},{100001,200001},{300000,400000}}", 2, 0.5),
        # What is received is one of two halves of the reduced value.
        ("REDUCE_SCATTER", "{{100000,200000},{100001,200001}}", 2, 1.0),
        ("ONE_TO_ONE", "{{100000,200000}}", 2, 1.0),
    ],
)
def test_the_tpu_compiler_sends_and_receives_between_slices(kind, target, group, received):
    """After reducing inside a slice, each device exchanges its part with the other slices."""
    recv = RECV.replace("TARGET", target).replace("KIND", kind)
    text = LOOP.replace(ALL_REDUCE, f"{ALL_REDUCE}\n{recv}")
    slices = [device // 8 for device in range(16)]
    found = find_collectives(parse(text), 16, slices)
    (inside,) = [one for one in found if not one.between]
    (between,) = [one for one in found if one.between]
    assert (inside.kind, inside.group) == ("all-reduce", 8)
    assert (between.group, between.part, between.count) == (group, "between slices", 24)
    assert between.between == pytest.approx(received * 24 * LAYER / 8)
    assert between.received == pytest.approx(between.between)
    # A transfer to the host that is no collective is none.
    assert len(find_collectives(parse(text.replace("_xla_megascale_transfer", "_")), 16)) == 1


def test_a_fused_reduce_scatter_of_the_tpu_compiler_is_one():
    text = LOOP.replace("%body", "%all-reduce-scatter.1")
    (one,) = find_collectives(parse(text), 16)
    assert one.kind == "reduce-scatter"
    assert one.received == pytest.approx(24 * LAYER * 7 / 8)


def test_sums_keep_kinds_and_collectives_between_slices_apart():
    small = Collectives("all-gather", 4, "forward", 2, 200)
    inside = Collectives("all-reduce", 4, "backward", 1, 1000)
    across = Collectives("all-reduce", 4, "backward", 1, 1000, 500.0)
    sums = sum_collectives([small, inside, across, small, across])
    assert [(s.kind, s.count, s.bytes, s.received, s.between) for s in sums] == [
        ("all-reduce", 2, 2000, 3000.0, 1000.0),
        ("all-reduce", 1, 1000, 1500.0, 0.0),
        ("all-gather", 4, 400, 300.0, 0.0),
    ]
