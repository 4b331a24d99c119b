"""Coordination of a run's processes through the coordination service of `jax.distributed`.

    with connected(detect(), config=..., code=...):
        ...

Process 0 hosts the service. It has a key-value store, barriers that name late processes, and
preemption notices: after a SIGTERM, all processes agree on a step to stop at. This module uses the
store to add four things:

- An error in one process ends all processes. A thread in each process looks for errors of the
  others, so that even a process that hangs in a collective exits with a one-line error.
- A killed process is named in a one-line error. JAX detects missing heartbeats, too, but then it
  aborts with C++ stack frames, and its callback cannot be written in Python. So the thread of each
  process increments a counter, and process 0 checks that all counters increase. JAX's time limit is
  three times as long.
- If process 0 is killed, the service is gone, and a C++ thread of JAX aborts the other processes.
  Before that, they print a one-line error that names process 0 and exit.
- SIGINT stops a run like SIGTERM. JAX handles only SIGTERM.

Every process must call these functions at the same point of the program, except `is_first_host`.
With one process, they return immediately.
"""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import logging
import os
import platform
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import jax
from jax.experimental import multihost_utils
from rich.console import Console

from vit_jax.errors import EXIT_STOPPED, ConfigError, HostsError, UserError, first_few
from vit_jax.jax_internals import CoordinationClient, coordination_client
from vit_jax.parallel.abort import call_before_abort
from vit_jax.parallel.devices import check_devices, local_devices, print_devices
from vit_jax.parallel.launch import Launch

log = logging.getLogger(__name__)

# Time limit of barriers, longer than the slowest save.
BARRIER_TIMEOUT_S = 900.0

# JAX waits this many times longer for a heartbeat than this module.
_JAX_TIMEOUT_FACTOR = 3
# Each process sends a heartbeat and looks for errors of the others this often.
_WATCH_INTERVAL_S = 1.0
# A process that exits because of an error waits this long for the others to see the error.
_EXIT_TIMEOUT_S = 3.0
# Keys of the store.
_ERROR, _HEARTBEATS, _VALUES = "vit_jax/error", "vit_jax/heartbeats", "vit_jax/values"
_SENT = "vit_jax/sent"


@dataclasses.dataclass
class _Run:
    """This process's connection to the others."""

    client: CoordinationClient
    process: int  # number of this process
    peer_timeout_s: float  # see `connected`
    hosts: list[str]  # host name of each process
    # Set when this process has finished, or has itself failed.
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)
    # Counts the calls of `gather`.
    gathers: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def name(self, process: int) -> str:
        return f"{process} ({self.hosts[process]})"

    def end_all(self, line: str, code: int) -> None:
        """Makes all processes print a line and exit. If several call this, the first one wins."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self.client.key_value_set(f"{_ERROR}/first", json.dumps([line, code]))

    def exit(self, code: int) -> NoReturn:
        """Exits without cleanup, because libraries would wait for processes that are gone."""
        # Process 0 hosts the service, so it exits last: when the others have seen the error, and a
        # second later. JAX would abort them.
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self.client.wait_at_barrier("exit", int(_EXIT_TIMEOUT_S * 1000))
            time.sleep(1.0 if self.process == 0 else 0.0)
        _exit(code)

    def watch(self) -> None:
        """Sends heartbeats and looks for errors of other processes until this process ends."""
        last = {process: ("", time.monotonic()) for process in range(len(self.hosts))}
        own = f"{_HEARTBEATS}/{self.process}"
        for beat in itertools.count():
            # If the service is gone, JAX aborts this process.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self.client.key_value_set(own, str(beat), allow_overwrite=True)
                if self.process == 0:
                    self._check_heartbeats(last)
                errors = self.client.key_value_dir_get(f"{_ERROR}/")
                if errors and not self.ended.is_set():
                    line, code = json.loads(errors[0][1])
                    _print_error(line)
                    self.exit(code)
            if self.ended.wait(min(_WATCH_INTERVAL_S, self.peer_timeout_s / 6)):
                return

    def _check_heartbeats(self, last: dict[int, tuple[str, float]]) -> None:
        """Ends the run if a process is lost.

        `last` maps a process to its last heartbeat and when it was first seen; it is updated.
        """
        now = time.monotonic()
        for key, beat in self.client.key_value_dir_get(f"{_HEARTBEATS}/"):
            process = int(key.rpartition("/")[2])
            if beat != last[process][0]:
                last[process] = beat, now
        lost = [p for p, (_, seen) in last.items() if now - seen > self.peer_timeout_s]
        if lost:
            who = _plural("process", [self.name(p) for p in lost])
            line = _lost_message(f"no heartbeat from {who} for {self.peer_timeout_s:g} s")
            self.end_all(line, HostsError.exit_code)


_run: _Run | None = None


@contextlib.contextmanager
def connected(
    launch: Launch | None,
    *,
    config: Mapping[str, Any],
    code: Mapping[str, Any],
    start_timeout_s: float,
    peer_timeout_s: float,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Connects the processes of a run, and checks that their config, code and devices match.

    An error inside the block ends all processes of the run. Each prints one line that names the
    process with the error.

    Args:
        launch: how this process was started; None: the run has one process.
        config: key -> value; must be the same on all processes.
        code: name -> version; must be the same on all processes.
        start_timeout_s: time limit for all processes to connect.
        peer_timeout_s: time after which a process without a heartbeat is considered lost.
        cancelled: called repeatedly while this process waits for the others. If it returns True,
            this process exits.
    """
    global _run
    if launch is None:
        check_devices([local_devices(None)])
        yield
        return
    # All processes raise the errors of the checks, so these name no process.
    prefix = ""
    try:
        _initialize_jax(launch, cancelled, start_timeout_s, peer_timeout_s)
        hosts = ["unknown host"] * launch.num_processes
        _run = run = _Run(coordination_client(), launch.process_id, peer_timeout_s, hosts)
        thread = threading.Thread(target=run.watch, name="watch processes", daemon=True)
        thread.start()
        call_before_abort(lambda: _exit_without_service(run, launch.coordinator))
        facts = {"num_processes": launch.num_processes, **config}
        facts = {"host": platform.node(), "config": facts, "code": dict(code)}
        gathered = gather("start", facts, start_timeout_s)
        run.hosts = [row["host"] for row in gathered]
        _check_same_program(gathered)
        found = gather("compare devices", local_devices(launch), start_timeout_s)
        if is_first_host():
            print_devices(found, launch.cluster, Console())
        check_devices(found)
        prefix = f"process {run.name(run.process)} stopped: "
        yield
        barrier("end")
        run.ended.set()
        thread.join()
        jax.distributed.shutdown()
    except BaseException as error:
        _fail(error, prefix)
    finally:
        _run = None


def is_first_host() -> bool:
    """Whether this is process 0, which writes files and logs."""
    return jax.process_index() == 0


def gather(name: str, value: Any, timeout_s: float = BARRIER_TIMEOUT_S) -> list[Any]:
    """Returns the JSON values of all processes, in the order of their numbers.

    If a process does not call this in time, the error names it and this point of the program.
    """
    _check_connected()
    if _run is None:
        return [value]
    # A process can be ahead of another one by one call, so two sets of keys are enough.
    folder = f"{_VALUES}/{next(_run.gathers) % 2}"
    own = f"{folder}/{_run.process}"
    _run.client.key_value_set(own, json.dumps(value), allow_overwrite=True)
    barrier(name, timeout_s)
    found = dict(_run.client.key_value_dir_get(f"{folder}/"))
    return [json.loads(found[f"{folder}/{process}"]) for process in range(len(_run.hosts))]


def send_to_first_host(name: str, value: Any) -> list[Any]:
    """Returns the JSON values of all processes on process 0, and only the own value on the others.

    Unlike `gather`, a background thread may call this, at any time. Another call with the same name
    must come after this one ended.
    """
    run = _run
    if run is None:
        return [value]
    own = f"{_SENT}/{name}/"
    run.client.key_value_set(f"{own}{run.process}", json.dumps(value))
    if run.process > 0:
        return [value]
    found = [
        run.client.blocking_key_value_get(f"{own}{process}", int(BARRIER_TIMEOUT_S * 1000))
        for process in range(len(run.hosts))
    ]
    run.client.key_value_delete(own)
    return [json.loads(text) for text in found]


def barrier(name: str, timeout_s: float = BARRIER_TIMEOUT_S) -> None:
    """Waits until all processes call this; an error names those that do not in time."""
    _check_connected()
    if _run is not None:
        with name_late_processes(timeout_s):
            _run.client.wait_at_barrier(name, int(timeout_s * 1000))


def on_first_host(
    name: str, action: Callable[[], Any], timeout_s: float = BARRIER_TIMEOUT_S
) -> Any:
    """Calls a function on process 0 only and returns its result, JSON, on all processes."""
    return gather(name, action() if is_first_host() else None, timeout_s)[0]


class StopAgreement:
    """Makes all processes stop at the same step if one of them is asked to stop.

    `requested` returns whether a signal handler in Python has asked this process to stop.
    """

    def __init__(self, requested: Callable[[], bool]):
        self._requested = requested
        self._calls, self._forwarded = 0, False

    def reached(self) -> bool:
        """Whether to stop now. Before a stop is requested, a call takes less than a microsecond.

        Every process must call this at the same points, e.g. after each step.
        """
        _check_connected()
        if _run is None:
            return self._requested()
        if self._requested() and not self._forwarded:
            # SIGINT, or a SIGTERM that came before JAX handled it.
            self._forwarded = True
            os.kill(os.getpid(), signal.SIGTERM)
        self._calls += 1
        return multihost_utils.reached_preemption_sync_point(self._calls)


@contextlib.contextmanager
def name_late_processes(timeout_s: float | None = None) -> Iterator[None]:
    """Converts barrier errors of JAX and Orbax to a HostsError that names the late processes."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        found = re.search(r"Barrier timed out\. Id: (.+?)(?:::\d+)?\. ", str(error))
        if found is None:
            raise
        _, _, lines = str(error).partition("timed out task names:")
        late = re.findall(r"(\d+)\s*$", lines.split("RPC:")[0], re.MULTILINE)
        names = [p if _run is None else _run.name(int(p)) for p in late]
        who = _plural("process", names) if late else "a process"
        limit = "in time" if timeout_s is None else f"within {timeout_s:g} s"
        raise HostsError(
            f"{who} did not reach '{found[1]}' {limit}",
            "all processes to reach it",
            "see its log for the cause, then run the same command again",
        ) from error


def _initialize_jax(
    launch: Launch, cancelled: Callable[[], bool], start_timeout_s: float, peer_timeout_s: float
) -> None:
    """Runs `jax.distributed.initialize` in a thread, because it blocks signals."""
    host, _, port = launch.coordinator.rpartition(":")
    bind_address = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS")
    if bind_address is None and host in ("127.0.0.1", "localhost"):
        bind_address = f"127.0.0.1:{port}"
    if launch.process_id == 0:
        _check_port(bind_address or f"[::]:{port}")
    else:
        logging.getLogger("vit_jax").setLevel(logging.WARNING)
    initialized = concurrent.futures.ThreadPoolExecutor(1).submit(
        jax.distributed.initialize,
        launch.coordinator,
        launch.num_processes,
        launch.process_id,
        local_device_ids=launch.local_device_ids,
        cluster_detection_method="deactivate",
        # JAX aborts the process at its own limit, so that must be later.
        initialization_timeout=int(start_timeout_s) + 60,
        heartbeat_timeout_seconds=max(10, int(peer_timeout_s)) * _JAX_TIMEOUT_FACTOR,
        shutdown_timeout_seconds=int(peer_timeout_s),
        coordinator_bind_address=bind_address,
    )
    deadline = time.monotonic() + start_timeout_s
    while not concurrent.futures.wait([initialized], 0.1).done:
        if cancelled():
            log.info(
                "stopped while waiting for the other processes to connect; "
                "run the same command again"
            )
            _exit(EXIT_STOPPED)
        if time.monotonic() > deadline:
            raise HostsError(
                f"not all {launch.num_processes} processes connected to {launch.coordinator}"
                f" within {start_timeout_s:g} s",
                "the same command on every host, and a port that all hosts can reach",
                "check that the command runs on every host, and check --coordinator",
            )
    initialized.result()


def _check_port(address: str) -> None:
    """Raises ConfigError if a port (of HOST:PORT) is in use: JAX would share it silently."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    host = "" if host == "::" else host  # Some hosts have no IPv6.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, int(port)), family=family).close()
    except OSError as error:
        raise ConfigError(
            f"cannot listen on port {port} of this host: {error.strerror}",
            "a free port",
            "choose another --coordinator or JAX_COORDINATOR_PORT; another run may use this one",
        ) from None


def _exit_without_service(run: _Run, coordinator: str) -> None:
    """Names process 0 and exits, if the coordination service cannot be reached."""
    host, _, port = coordinator.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 2).close()
    except OSError:
        _print_error(_lost_message(f"process {run.name(0)} was killed or crashed"))
        _exit(HostsError.exit_code)


def _check_same_program(found: list[dict[str, Any]]) -> None:
    """Raises ConfigError if a process has another config or code than process 0."""
    first = found[0]
    fixes = {
        "code": "install the same revision on every host",
        "config": "start the same command on every host",
    }
    for process, other in enumerate(found[1:], start=1):
        for part, fix in fixes.items():
            rows = [
                f"{key}: {other[part].get(key)!r} there, {first[part].get(key)!r} on process 0"
                for key in sorted(first[part].keys() | other[part].keys())
                if other[part].get(key) != first[part].get(key)
            ]
            if rows:
                raise ConfigError(
                    f"process {process} has another {part} ({first_few(rows, 4, '; ')})",
                    "the same on all hosts",
                    fix,
                )


def end_run(error: UserError) -> NoReturn:
    """Ends all processes at once with the line of an error. Any thread may call it."""
    _fail(error, "")


def _fail(error: BaseException, prefix: str) -> NoReturn:
    """Makes all processes exit because of an error in this one. The others print `prefix` first."""
    run = _run
    broken_collective = isinstance(error, jax.errors.JaxRuntimeError) and not str(error).startswith(
        "RESOURCE_EXHAUSTED"
    )
    if run is not None and broken_collective:
        # Most likely another process has died. Its missing heartbeat will then name it.
        log.warning(
            "a computation failed; waiting %g s to see whether another process is lost",
            run.peer_timeout_s,
        )
        time.sleep(1.5 * run.peer_timeout_s)
    first_line = (str(error).splitlines() or [""])[0][:300]
    line, code = f"{type(error).__name__}: {first_line}", 1
    if isinstance(error, UserError):
        line, code = str(error), error.exit_code
    if run is not None:
        run.ended.set()
    _print_error(line, error if code == 1 or "--debug" in sys.argv else None)
    if run is None:
        _exit(code)
    # All waiting processes raise the same HostsError, which already names the late process.
    run.end_all(line if isinstance(error, HostsError) else prefix + line, code)
    run.exit(code)


def _lost_message(what: str) -> str:
    return (
        f"{what}; expected all processes to run; see its log for the cause, then run the same "
        "command again to continue from the last checkpoint"
    )


def _plural(word: str, names: list[str]) -> str:
    return f"{word}{'es' if len(names) > 1 else ''} {first_few(names, 8)}"


def _check_connected() -> None:
    if _run is None and jax.process_count() > 1:
        raise HostsError(
            f"{jax.process_count()} processes without coordination",
            "processes connected by vit_jax.parallel.processes.connected",
            "start them with python -m vit_jax train, or use connected instead of"
            " jax.distributed.initialize",
        )


def _print_error(line: str, error: BaseException | None = None) -> None:
    """Prints the error line of this process. Only one thread prints; others wait for the exit.

    The traceback of `error` comes first.
    """
    if not _printing.acquire(blocking=False):
        threading.Event().wait(4 * _EXIT_TIMEOUT_S)
        return
    if error is not None:
        traceback.print_exception(error)
    os.write(sys.stderr.fileno(), f"error: {line}\n".encode())


def _exit(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


_printing = threading.Lock()
