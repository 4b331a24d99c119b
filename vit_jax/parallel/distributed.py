"""Start and end of a run of several processes.

    with start(detect(), identity=..., code=...):
        ...

First all processes meet on the coordinator's port and compare config and code, before JAX is
started: who is missing, and who was started differently, is told by every process in one line.
Then JAX is started and the devices in use are compared with those that are there.
"""

import contextlib
import ctypes
import logging
import os
import platform
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from vit_jax.errors import EXIT_STOPPED, ConfigError, HostsError, UserError, first_few
from vit_jax.parallel import hosts
from vit_jax.parallel.channel import Ending, Member
from vit_jax.parallel.hub import Hub
from vit_jax.parallel.launch import Launch, visible_gpus

log = logging.getLogger(__name__)

# By when all processes of a run must have come.
START_TIMEOUT_S = 300.0
# Silence after which a process is taken to be gone. One that is killed is missed at once.
PEER_TIMEOUT_S = 60.0
# JAX's own watch ends a process with a page of C++ frames; ours is to be first.
_JAX_SLOWER = 3
_RETRY_S = 0.2
# As `train.signals` has it: asked to stop, to be run again.
# After an error here: so long to wait for the news that it came from another process.
_NEWS_S = 5.0


@contextlib.contextmanager
def start(
    launch: Launch | None,
    *,
    config: Mapping[str, Any],
    code: Mapping[str, Any],
    cancelled: Callable[[], bool] = lambda: False,
    start_timeout_s: float = START_TIMEOUT_S,
    peer_timeout_s: float = PEER_TIMEOUT_S,
) -> Iterator[None]:
    """Makes this process one of the run's while entered.

    An error inside, of whatever kind, ends this process after the other processes were told; an
    error of another process, or its death, ends this one with a line that names it.

    Args:
        launch: how this process was started; None: alone, only the devices are checked.
        config: key -> value, the same on all hosts.
        code: name -> version, the same on all hosts.
        cancelled: asked while waiting for the others.
        start_timeout_s: by when all must have come.
        peer_timeout_s: silence after which a process is taken to be gone.

    Raises:
        HostsError: somebody did not come.
        ConfigError: hosts disagree, or leave devices unused.
        InterruptedError: `cancelled` said so before all had come.
    """
    if launch is None:
        _check_devices([_devices(None)])
        yield
        return
    member = _meet(launch, cancelled, start_timeout_s, peer_timeout_s)
    hosts.join(member)
    try:
        facts = {"host": platform.node(), "config": dict(config), "code": dict(code)}
        met = member.gather("start", facts, start_timeout_s, cancelled)
        member.hub_name = met[0]["host"]
        with _told_by_all(member):
            _check_facts(met)
        _start_jax(launch, member, start_timeout_s, peer_timeout_s)
        found = member.gather("devices", _devices(launch), start_timeout_s)
        _show(found, launch)
        with _told_by_all(member):
            _check_devices(found)
        yield
        member.gather("end", None, hosts.MEETING_TIMEOUT_S)
        member.leave(0)
        jax.distributed.shutdown()
    except BaseException as error:
        _fail(member, error)
    finally:
        hosts.join(None)


def _meet(
    launch: Launch, cancelled: Callable[[], bool], start_timeout_s: float, peer_timeout_s: float
) -> Member:
    """Connects to process 0, which opens the hub first; waits for it where it is not there yet."""
    host, _, port = launch.coordinator.rpartition(":")
    host, first = host.strip("[]"), launch.process_id == 0
    address = (host, int(port))
    if first:
        listener = _listen(host, int(port))
        bound = listener.getsockname()
        address = (("::1" if ":" in bound[0] else "127.0.0.1")
                   if bound[0] in ("::", "0.0.0.0") else bound[0], bound[1])  # fmt: skip
        timeouts = {"start_timeout_s": start_timeout_s, "peer_timeout_s": peer_timeout_s}
        Hub(listener, launch.num_processes, **timeouts).start()
    deadline, connection = time.monotonic() + start_timeout_s, None
    while connection is None:
        if cancelled():
            raise InterruptedError("asked to stop while waiting for process 0")
        try:
            connection = socket.create_connection(address, timeout=10)
        except OSError as error:
            if time.monotonic() > deadline:
                raise HostsError(
                    f"no process 0 at {launch.coordinator} within {start_timeout_s:g} s ({error})",
                    "it to be started, and its port to be reachable",
                    "look on that host, or correct --coordinator",
                ) from None
            time.sleep(_RETRY_S)
    return Member(
        connection,
        launch.process_id,
        launch.num_processes,
        name=platform.node(),
        peer_timeout_s=peer_timeout_s,
        on_end=_end_process,
        hub_name=host,
    )


def _listen(host: str, port: int) -> socket.socket:
    bind = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", "").rpartition(":")[0].strip("[]")
    if not bind and host in ("127.0.0.1", "localhost"):
        bind = "127.0.0.1"
    everywhere = "" if bind in ("", "::", "0.0.0.0") else bind
    dual = not everywhere and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or ":" in everywhere else socket.AF_INET
    try:
        return socket.create_server(
            (everywhere, port), family=family, backlog=1024, dualstack_ipv6=dual
        )
    except OSError as error:
        raise ConfigError(
            f"cannot listen on port {port} of this host: {error.strerror}", "a free port",
            "choose another --coordinator or JAX_COORDINATOR_PORT; a run may still be there",
        ) from None  # fmt: skip


def _start_jax(
    launch: Launch, member: Member, start_timeout_s: float, peer_timeout_s: float
) -> None:
    _tell_of_aborts(member)
    # Its handler of SIGTERM would take the place of ours, which also knows SIGINT.
    jax.config.update("jax_enable_preemption_service", False)
    platforms = jax.config.jax_platforms or ""  # pyright: ignore[reportAttributeAccessIssue]
    if platforms in ("", "cpu"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    host, _, port = launch.coordinator.rpartition(":")
    options: dict[str, Any] = {}
    if host in ("127.0.0.1", "localhost") and "JAX_COORDINATOR_BIND_ADDRESS" not in os.environ:
        options["coordinator_bind_address"] = f"127.0.0.1:{port}"
    jax.distributed.initialize(
        launch.coordinator,
        launch.num_processes,
        launch.process_id,
        local_device_ids=None if launch.local_device_ids is None else [*launch.local_device_ids],
        cluster_detection_method="deactivate",
        initialization_timeout=int(start_timeout_s),
        heartbeat_timeout_seconds=int(peer_timeout_s) * _JAX_SLOWER,
        shutdown_timeout_seconds=int(peer_timeout_s),
        **options,
    )
    if launch.process_id:
        logging.getLogger("vit_jax").setLevel(logging.WARNING)


def _check_facts(found: list[dict[str, Any]]) -> None:
    """Raises ConfigError where a process has another config or code than process 0."""
    first = found[0]
    for process, other in enumerate(found[1:], start=1):
        for part, fix in (
            ("code", "install the same revision on every host"),
            ("config", "start the same command on every host"),
        ):
            keys = sorted(first[part].keys() | other[part].keys())
            rows = [
                f"{key}: {other[part].get(key)!r} there, {first[part].get(key)!r} on process 0"
                for key in keys
                if other[part].get(key) != first[part].get(key)
            ]
            if rows:
                raise ConfigError(
                    f"process {process} has another {part} ({first_few(rows, 4, '; ')})",
                    "the same on all hosts", fix,
                )  # fmt: skip


def _devices(launch: Launch | None) -> dict[str, Any]:
    """Returns what this process computes on, and what the scheduler gave to its host."""
    devices, allotted = jax.local_devices(), None if launch is None else launch.allotted
    platform_name = devices[0].platform
    wanted = jax.config.jax_platforms or ""  # pyright: ignore[reportAttributeAccessIssue]
    if wanted == "cpu":
        allotted = None
    elif allotted is None and (launch is None or launch.local_device_ids is None):
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        if named and platform_name == "cpu":
            allotted = visible_gpus(os.environ)
        elif platform_name == "cpu":
            allotted = _tpu_chips()
    return {
        "host": platform.node(),
        "node": os.environ.get("SLURM_NODEID"),
        "pid": os.getpid(),
        "platform": platform_name,
        "kind": devices[0].device_kind,
        "ids": [d.id for d in devices],
        "allotted": allotted,
    }


def _tpu_chips() -> int | None:
    try:
        from jax._src import hardware_utils

        return hardware_utils.num_available_tpu_chips_and_device_id()[0] or None
    except (ImportError, AttributeError, OSError):
        return None


def _check_devices(found: list[dict[str, Any]]) -> None:
    """Raises ConfigError where a host has accelerators that no process uses."""
    nodes: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for row in found:
        nodes.setdefault((row["host"], row["node"]), []).append(row)
    for (host, _), rows in nodes.items():
        allotted = max(row["allotted"] or 0 for row in rows)
        used = sum(len(row["ids"]) for row in rows if row["platform"] != "cpu")
        if used < allotted:
            shown = f"{used} of {allotted}" if used else f"none of {allotted}"
            fix = (
                "start one process a host that sees them all, or one for each"
                if used
                else 'install jax for them, e.g. pip install "jax[cuda13]" or "jax[tpu]"; '
                "JAX_PLATFORMS=cpu says that the CPU is meant"
            )
            raise ConfigError(
                f"{shown} accelerators of {host} in use"
                + ("" if used else f": JAX found only {rows[0]['kind']}"),
                "all that were allotted", fix,
            )  # fmt: skip
    platforms = {row["platform"] for row in found}
    if len(platforms) > 1:
        rows = [f"process {i} ({row['host']}): {row['platform']}" for i, row in enumerate(found)]
        raise ConfigError(
            f"processes on different platforms ({first_few(rows, 8)})",
            "one", "install the same jax on every host",
        )  # fmt: skip


def _show(found: list[dict[str, Any]], launch: Launch, console: Console | None = None) -> None:
    """Prints who computes on what, on process 0."""
    if launch.process_id:
        return
    count = sum(len(row["ids"]) for row in found)
    table = Table(
        title=f"{len(found)} processes, {count} devices (started by {launch.cluster})",
        title_justify="left",
    )
    for name in ("process", "host", "pid", "devices", "kind", "ids"):
        table.add_column(name, justify="right" if name in ("process", "pid", "devices") else "left")
    for process, row in enumerate(found):
        ids = [str(i) for i in row["ids"]]
        table.add_row(
            str(process), row["host"], str(row["pid"]), str(len(ids)), row["kind"],
            first_few(ids, 8, " "),
        )  # fmt: skip
    (console or Console()).print(table)


@contextlib.contextmanager
def _told_by_all(member: Member) -> Iterator[None]:
    """Ends all processes after an error that all of them find: each tells it, none relays it."""
    try:
        yield
    except UserError as error:
        _tell(str(error))
        with contextlib.suppress(HostsError):
            member.gather("end", None, START_TIMEOUT_S)
        member.leave(error.exit_code)
        _exit(error.exit_code)


def _fail(member: Member, error: BaseException) -> None:
    """Ends this process and tells the others; an error that came from another one is told as such.

    At once, past the ends of libraries: they would wait for processes that are no longer there.
    """
    code, line = 1, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
    if isinstance(error, UserError) and not isinstance(error, HostsError):
        code, line = error.exit_code, str(error)
    elif isinstance(error, InterruptedError):
        code, line = EXIT_STOPPED, str(error)
    else:
        # A broken collective, say. If somebody is gone, the reader thread ends this process.
        ending = member.wait_for_end(_NEWS_S)
        if ending is not None:
            _end_process(ending)
    if code == 1 or "--debug" in sys.argv:
        traceback.print_exception(error)
    _tell(line)
    member.leave(code, line)
    _exit(code)


def _end_process(ending: Ending) -> None:
    _tell(ending.line)
    _exit(ending.code)


def _tell(line: str) -> None:
    """Prints the one line of this process; who comes second, waits for the end."""
    if not _telling.acquire(blocking=False):
        threading.Event().wait(_NEWS_S * 4)
        return
    os.write(sys.stderr.fileno(), f"error: {line}\n".encode())


def _exit(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _tell_of_aborts(member: Member) -> None:
    """Lets the line that names a lost process be the last one where JAX ends this process first.

    JAX aborts as soon as it misses process 0, often before our own thread has read of it. An abort
    for any other reason stays one.
    """

    def handle(number: int) -> None:
        ending = member.wait_for_end(_NEWS_S)
        if ending is not None:
            _end_process(ending)

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(handle)
    _kept.append(handler)
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))


_telling = threading.Lock()

# What C calls must live as long as the process.
_kept: list[Any] = []
