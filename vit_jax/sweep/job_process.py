"""The process that submitit starts for a job. It runs the job's command and records its end."""

import contextlib
import dataclasses
import os
import platform
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import submitit
from submitit.helpers import DelayedSubmission

from vit_jax.errors import EXIT_STOPPED, LockedError, RunFolderError
from vit_jax.run.job_folder import (
    ERROR_FILE,
    Attempt,
    error_file,
    job_lock,
    keep_log,
    local_folder,
    read_attempt,
    read_data_error,
    run_lock,
    write_attempt,
)
from vit_jax.run.result import read_result
from vit_jax.storage.lock import is_locked, locked
from vit_jax.sweep.devices import Share
from vit_jax.warning_signals import unhandled_warnings

# A launcher that checks the lock holds it briefly, so wait this long for it.
_LOCK_TIMEOUT_S = 5.0


@dataclasses.dataclass
class JobProcess:
    """Runs a job's command in a child process.

    SIGTERM (from `scontrol requeue`) and the warnings of clusters are passed on: the run saves and
    ends. On its own signal (SLURM's time limit, preemption), SIGUSR2 unless SUBMITIT_PREEMPT_SIGNAL
    names another, submitit calls `checkpoint` and requeues the job.
    """

    folder: Path
    command: Sequence[str]
    slot: int = 0  # index of the device share
    share: Share = dataclasses.field(default_factory=Share)
    _process: subprocess.Popen | None = dataclasses.field(default=None, init=False)
    _stopping: bool = dataclasses.field(default=False, init=False)

    def __call__(self) -> int:
        """Runs the job and returns its exit code; 75 if it was not started."""
        for number in (signal.SIGTERM, *unhandled_warnings()):
            signal.signal(number, lambda number, frame: self._stop())
        rank = submitit.JobEnvironment().global_rank
        if rank:  # Only the first of several tasks writes attempt.json.
            return self._run(f"log-{rank}.txt", record=False)
        try:
            with locked(job_lock(self.folder), _LOCK_TIMEOUT_S):
                with contextlib.suppress(RunFolderError):  # The command says what is damaged.
                    if read_result(self.folder) is not None:
                        return 0
                if self._stopping or is_locked(run_lock(self.folder)):
                    return EXIT_STOPPED
                return self._run("log.txt", record=True)
        except LockedError:
            print(f"{self.folder} is run by another process")
            return EXIT_STOPPED

    def checkpoint(self) -> DelayedSubmission:
        """Stops the run, which saves, and returns the job that resumes it."""
        self._stop()
        if self._process is not None:
            _wait(self._process.pid)
        return DelayedSubmission(dataclasses.replace(self))

    def _stop(self) -> None:
        self._stopping = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)

    def _run(self, log: str, *, record: bool) -> int:
        """Runs the command; `record` says whether to write attempt.json."""
        note = error_file(self.folder)
        variables = {**os.environ, **self.share.environment, ERROR_FILE: str(note)}
        here = local_folder(self.folder)
        here.mkdir(parents=True, exist_ok=True)
        note.unlink(missing_ok=True)
        with (here / log).open("ab") as file:
            self._process = process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={key: value for key, value in variables.items() if value is not None},
                # Ctrl-C in the terminal then reaches only the launcher.
                start_new_session=submitit.JobEnvironment().cluster == "local",
                preexec_fn=self._prepare,
            )
        if self._stopping:  # The signal came before the process was started.
            self._stop()
        attempt = self._record_start(process.pid) if record else None
        try:
            _wait(process.pid)
        finally:  # submitit raises an exception here to requeue the job.
            self._process = None
            code = process.wait()
            with contextlib.suppress(OSError):  # It stays on the local disk.
                keep_log(self.folder, log)
            if attempt is not None:
                ended = dataclasses.replace(
                    attempt,
                    ended=time.time(),
                    exit_code=code,
                    data_error=read_data_error(self.folder),
                )
                write_attempt(self.folder, ended)
        return code

    def _prepare(self) -> None:
        """Runs in the child process before the command."""
        # SLURM sends submitit's signal to every process of a job; the run leaves it to submitit.
        own = getattr(signal, f"SIG{submitit.JobEnvironment.USR_SIG}", signal.SIGUSR2)
        signal.signal(own, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP})
        if self.share.cores:
            os.sched_setaffinity(0, self.share.cores)

    def _record_start(self, pid: int) -> Attempt:
        before, environment = read_attempt(self.folder), submitit.JobEnvironment()
        attempt = Attempt(
            number=before.number + 1 if before else 1,
            executor=environment.cluster,
            id=environment.job_id,
            host=platform.node(),
            pid=pid,
            slot=self.slot,
            started=time.time(),
        )
        write_attempt(self.folder, attempt)
        return attempt


def _wait(pid: int) -> None:
    """Waits until a child ends but does not reap it: a signal handler may wait for it too."""
    if hasattr(os, "waitid"):  # Missing on macOS, where submitit sends no SIGUSR2.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
