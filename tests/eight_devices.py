"""Programs on eight CPU devices: a test file runs itself as one, which prints JSON."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 900


def run_on_eight(program: str, *arguments: str) -> Any:
    """Runs a file as a program on eight devices and returns what it prints."""
    done = subprocess.run(
        [sys.executable, program, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={
            **os.environ,
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8",
            "JAX_PLATFORMS": "cpu",
            # A program taken from the cache is not dumped, and may not know its memory.
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
    """Returns of every collective in a compiled program its kind and the values it makes."""
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
    """Returns the shapes that the collectives of some kinds make."""
    return [value["shape"] for row in found if row["kind"] in kinds for value in row["values"]]
