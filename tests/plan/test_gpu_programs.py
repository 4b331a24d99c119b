"""Bytes and memory of programs for GPUs, computed by hand."""

import types

import pytest
from plan.gpu_programs import LIBRARIES

from experiments.speed.movers import find_movers
from vit_jax.plan.cudnn import attention_flops
from vit_jax.plan.estimate import _memory
from vit_jax.plan.hlo import parse
from vit_jax.plan.traffic import count_bytes

# bf16[1024,512] x bf16[512,256] -> bf16[1024,256].
MATMUL = 2 * (1024 * 512 + 512 * 256 + 1024 * 256)
QKV = 2 * 8 * 200 * 6 * 64


def test_workspaces_of_cublas_and_cudnn_are_not_traffic():
    program = parse(LIBRARIES)
    plain, biased, sliced = MATMUL, MATMUL + 2 * 256, MATMUL
    # q, k, v and the result, and the f32 logsumexp of each query.
    attention = 4 * QKV + 4 * 8 * 6 * 200
    assert count_bytes(program) == plain + biased + sliced + attention
    movers = find_movers(program)
    # The matmul of the command buffer.
    (matmul,) = (mover for mover in movers if mover.op_name)
    assert (matmul.op_name, matmul.bytes) == ("jit(step)/dot_general", plain)
    assert matmul.shapes == "bf16[1024,256] <- bf16[1024,512], bf16[512,256]"
    (kernel,) = (mover for mover in movers if mover.opcode == "custom-call __cudnn$fmhaSoftmax")
    assert kernel.bytes == attention


def test_other_results_of_bytes_are_traffic():
    """A result of several dimensions, or of another library, is no workspace."""
    images = LIBRARIES.replace("u8[4096]{0}", "u8[64,64]{1,0}")
    assert count_bytes(parse(images)) == count_bytes(parse(LIBRARIES)) + 4096
    other = LIBRARIES.replace('"__cudnn$fmhaSoftmax"', '"toy"')
    assert count_bytes(parse(other)) == count_bytes(parse(LIBRARIES)) + 4096


def test_flops_of_cudnns_attention():
    # Two products of [200, 64] x [64, 200] for each of 8 images and 6 heads; five in the backward
    # pass.
    product = 2 * 8 * 6 * 200 * 200 * 64
    assert attention_flops(parse(LIBRARIES)) == 2 * product
    backward = LIBRARIES.replace("fmhaSoftmax", "fmhaSoftmaxBackward")
    assert attention_flops(parse(backward)) == 5 * product
    assert attention_flops(parse(LIBRARIES.replace("fmha", "conv"))) == 0


@pytest.mark.parametrize(
    ("platform", "temporaries", "program"),
    [
        # 1,000 of arguments, 3,000 of temporaries, 10 of results beside them, 490 of constants.
        ("gpu", 3000, 500),
        ("cpu", 3000, 10),
        ("tpu", 3500, 10),
    ],
)
def test_memory_of_a_gpu_includes_its_constants(platform, temporaries, program):
    stats = types.SimpleNamespace(
        argument_size_in_bytes=1000,
        output_size_in_bytes=910,
        alias_size_in_bytes=900,
        temp_size_in_bytes=3000,
        generated_code_size_in_bytes=0,
        peak_memory_in_bytes=4500,
    )
    compiled = types.SimpleNamespace(memory_analysis=lambda: stats)
    memory = _memory({"parameters": 1000}, compiled, platform)
    assert (memory.temporaries, memory.program) == (temporaries, program)
    assert memory.total == 1000 + temporaries + program
