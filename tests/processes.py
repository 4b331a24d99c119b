"""Training runs as processes of their own, as a user starts them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "tests" / "e2e" / "tiny.py"
TIMEOUT_S = 600


def start(workdir, digits_dir, *overrides):
    command = [
        sys.executable, "-m", "vit_jax", "train", f"--config={TINY}", f"--workdir={workdir}",
        f"--config.data.data_dir={digits_dir}", *overrides,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process):
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


def one_line(capfd):
    """The one line of error that a command run in this process has written."""
    lines = capfd.readouterr().err.strip().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1
    assert not any("Traceback" in line for line in lines)
    return errors[0]
