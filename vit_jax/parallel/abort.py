"""Calls a function when a C++ library aborts this process, before the process ends."""

import ctypes
import faulthandler
import os
import signal
import threading
from collections.abc import Callable


def call_before_abort(action: Callable[[], None]) -> None:
    """Makes a thread call a function when this process gets SIGABRT. Then the process ends.

    No Python runs in the signal handler, where it could hang. Two C functions handle the signal:
    that of `faulthandler` writes to a pipe, which wakes up the thread; then `sleep` of the C
    library is called with the number of the signal. So the abort is delayed by six seconds, or less
    if the thread is faster. If the aborting thread holds the GIL, the function is not called. The
    function may exit.

    If `faulthandler` is already enabled, nothing is changed, because its tracebacks are wanted.
    """
    if faulthandler.is_enabled():
        return
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))
    read_end, write_end = os.pipe()
    faulthandler.enable(write_end, all_threads=False)

    def wait() -> None:
        with os.fdopen(read_end, "rb", buffering=0) as pipe:
            if b"Aborted" not in pipe.readline():
                return  # Another fatal signal, which ends the process at once.
        action()
        libc.signal(signal.SIGABRT, None)  # The default, which ends the process.
        os.kill(os.getpid(), signal.SIGABRT)

    threading.Thread(target=wait, name="before abort", daemon=True).start()
