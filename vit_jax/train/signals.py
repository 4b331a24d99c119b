"""Stopping on request: SIGTERM and SIGINT ask, the loop answers at the end of a step."""

import signal
from types import FrameType
from typing import Any

# sysexits.h EX_TEMPFAIL: "try again later". Schedulers are told to requeue on it.
EXIT_STOPPED = 75


class Stopped(Exception):
    """The run was asked to stop and has saved its state.

    Attributes:
        step: step of the checkpoint.
    """

    def __init__(self, step: int):
        super().__init__(f"stopped at step {step}")
        self.step = step


class StopSignals:
    """While entered, SIGTERM and SIGINT set `requested`; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
