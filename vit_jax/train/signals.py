"""Stops a command on a signal, at a point where its state can be saved."""

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import Any

from vit_jax.errors import EXIT_INTERRUPTED
from vit_jax.warning_signals import can_handle_signals, unhandled_warnings


class Stopped(Exception):
    """The run was stopped by a signal and has saved `step`; 0 if nothing was trained yet."""

    def __init__(self, step: int):
        super().__init__(f"stopped at step {step}")
        self.step = step


class StopSignals:
    """In its `with` block, SIGTERM and SIGINT set `requested`; a second SIGINT ends the process.

    With `warnings`, so do SIGUSR1, SIGUSR2, SIGXCPU and SIGHUP, each unless it was ignored or
    handled before. In another thread than the main one, signals go to whoever handles them there.

    In a run of several processes, JAX handles SIGTERM after they have connected, see
    `vit_jax.parallel.processes.StopAgreement`.
    """

    def __init__(
        self,
        first: str = "stopping after this step and saving (Ctrl-C again to quit without saving)",
        again: str = "interrupted without saving",
        *,
        warnings: bool = True,
    ) -> None:
        self.requested = False
        self._first, self._again, self._warnings = first, again, warnings
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if not can_handle_signals():
            return self
        warnings = unhandled_warnings() if self._warnings else []
        for number in (signal.SIGTERM, signal.SIGINT, *warnings):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.requested and number == signal.SIGINT:
            # An exception would surface wherever the main thread happens to be.
            _print(self._again)
            os._exit(EXIT_INTERRUPTED)
        if not self.requested:
            _print(self._first)
        self.requested = True


def _print(line: str) -> None:
    """Prints a line to standard error, in a signal handler."""
    if sys.stderr.isatty():  # In place of the last of two live lines, which are drawn below it.
        line = f"\r\x1b[K{line}\n"
    with contextlib.suppress(OSError):  # Its reader may be gone.
        os.write(sys.stderr.fileno(), f"{line}\n".encode())
