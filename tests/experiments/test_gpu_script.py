"""The script that measures a GPU runs to its end on a CPU, with tiny models."""

import json
import os
import subprocess
import sys

import pytest
from processes import ROOT


@pytest.mark.slow
def test_every_part_runs_and_writes_its_results(tmp_path):
    out = tmp_path / "out"
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "OUT": str(out),
        "MODELS": "ViT-Nano/4=2",
        "COMPARED": "ViT-Nano/4=2",
        "IN_PYTORCH": "",
        "BATCHES": "ViT-Nano/4=4",
        "LIMIT": "1500",
    }
    command = ["bash", str(ROOT / "experiments/speed/gpu.sh"), "cpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1600)
    assert (done.returncode, done.stderr) == (0, "")
    parts = (out / "parts.txt").read_text().splitlines()
    bench = ["model", "scanned", "unrolled", "batch"]
    names = [f"{part}-ViT-Nano-4-{4 if part == 'batch' else 2}" for part in bench]
    attention = "attention-ViT-Nano-4-2"
    assert {line.partition(":")[0] for line in parts} == {
        "devices", "cudnn_rules", attention, *names
    }  # fmt: skip
    assert all(": done, " in line for line in parts), parts
    rows = json.loads((out / "summary.json").read_text())
    assert {row["part"] for row in rows} == set(names)
    assert "einsum" in (out / f"{attention}.log").read_text()
    assert "ViT-B/16: not measured" in done.stdout
    assert "largest parts of a step's profile" in done.stdout
    # Results are never overwritten.
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert again.returncode == 2
    assert "is not empty" in again.stderr
