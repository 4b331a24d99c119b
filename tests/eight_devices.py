"""Runs a test file as a program on eight CPU devices; it prints JSON.

What such a program needs of JAX is imported when it runs, not when its tests are collected.
"""

import json
import os
import re
from typing import Any

from processes import ROOT, run_command

TIMEOUT_S = 900


def run_on_eight(program: str, *arguments: str) -> Any:
    """Runs a file as a program on eight devices and returns the JSON in its last line."""
    done = run_command(
        program,
        *arguments,
        timeout=TIMEOUT_S,
        env={
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8",
            "JAX_PLATFORMS": "cpu",
            # A cached program has no HLO dump and may not know its memory.
            "JAX_ENABLE_COMPILATION_CACHE": "false",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        },
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


CUBE = {"data": 2, "fsdp": 2, "tensor": 2}


def small_program(mesh: dict[str, Any], *, num_classes: int = 10, **content: Any) -> Any:
    """Builds a run of batches of 16 on all devices, or for an empty mesh section on one."""
    import jax

    from vit_jax.config.run import Config
    from vit_jax.parallel.mesh import make_mesh
    from vit_jax.train.program import build_program

    usual = {"optimizer": {"name": "sgd", "learning_rate": 0.05}, "train_steps": 8, "mesh": mesh}
    data = {"name": "none", "image_size": 16, "global_batch_size": 16, **content.pop("data", {})}
    config = Config.from_mapping({**usual, **content, "data": data})
    devices = jax.devices() if mesh else jax.devices()[:1]
    sizes = {"num_classes": num_classes, "num_examples": 100}
    return build_program(config, make_mesh(config.mesh, devices), **sizes)


def train(program: Any, batches: list[dict[str, Any]]) -> tuple[Any, dict[str, list[float]]]:
    """Returns the state after a step on each batch, and the metrics of the steps."""
    from vit_jax.parallel.mesh import to_devices
    from vit_jax.train.feed import program_of_batch

    state, rows = program.init(), []
    for step, batch in enumerate(batches):
        sized = program_of_batch(program, step)
        state, metrics = sized.compiled(state, to_devices(batch, program.mesh))
        rows.append({name: value.item() for name, value in metrics.items() if not value.shape})
    return state, {name: [row[name] for row in rows] for name in rows[0]}


_COLLECTIVE = re.compile(
    r"= (\(.*?\)|\S+) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
    r"(?:-start)?\("
)


def collectives(hlo: str) -> list[dict[str, Any]]:
    """Returns the kind and the results of each collective in a compiled program."""
    return [
        {
            "kind": kind,
            "values": [
                {"dtype": dtype, "shape": [int(s) for s in sizes.split(",") if s]}
                for dtype, sizes in re.findall(r"(\w+)\[([\d,]*)\]", result)
            ],
        }
        for result, kind in _COLLECTIVE.findall(hlo)
    ]


def shapes(found: list[dict[str, Any]], *kinds: str) -> list[list[int]]:
    """Returns the shapes of the results of collectives of these kinds."""
    return [value["shape"] for row in found if row["kind"] in kinds for value in row["values"]]
