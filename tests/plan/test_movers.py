"""The largest movers of a small program, computed by hand."""

from plan.programs import ARGUMENT, LAYER, LOOP

from experiments.speed.movers import Mover, find_movers
from vit_jax.plan.hlo import parse
from vit_jax.plan.traffic import count_bytes


def test_movers_add_up_to_all_traffic_and_the_largest_comes_first():
    program = parse(LOOP)
    movers = find_movers(program)
    assert sum(mover.bytes for mover in movers) == count_bytes(program)
    sizes = [mover.bytes for mover in movers]
    assert sizes == sorted(sizes, reverse=True)


def test_runs_of_a_loop_count_and_the_name_is_that_of_jax():
    (found,) = (m for m in find_movers(parse(LOOP)) if m.opcode == "all-reduce")
    name = "jit(step)/transpose(jvp())/while/body/dot_general"
    shapes = "bf16[512,256] <- bf16[512,256]"
    assert found == Mover("all-reduce", name, shapes, 24, 24 * 2 * LAYER)


def test_instructions_that_do_the_same_are_one_mover():
    """As the layers of an unrolled model."""
    twice = LOOP.replace(
        "  %near =",
        '  %again = f32[1024,256]{1,0:T(8,128)} custom-call(%result, %p), custom_call_target="toy",'
        ' metadata={op_name="jit(step)/add"}\n  %near =',
    )
    (found,) = (m for m in find_movers(parse(twice)) if m.op_name == "jit(step)/add")
    assert found.opcode == "custom-call toy"
    assert found.shapes == "f32[1024,256] <- bf16[24,512,256], f32[1024,256]"
    assert (found.runs, found.bytes) == (2, 2 * (24 * LAYER + 2 * ARGUMENT))
