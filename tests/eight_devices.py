"""Runs a test file as a program on eight CPU devices; it prints JSON."""

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
