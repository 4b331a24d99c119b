"""Bytes moved and arrays alive, by hand."""

from plan.programs import ARGUMENT, LAYER, LOOP

from vit_jax.plan.buffers import find_buffers
from vit_jax.plan.hlo import parse
from vit_jax.plan.traffic import count_bytes


def test_slices_and_updates_move_a_layer_not_the_stack():
    # A turn: the slice is read and made, the all-reduce reads and makes a layer, the update reads
    # and writes one. Beside them the counter: the update reads it (4 bytes), the addition reads it
    # and a constant and writes (12), the comparison reads two and writes one byte (9).
    turn = 6 * LAYER + 4 + 12 + 9
    # The cast reads the argument and makes the stack; the end reads the stack and the argument and
    # makes a new one, which a copy on the chip reads; of that only the total of 4 bytes comes back.
    rest = (ARGUMENT + 24 * LAYER) + (24 * LAYER + 2 * ARGUMENT) + ARGUMENT + 4
    assert count_bytes(parse(LOOP)) == 24 * turn + rest


def test_the_fullest_moment_is_inside_the_loop():
    buffers = find_buffers(parse(LOOP), LOOP)
    found = {(b.shape, b.count): b.bytes for b in buffers if b.bytes > 4}
    # Both stacks live around the loop, and inside it a layer beside its sum; the update is made in
    # place, and the new argument takes the place of the old.
    assert found == {
        ("bf16[24,512,256]", 2): 2 * 24 * LAYER,
        ("bf16[512,256]", 1): LAYER,
    }
    assert {b.place for b in buffers if b.shape == "bf16[512,256]"} == {
        "forward, in the layers",
        "backward, in the layers",
    }
    assert buffers[0].shape == "bf16[24,512,256]"


def test_without_donation_the_new_argument_has_memory_of_its_own():
    text = LOOP.replace("input_output_alias={ {0}: (0, {}, may-alias) }, ", "").replace(
        "bf16[24,512,256]", "bf16[1,512,256]"
    )
    names = {b.shape for b in find_buffers(parse(text), text)}
    assert "f32[1024,256]" in names
    donated = LOOP.replace("bf16[24,512,256]", "bf16[1,512,256]")
    assert "f32[1024,256]" not in {b.shape for b in find_buffers(parse(donated), donated)}


def test_what_a_loop_carried_ends_with_its_own_last_reader():
    """Though another element of the loop's result is taken out later."""
    end = "  ROOT %both"
    text = LOOP.replace(
        end,
        '  %large = bf16[40,512,256]{2,1,0} custom-call(%result), custom_call_target="toy"\n'
        f"  %turn = s32[] get-tuple-element(%loop), index=0\n{end}",
    )
    found = {(b.shape, b.count) for b in find_buffers(parse(text), text) if b.bytes > 4}
    # Of the two stacks one is read by what is made here; the weights are not needed any more.
    assert found == {("bf16[40,512,256]", 1), ("bf16[24,512,256]", 1)}
