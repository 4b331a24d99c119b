"""What submitit runs for a job: the command as a process of its own, watched and noted."""

import contextlib
import os
import platform
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from submitit.helpers import DelayedSubmission

from vit_jax.sweep.records import (
    Attempt,
    job_lock,
    log_file,
    open_lock,
    read_attempt,
    write_attempt,
)

# A launcher that looks whether the lock is held holds it for a moment itself.
_SECONDS_FOR_LOCK = 5.0


class JobTask:
    """Runs the command of a job, once at a time, and notes how it ended.

    SIGTERM (a launcher that stops, `scontrol requeue`) is passed on: the run saves and ends. On
    SIGUSR2 (the end of SLURM's time limit, preemption) submitit calls `checkpoint`, then requeues.

    Args:
        folder: of the job.
        command: its words.
        environment: variables to set, or with None to unset.
        executor: "local" or "slurm".
        slot: share of the host's devices.
        cores: CPU cores to stay on; none: all.
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        *,
        environment: Mapping[str, str | None],
        executor: str,
        slot: int = 0,
        cores: Sequence[int] = (),
    ):
        self.folder, self.command = folder, list(command)
        self.environment, self.executor = dict(environment), executor
        self.slot, self.cores = slot, list(cores)
        self._pid: int | None = None
        self._stopping = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pid": None, "_stopping": False}

    def __call__(self) -> int:
        """Runs the job and returns its exit code; 75 where it was not started."""
        signal.signal(signal.SIGTERM, lambda number, frame: self._stop())
        if int(os.environ.get("SLURM_PROCID", "0")):
            return self._run(f"log-{os.environ['SLURM_PROCID']}.txt", None)
        lock = self._take_lock()
        if lock is None:
            print(f"{self.folder} is run by another process")
            return 75
        with lock:
            if self._stopping:
                return 75
            if (self.folder / "result.json").exists():
                return 0
            return self._run(log_file(self.folder).name, lock.fileno())

    def checkpoint(self) -> DelayedSubmission:
        """Stops the run, which saves, and returns what goes on with it."""
        self._stop()
        if self._pid is not None:
            _wait(self._pid)
        return DelayedSubmission(self)

    def _take_lock(self) -> Any:
        deadline = time.monotonic() + _SECONDS_FOR_LOCK
        while True:
            lock = open_lock(job_lock(self.folder))
            if lock is not None or self._stopping or time.monotonic() > deadline:
                return lock
            time.sleep(0.1)

    def _stop(self) -> None:
        self._stopping = True
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def _run(self, log_name: str, lock: int | None) -> int:
        """Runs the command.

        Args:
            log_name: file in the job's folder that takes what it prints.
            lock: file that the run keeps open, so that it is held even if this process is killed;
                None: not the first of several tasks, which alone notes.
        """
        environment = {**os.environ, **self.environment}
        with (self.folder / log_name).open("ab") as log:
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={k: v for k, v in environment.items() if v is not None},
                pass_fds=() if lock is None else (lock,),
                preexec_fn=self._prepare,
            )
        self._pid = process.pid
        if self._stopping:
            self._stop()
        attempt = None if lock is None else self._note(process.pid)
        try:
            _wait(process.pid)
        finally:  # Left by an exception when submitit requeues the job.
            self._pid = None
            code = process.wait()
            if attempt is not None:
                write_attempt(
                    self.folder, replace(attempt, ended=time.time(), exit_code=code)
                )  # fmt: skip
        return code

    def _prepare(self) -> None:
        """In the new process, before the command: what it must not inherit."""
        # SLURM sends this one to every process of a job, and it ends those that do not expect it.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP})
        if self.executor == "local":
            os.setsid()  # A Ctrl-C in the terminal is the launcher's.
        if self.cores:
            os.sched_setaffinity(0, self.cores)

    def _note(self, pid: int) -> Attempt:
        before = read_attempt(self.folder)
        attempt = Attempt(
            number=before.number + 1 if before else 1,
            executor=self.executor,
            id=os.environ.get("SLURM_JOB_ID" if self.executor == "slurm" else
                              "SUBMITIT_LOCAL_JOB_ID", ""),
            host=platform.node(),
            pid=pid,
            slot=self.slot,
            started=time.time(),
        )  # fmt: skip
        write_attempt(self.folder, attempt)
        return attempt


def _wait(pid: int) -> None:
    """Waits for a child's end without taking its exit code, so that a signal handler may, too."""
    if hasattr(os, "waitid"):  # Not on macOS, where there is no SLURM and no second one who waits.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
