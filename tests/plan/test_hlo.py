"""Parsing the text of a compiled program."""

import pytest
from plan.programs import LOOP

from vit_jax.plan.hlo import parse, parse_arrays


def test_computations_run_once_per_iteration_of_their_loop():
    program = parse(LOOP)
    assert program.entry == "main"
    inside = ("body", "condition", "sliced", "kept", "add")
    assert program.runs == {"main": 1, **dict.fromkeys(inside, 24)}
    assert program.unknown_loops == ()


def test_instructions_in_fusions_and_reducers_are_not_executed_separately():
    executed = {(i.name, runs) for i, _, runs in parse(LOOP).executed()}
    assert {("layer", 24), ("whole", 24), ("loop", 1), ("new", 1)} <= executed
    assert not {"slice", "update", "sum"} & {name for name, _ in executed}


def test_a_trip_count_from_xla_takes_precedence_over_the_condition():
    text = LOOP.replace(
        "body=%body\n", 'body=%body, backend_config={"known_trip_count":{"n":"5"}}\n'
    )
    assert parse(text).runs["body"] == 5


def test_a_loop_with_unknown_iterations_counts_once_and_is_listed():
    program = parse(LOOP.replace("%turns = s32[] constant(24)", "%turns = s32[] parameter(1)"))
    assert (program.runs["body"], program.unknown_loops) == (1, ("loop",))


def test_iterations_of_nested_loops_multiply():
    inner = """
%inner_body (s: (s32[])) -> (s32[]) {
  %s = (s32[]) parameter(0)
  %j = s32[] get-tuple-element(%s), index=0
  %one.2 = s32[] constant(1)
  %j.1 = s32[] add(%j, %one.2)
  ROOT %t = (s32[]) tuple(%j.1)
}
"""
    text = LOOP.replace("\n%body", inner + "\n%body", 1).replace(
        "  %one.1 = s32[] constant(1)\n",
        "  %one.1 = s32[] constant(1)\n  %none.1 = s32[] constant(0)\n"
        "  %begin = (s32[]) tuple(%none.1)\n"
        "  %again = (s32[]) while(%begin), condition=%condition, body=%inner_body\n",
    )
    assert parse(text).runs["inner_body"] == 24 * 24


INCREMENT, START = "%one.1 = s32[] constant(1)", "%start = s32[] constant(0)"


@pytest.mark.parametrize(
    ("start", "step", "runs"), [(0, 1, 24), (0, 2, 12), (0, 5, 5), (1, 1, 23), (1, 2, 12)]
)
def test_a_loop_runs_from_its_first_value_to_its_bound_by_its_increment(start, step, runs):
    text = LOOP.replace(INCREMENT, INCREMENT.replace("(1)", f"({step})"))
    text = text.replace(START, START.replace("(0)", f"({start})"))
    assert parse(text).runs["body"] == runs


def test_the_counter_may_be_copied_and_added_to_in_a_fusion():
    added = """
%more (k: s32[]) -> s32[] {
  %k = s32[] parameter(0)
  %three = s32[] constant(3)
  ROOT %sum.1 = s32[] add(%k, %three)
}
"""
    text = LOOP.replace("\n%body", added + "\n%body", 1)
    text = text.replace("add(%i, %one.1)", "fusion(%i.copy), kind=kLoop, calls=%more")
    text = text.replace(INCREMENT, "%i.copy = s32[] copy(%i)")
    assert parse(text).runs["body"] == 8


def test_a_loop_whose_increment_is_unknown_counts_once_and_is_listed():
    program = parse(LOOP.replace(INCREMENT, INCREMENT.replace("constant(1)", "parameter(1)")))
    assert (program.runs["body"], program.unknown_loops) == (1, ("loop",))


@pytest.mark.parametrize(
    ("text", "size", "padded", "space"),
    [
        ("f32[3,5]{1,0}", 60, 60, 0),
        # Tiles of 8 x 128: 197 rows of 1,024 become 200.
        ("bf16[32,197,1024]{2,1,0:T(8,128)(2,1)}", 32 * 197 * 1024 * 2, 32 * 200 * 1024 * 2, 0),
        # The second most minor dimension is the first, the most minor the second.
        ("bf16[3,130]{0,1:T(8,128)(2,1)S(1)}", 780, 128 * 136 * 2, 1),
        ("f32[1000]{0:T(1024)}", 4000, 4096, 0),
        ("pred[]{:T(512)}", 1, 1, 0),
        ("s4[9]{0}", 5, 5, 0),
    ],
)
def test_the_size_of_an_array(text, size, padded, space):
    (array,) = parse_arrays(text)
    assert (array.bytes, array.padded_bytes, array.space) == (size, padded, space)


def test_operands_are_read_with_and_without_percent_signs():
    plain = parse(LOOP.replace("%", ""))
    assert plain.computations["body"]["next"].operands == ("outputs", "i", "whole")
    assert plain.runs == parse(LOOP).runs
