"""The TPU compiler accepts the attention kernel. It needs its wheel but no TPU.

Run as a program with the name of a topology, this file compiles the cases and prints as JSON which
kernels the programs contain.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: jax[tpu]"
    ),
]
# Tokens, heads, features of a head, type, what is added: the bias of q, k and v, or that of logits.
CASES = [
    (197, 3, 64, "bfloat16", "qkv_bias"),
    (197, 12, 64, "bfloat16", "qkv_bias"),
    (197, 12, 64, "float32", "bias"),
    (257, 16, 72, "bfloat16", "qkv_bias"),
    (257, 16, 80, "bfloat16", "qkv_bias"),
    (257, 16, 88, "bfloat16", "qkv_bias"),
    (197, 8, 96, "bfloat16", ""),
    (257, 16, 104, "bfloat16", ""),
    (197, 8, 128, "bfloat16", "qkv_bias"),
    (577, 16, 64, "bfloat16", "qkv_bias"),
    (785, 12, 64, "bfloat16", "qkv_bias"),
    (1025, 16, 64, "bfloat16", "qkv_bias"),
]


TOPOLOGIES = ["v5e:2x2", "v6e:2x2", "v4:2x2x1", "v5p:2x2x1"]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_kernel_and_its_gradient_compile(topology):
    done = subprocess.run(
        [sys.executable, __file__, topology],
        capture_output=True,
        text=True,
        timeout=1500,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    # Forward and backward; on a mesh, the same program on each device.
    assert found == {"one": [2] * len(cases_for(topology)), "mesh": 2}


def cases_for(topology):
    """Returns all cases for the first topology, and some for the others."""
    return CASES if topology == TOPOLOGIES[0] else CASES[1::5]


def main() -> None:
    from vit_jax.plan.topology import find_devices, prepare
    from vit_jax.plan.topology_names import parse_topology

    topology = parse_topology(sys.argv[1])
    prepare(topology)
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

    from vit_jax.models.activation_sharding import with_mesh
    from vit_jax.models.pallas_attention import attend_qkv

    devices = find_devices(topology)

    def count_kernels(case, batch, sharding_of, wrap=lambda function: function):
        tokens, heads, head_dim, dtype, added = case
        shapes = {"qkv": ((batch, tokens, 3, heads, head_dim), dtype)}
        if added == "qkv_bias":
            shapes[added] = (3, heads, head_dim), dtype
        elif added:
            shapes[added] = (batch, heads, tokens, tokens), "float32"
        inputs = {
            name: jax.ShapeDtypeStruct(shape, jnp.dtype(kind), sharding=sharding_of(name))
            for name, (shape, kind) in shapes.items()
        }

        def total(inputs):
            out = attend_qkv(**inputs, num_valid=tokens - 1)
            return out.astype(jnp.float32).sum(), out

        compiled = jax.jit(wrap(jax.grad(total, has_aux=True))).lower(inputs).compile()
        return compiled.as_text().count('custom_call_target="tpu_custom_call"')

    one = SingleDeviceSharding(devices[0])
    found = {"one": [count_kernels(case, 4, lambda name: one) for case in cases_for(sys.argv[1])]}
    mesh = Mesh(np.array(devices[:4]).reshape(2, 1, 2), ("data", "fsdp", "tensor"))
    specs = {
        "qkv": PartitionSpec(("data", "fsdp"), None, None, "tensor"),
        "qkv_bias": PartitionSpec(None, "tensor"),
    }
    found["mesh"] = count_kernels(
        CASES[1],
        4,
        lambda name: NamedSharding(mesh, specs[name]),
        lambda function: with_mesh(function, mesh),
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
