"""What a command does when the reader of its output is gone, as in `... | head -1`."""

import codecs
import io
import os
import sys
from typing import Any

# Commands that go on without printing, because their results are files.
KEEP_RUNNING = ("train", "sweep", "fewshot")
# Exit code of a shell for a program that SIGPIPE has ended.
EXIT_CLOSED_PIPE = 141


class PipeClosed(BaseException):
    """The reader of standard output is gone, and the command should end.

    Not an `Exception`, so that no library handles it.
    """


def watch_pipes(command: str) -> None:
    """Replaces standard output and standard error by streams that survive a closed pipe.

    A character that they cannot encode is written as an escape of Python.
    What is printed after the reader has gone is dropped. If the reader of standard output goes,
    commands that are not in KEEP_RUNNING end with a `PipeClosed`.
    """
    sys.stdout = _replaced(sys.stdout, ends=command not in KEEP_RUNNING)
    sys.stderr = _replaced(sys.stderr, ends=False)


def _replaced(stream: Any, *, ends: bool) -> Any:
    if not isinstance(stream, io.TextIOWrapper):  # Closed, or not a file.
        return stream
    stream.flush()
    is_utf8 = codecs.lookup(stream.encoding).name == "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(stream.fileno(), ends)),
        encoding=stream.encoding,
        # A character that the locale lacks, such as one of a class name, ends no command.
        errors="backslashreplace" if stream.errors == "strict" or not is_utf8 else stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Output(io.FileIO):
    """A file descriptor whose writes do not fail when the reader is gone."""

    def __init__(self, descriptor: int, ends: bool):
        super().__init__(descriptor, "wb", closefd=False)
        self._ends = ends

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except BrokenPipeError:
            # Everything else that this process and its libraries print goes nowhere.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if self._ends:
                raise PipeClosed from None
            return memoryview(data).nbytes
