"""Says what the exit code of a job means."""

import re
import signal

from vit_jax.errors import EXIT_STOPPED
from vit_jax.run.job_folder import Attempt

_CAUSES = {
    "SIGTERM": "asked to stop, for example by `kill` or by a scheduler at its time limit",
    "SIGKILL": "ended by force, often because memory ran out",
    "SIGINT": "interrupted with Ctrl-C",
    "SIGHUP": "its terminal was closed",
    "SIGSEGV": "invalid memory access in compiled code",
    "SIGABRT": "compiled code gave up",
    "SIGBUS": "invalid memory access, often a full /dev/shm",
}
# The shell adds this to the number of a signal.
_SHELL = 128


def why_ended(attempt: Attempt | None) -> str:
    """Returns why the latest start of a job ended without a result; "" if that is not known."""
    if attempt is None:
        return ""
    stopped = attempt.ended is not None and attempt.exit_code
    return explain_exit(attempt.why_failed or (f"exit code {attempt.exit_code}" if stopped else ""))


def explain_exit(text: str) -> str:
    """Adds the names of signals and their usual causes to a sentence about an exit code.

    >>> explain_exit("exit code -15").partition(":")[0]
    'exit code -15 (SIGTERM'
    >>> explain_exit("exit code 137").partition(":")[0], explain_exit("exit code 1")
    ('exit code 137 (SIGKILL', 'exit code 1')
    """
    return re.sub(r"(exit code|killed by signal) (-?\d+)", _explained, text)


def _explained(match: re.Match[str]) -> str:
    code = abs(int(match[2]))
    if code == EXIT_STOPPED:
        return f"{match[0]} (stopped after saving: the same command resumes it)"
    if match[1] == "exit code" and not match[2].startswith("-"):
        code -= _SHELL
    try:
        name = signal.Signals(code).name
    except ValueError:
        return match[0]
    cause = _CAUSES.get(name) or (signal.strsignal(code) or "").lower()
    return f"{match[0]} ({name}: {cause})"
