"""Signals by which clusters and terminals warn a process before they end it."""

import signal
import threading

# SIGUSR1 and SIGUSR2: a time limit of SLURM, PBS or LSF; SIGXCPU: one of Grid Engine, or of CPU
# time; SIGHUP: the terminal was closed. Windows has none of them.
WARNING_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGHUP")
    if hasattr(signal, name)
)


def unhandled_warnings() -> list[int]:
    """Returns the warnings that would end this process.

    Others are ignored, as SIGHUP is below nohup, or belong to a library, as submitit's SIGUSR2.
    """
    return [n for n in WARNING_SIGNALS if signal.getsignal(n) is signal.SIG_DFL]


def can_handle_signals() -> bool:
    """Whether this is the main thread: Python lets no other set handlers."""
    return threading.current_thread() is threading.main_thread()
