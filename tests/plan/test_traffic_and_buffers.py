"""Memory traffic, its largest movers and the memory peak of a small program, by hand."""

from plan.programs import ARGUMENT, LAYER, LOOP

from experiments.speed.buffers import find_buffers
from experiments.speed.movers import Mover, find_movers
from vit_jax.plan.hlo import parse
from vit_jax.plan.traffic import count_bytes, count_kernels


def test_slices_and_updates_move_one_layer_and_not_the_stack():
    # In an iteration the slice, the all-reduce and the update each read and write a layer. The
    # update also reads the counter (4 bytes), the addition reads two numbers and writes one (12),
    # the comparison reads two and writes one byte (9).
    iteration = 6 * LAYER + 4 + 12 + 9
    # The cast reads the argument and writes the stack. The end reads the stack and the argument,
    # writes a new argument, and copies it to memory on the chip. The total writes 4 bytes.
    rest = (ARGUMENT + 24 * LAYER) + (24 * LAYER + 2 * ARGUMENT) + ARGUMENT + 4
    assert count_bytes(parse(LOOP)) == 24 * iteration + rest


def test_an_instruction_in_a_loop_is_a_kernel_per_iteration():
    """In the loop: a slice, a collective, an update, a sum and a comparison. Outside there are
    three calls and a copy; parameters, tuples and AllocateBuffer do not run."""
    assert count_kernels(parse(LOOP)) == 24 * 5 + 4


def test_the_memory_peak_is_inside_the_loop():
    buffers = find_buffers(parse(LOOP), LOOP)
    found = {(b.shape, b.count): b.bytes for b in buffers if b.bytes > 4}
    # Both stacks are alive around the loop, and a layer and its sum inside it. The update is made
    # in place, and the new argument overwrites the old one.
    assert found == {("bf16[24,512,256]", 2): 2 * 24 * LAYER, ("bf16[512,256]", 1): LAYER}
    assert {b.part for b in buffers if b.shape == "bf16[512,256]"} == {
        "forward, in the layers",
        "backward, in the layers",
    }
    assert buffers[0].shape == "bf16[24,512,256]"


def test_movers_add_up_to_all_traffic_and_the_largest_comes_first():
    program = parse(LOOP)
    movers = find_movers(program)
    assert sum(mover.bytes for mover in movers) == count_bytes(program)
    sizes = [mover.bytes for mover in movers]
    assert sizes == sorted(sizes, reverse=True)
    # It has the name of JAX, and runs of a loop count.
    (found,) = (mover for mover in movers if mover.opcode == "all-reduce")
    name = "jit(step)/transpose(jvp())/while/body/dot_general"
    shapes = "bf16[512,256] <- bf16[512,256]"
    assert found == Mover("all-reduce", name, shapes, 24, 24 * 2 * LAYER)
