"""Runs commands in separate processes, as a user does, but without the time of the imports.

    process = start_command("-m", "vit_jax", "train", ...)      # has pid, poll, wait, send_signal
    done = run_command("-m", "vit_jax", "train", ...)           # has returncode, stdout, stderr

The arguments are those of `python`. The processes are forked by `fork_server.py`, which all test
processes of a session share.
"""

import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any

import filelock

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "tests" / "e2e" / "tiny.py"
UNMIXED = f"{TINY}:unmixed"
TIMEOUT_S = 600


class Process:
    """A running command.

    Args:
        arguments: what stands after `python`.
        env: all environment variables.
        cwd: working directory.
        stdout: file to write to; None: kept for `communicate`.
        stderr: likewise.
    """

    def __init__(self, arguments, env, cwd, stdout=None, stderr=None):
        opened = functools.partial(tempfile.TemporaryFile, "w+", encoding="utf-8")
        self._files = [file or opened() for file in (stdout, stderr)]
        self.args = arguments
        self.returncode: Any = None
        self._connection = _connect()
        weakref.finalize(self, _close, self._connection, *self._files)
        request = {"arguments": arguments, "env": env, "cwd": str(cwd)}
        socket.send_fds(
            self._connection, [json.dumps(request).encode()], [f.fileno() for f in self._files]
        )
        self.pid = json.loads(self._connection.recv(1 << 12))["pid"]

    def wait(self, timeout: Any = None):
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._connection, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = json.loads(self._connection.recv(1 << 12))["returncode"]
        return self.returncode

    def poll(self):
        try:
            return self.wait(timeout=0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def printed(self):
        """Returns what the command has printed so far: stdout and stderr."""
        # `pread`, because the child writes at the position that it shares with this file.
        return [_text(file) for file in self._files]

    def communicate(self, timeout=None):
        self.wait(timeout)
        return self.printed()


def _close(*opened):
    for one in opened:
        one.close()


def _text(file):
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()


def start_command(*arguments, env=None, cwd=ROOT, stdout=None, stderr=None):
    """Starts a command; `env` is added to this process's variables."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    return Process([str(a) for a in arguments], env, cwd, stdout, stderr)


def run_command(*arguments, env=None, cwd=ROOT, timeout=TIMEOUT_S):
    """Runs a command to its end."""
    process = start_command(*arguments, env=env, cwd=cwd)
    try:
        process.wait(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(arguments, process.returncode, *process.communicate())


def start(workdir, digits_dir, *overrides, config=TINY):
    """Starts a training run of the tiny recipe."""
    run = [f"--config={config}", f"--workdir={workdir}", f"--config.data.data_dir={digits_dir}"]
    return start_command("-m", "vit_jax", "train", *run, *overrides)


def finish(process):
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


def wait_for(condition, process):
    """Polls until the condition holds; fails if the process ends before."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.001)


def one_line(capfd):
    """The one line of error that a command run in this process has written."""
    lines = capfd.readouterr().err.strip().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1
    assert not any("Traceback" in line for line in lines)
    return errors[0]


def user_error(capsys, command):
    """Runs a command that a user error must end, in this process; returns its one line."""
    from vit_jax.__main__ import main

    capsys.readouterr()
    assert main(command) == 2, command
    return one_line(capsys)


def _connect():
    _keep_server()
    return _connected()


@functools.cache
def _keep_server():
    """Starts the server unless another test process has; the connection keeps it until we end."""
    path = _path()
    path.parent.mkdir(exist_ok=True)
    with filelock.FileLock(f"{path}.lock"):
        try:
            return _connected()
        except OSError:
            path.unlink(missing_ok=True)
        log = path.with_suffix(".log")
        with log.open("w") as file:
            server = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "fork_server.py"), str(path)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                # In a session of its own, Ctrl-C does not reach it. Threads of OpenBLAS would
                # already run when it forks.
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
            )
        deadline = time.monotonic() + TIMEOUT_S
        while not path.exists():
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        server.returncode = 0  # It ends after the last test process; none waits for it.
        return _connected()


def _connected():
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(str(_path()))
    except OSError:
        connection.close()
        raise
    return connection


def _path():
    # A socket's path has at most 107 characters, less than pytest's folders.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    return Path(tempfile.gettempdir()) / f"vit-jax-tests-{run}" / "fork.socket"
