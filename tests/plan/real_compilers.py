"""Plans by the compilers of accelerators, each in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def plan(tmp_path, topology, *arguments):
    """Plans a ViT-Ti/16 run; returns the figures, and what is printed."""
    path = tmp_path / "plan.json"
    # The flags of the tests are for CPUs.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "vit_jax",
            "plan",
            f"--config={ROOT / 'configs/augreg.py'}:Ti/16",
            f"--topology={topology}",
            f"--output={path}",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=1500,
        env={**environment, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(path.read_text()), done.stdout
