"""What a process can still do when a C++ library aborts it."""

import signal
import time

import pytest
from processes import run_command

PROGRAM = """
import ctypes, os, sys, threading, time
from vit_jax.parallel.abort import call_before_abort

def action():
    os.write(1, str(time.time()).encode())
    if sys.argv[1] == "exit":
        os._exit(76)

call_before_abort(action)
threading.Thread(target=ctypes.CDLL(None).abort, daemon=True).start()  # Without the GIL.
threading.Event().wait()
"""


@pytest.mark.parametrize(("action", "code"), [("return", -signal.SIGABRT), ("exit", 76)])
def test_a_function_is_called_before_an_abort_ends_the_process(tmp_path, action, code):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run_command(tmp_path / "program.py", action)
    assert done.returncode == code
    # The process does not wait for the six seconds.
    assert time.time() - float(done.stdout) < 5
