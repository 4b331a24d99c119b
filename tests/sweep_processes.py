"""Starts sweeps as processes, as a user does."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from vit_jax.__main__ import main
from vit_jax.sweep.plan import PlannedJob

ROOT = Path(__file__).resolve().parents[1]
STUB = ROOT / "tests" / "sweep" / "stub.py"
TIMEOUT_S = 900


def stub_command(job, python=""):
    """The command of a job that runs tests/sweep/stub.py and does not train."""
    return ["env", f"PYTHONPATH={ROOT}", sys.executable, str(STUB), str(job.folder)]


def start(workdir, sweep, *arguments, stub=None, environment=None):
    """Starts a sweep; with a folder `stub`, its jobs run tests/sweep/stub.py."""
    more = {} if stub is None else {"STUB": str(stub)}
    return subprocess.Popen(
        [sys.executable, __file__, f"--sweep={sweep}", f"--workdir={workdir}", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more, **(environment or {})},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process):
    out, _ = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out


def wait_for(condition, message=lambda: ""):
    """Polls until the condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, message()
        time.sleep(0.05)


def table(workdir):
    """Returns job -> its result without times."""
    jobs = workdir / "jobs"
    return {
        str(path.parent.relative_to(jobs)): json.loads(path.read_text())
        | {"wall_time_s": 0, "seconds": 0}
        for path in jobs.rglob("result.json")
    }


if __name__ == "__main__":
    if "STUB" in os.environ:
        PlannedJob.command = stub_command
    sys.exit(main(["sweep", *sys.argv[1:]]))
