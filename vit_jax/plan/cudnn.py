"""Counts the FLOPs of cuDNN's attention in a compiled step. JAX's trace does not show them."""

from vit_jax.plan.hlo import Program

# Matrix products of N x M x K. Forward: logits and result. Backward: both inputs of each, and the
# logits once more, because flash attention does not keep the weights (arXiv:2307.08691).
_FORWARD, _BACKWARD = 2, 5


def attention_flops(program: Program) -> int:
    """Returns the FLOPs that cuDNN's attention kernels execute in a step, on one device.

    The operands are query, key, ..., each [B, N, H, K]. Masked tokens count as others do.
    """
    total = 0
    for instruction, computation, runs in program.executed():
        if not instruction.custom_call_target.startswith("__cudnn$fmha"):
            continue
        query, key = (computation[name].arrays[0].dims for name in instruction.operands[:2])
        batch, queries, heads, width = query
        backward = instruction.custom_call_target.endswith("Backward")
        products = _BACKWARD if backward else _FORWARD
        total += runs * products * 2 * batch * heads * queries * key[1] * width
    return total
