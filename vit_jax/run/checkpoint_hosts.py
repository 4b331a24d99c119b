"""Orbax among several processes: its barriers have names and time-outs, and tell who is missing.

By default Orbax meets through collectives of the devices, which wait for ever, behind the steps
that are still to be computed, and are compiled at the first save. With what is set here it meets
through JAX's coordinator while the step loop waits, and through ours (`parallel.hosts`) while the
files of a save are written in the background.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import options

from vit_jax.errors import HostsError, first_few
from vit_jax.parallel import hosts

# By when every process must have come to where a checkpoint is saved or restored.
MEETING_TIMEOUT_S = hosts.MEETING_TIMEOUT_S
# By when all of them must have written their files of it.
WRITE_TIMEOUT_S = 1800
_PREFIX = "checkpoint"


def host_options() -> dict[str, Any]:
    """Returns what `CheckpointManagerOptions` need to know of the processes; one needs nothing."""
    if jax.process_count() == 1:
        return {}
    return {
        "multiprocessing_options": options.MultiprocessingOptions(
            primary_host=0,
            active_processes=set(range(jax.process_count())),
            barrier_sync_key_prefix=_PREFIX,
        ),
        "async_options": options.AsyncOptions(
            timeout_secs=WRITE_TIMEOUT_S, barrier_sync_fn=_meet_in_background
        ),
    }


def make_folder(folder: Path) -> None:
    """Makes a folder that all processes share, on the first of them."""
    hosts.first_does(
        "make the folder of checkpoints", lambda: folder.mkdir(parents=True, exist_ok=True)
    )


def meet(name: str) -> None:
    """Waits until all processes are here.

    Raises:
        HostsError: somebody did not come.
    """
    hosts.barrier(name, MEETING_TIMEOUT_S)


def _meet_in_background(*, key: str, timeout_ms: int) -> None:
    hosts.barrier(key, timeout_ms / 1000)


@contextlib.contextmanager
def told_who_is_missing() -> Iterator[None]:
    """Turns a barrier of Orbax that ran out of time into one line with its name and who was late.

    Raises:
        HostsError: somebody did not come.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        missing = _missing(str(error))
        if missing is None:
            raise
        raise HostsError(
            missing, "every process there",
            "look there for what it waits for, and run the same command again",
        ) from error  # fmt: skip


def _missing(message: str) -> str | None:
    r"""Returns who did not come to which barrier, as JAX's coordinator tells it; None: it does not.

    >>> _missing("DEADLINE_EXCEEDED: Barrier timed out. Id: checkpoint_CheckpointManager:save_start"
    ...          "::3. This ... Some timed out task names:\n1\n2\n\n\nRPC: /xla")
    "processes 1, 2 did not come to 'checkpoint_CheckpointManager:save_start' in time"
    """
    found = re.search(r"Barrier timed out\. Id: (.+?)(?:::\d+)?\. ", message)
    if found is None:
        return None
    _, _, names = message.partition("timed out task names:")
    # Of old "/job:jax_worker/replica:0/task:1", today "1".
    late = re.findall(r"(?:task:)?(\d+)\s*$", names.split("RPC:")[0], re.MULTILINE)
    word = "process" if len(late) == 1 else "processes"
    shown = f"{word} {first_few(late, 8)}" if late else "somebody"
    return f"{shown} did not come to '{found[1]}' in time"
