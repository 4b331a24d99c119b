"""A command that the fork server starts is what `python` would have started."""

import json
import os
import signal
import subprocess
import sys

import pytest
from processes import ROOT, run_command

PROGRAM = """
import json, os, signal, sys, threading
import jax
print(json.dumps({
    "pid": os.getpid(), "argv": sys.argv, "cwd": os.getcwd(), "name": __name__,
    "devices": jax.device_count(), "variable": os.environ.get("FORK_TEST"),
    "cache": jax.config.jax_enable_compilation_cache, "threads": threading.active_count(),
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "terminate": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    "warnings": "error" in [w[0] for w in __import__("warnings").filters],
}), flush=True)
print("to stderr", file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_a_forked_command_behaves_like_a_new_python_process(program, tmp_path, request):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=3"
    env = {"FORK_TEST": "a b", "JAX_ENABLE_COMPILATION_CACHE": "false", "XLA_FLAGS": flags}
    forked = run_command(program, "x", "--y=z", env=env, cwd=tmp_path)
    # A shell that starts these tests in the background lets them ignore SIGINT, and their children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    real = subprocess.run(
        [sys.executable, str(program), "x", "--y=z"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )
    assert forked.returncode == real.returncode == 3
    assert forked.stderr == real.stderr == "to stderr\n"
    found, expected = json.loads(forked.stdout), json.loads(real.stdout)
    assert found.pop("pid") != expected.pop("pid")
    assert found == expected
    assert (found["devices"], found["cache"], found["variable"]) == (3, False, "a b")
    # The next child has a backend of its own.
    assert json.loads(run_command(program).stdout)["devices"] == 1
