"""Collectives and the bytes they move, computed by hand."""

import pytest
from plan.programs import LAYER, LOOP

from vit_jax.plan.hlo import parse
from vit_jax.plan.replica_groups import replica_groups
from vit_jax.plan.traffic import Collectives, find_collectives, sum_collectives


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
    lines = [
        f"  %whole = bf16[512,256]{{1,0}} {line}" if " all-reduce(" in found else found
        for found in LOOP.splitlines()
    ]
    (one,) = find_collectives(parse("\n".join(lines)), 16)
    assert (one.bytes, one.received) == (24 * size, pytest.approx(24 * received))


def test_parts_of_a_collective_with_one_channel_count_once():
    pieces = [
        line.replace("%whole =", "%piece =") + "\n" + line if " all-reduce(" in line else line
        for line in LOOP.splitlines()
    ]
    assert len(find_collectives(parse("\n".join(pieces)), 16)) == 1


def test_collectives_of_a_single_device_do_not_count():
    assert find_collectives(parse(LOOP.replace("[2,8]<=[16]", "[16,1]<=[16]")), 16) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("replica_groups={{0,2},{1,3}}, x", 2),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", 2),
        ("replica_groups=mesh['axis_0'=16,'axis_1'=1,'axis_2'=4] {'axis_0','axis_1'}", 16),
        ("replica_groups={}", 12),
        ("no groups", 12),
    ],
)
def test_group_size(text, size):
    assert len(replica_groups(text, 12)[0]) == size


def test_sums_are_sorted_by_received_bytes():
    small = Collectives("all-gather", 4, "forward", 2, 200)
    large = Collectives("all-reduce", 4, "backward", 1, 1000)
    sums = sum_collectives([small, large, small])
    assert [(s.kind, s.count, s.bytes, s.received) for s in sums] == [
        ("all-reduce", 1, 1000, 1500.0),
        ("all-gather", 4, 400, 300.0),
    ]
