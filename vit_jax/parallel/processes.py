"""Coordination of a run's processes through the coordination service of `jax.distributed`.

    with connected(detect(), config=..., code=...):
        ...

Process 0 hosts the service. It has a key-value store, barriers that name late processes, and
preemption notices: after a SIGTERM, all processes agree on a step to stop at. This module uses the
store to add three things:

- An error in one process ends all processes. A thread in each process waits for a key that holds
  the reason, so that even a process that hangs in a collective exits with a one-line error.
- A killed process is named in a one-line error. JAX detects missing heartbeats, too, but then it
  aborts with C++ stack frames, and it has no callback. So each process increments a counter in the
  store, and process 0 checks that all counters increase. JAX's time limit is three times as long.
- SIGINT stops a run like SIGTERM. JAX handles only SIGTERM.

If process 0 is killed, the service is gone. JAX then aborts all other processes (SIGABRT, exit code
134). Each prints a one-line error before that.

Every process must call these functions at the same point of the program, except `is_first_host`.
With one process, they return immediately.
"""

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
from vit_jax.parallel.devices import check_devices, local_devices, print_devices
from vit_jax.parallel.jax_internals import CoordinationClient, coordination_client
from vit_jax.parallel.launch import Launch

log = logging.getLogger(__name__)

# Time limit for all processes to connect.
START_TIMEOUT_S = 300.0
# A process without a heartbeat for this long is considered lost.
PEER_TIMEOUT_S = 60.0
# Time limit of barriers, longer than the slowest save.
BARRIER_TIMEOUT_S = 900.0

_KEYS = "vit_jax"
# JAX waits this many times longer for a heartbeat than this module.
_JAX_TIMEOUT_FACTOR = 3
# Process 0 hosts the service, so it exits last. It waits this long for the other processes.
_EXIT_TIMEOUT_S = 3.0


@dataclasses.dataclass(frozen=True)
class ExitReason:
    """Why all processes of a run exit.

    Attributes:
        line: line that each process prints.
        code: exit code.
    """

    line: str
    code: int


_FINISHED = ExitReason("finished", 0)


class _Run:
    """This process's connection to the others.

    Attributes:
        ending: whether this process has itself decided to exit.
        hosts: host name of each process.
    """

    def __init__(self, client: CoordinationClient, launch: Launch, peer_timeout_s: float):
        self.client, self.peer_timeout_s = client, peer_timeout_s
        self.process, self.count = launch.process_id, launch.num_processes
        self.ending = False
        self.hosts = ["unknown host"] * self.count
        self._threads: list[threading.Thread] = []
        self._finished = threading.Event()
        self._gathers = itertools.count()
        self._old_key: str | None = None

    def start_threads(self) -> None:
        targets = [self._wait_for_exit_reason, self._send_heartbeats]
        targets += [self._watch_heartbeats] if self.process == 0 else []
        self._threads = [threading.Thread(target=t, name=t.__name__, daemon=True) for t in targets]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Stops the threads. A thread inside the client would abort the interpreter at exit."""
        self.ending = True
        self._finished.set()
        if self.process == 0:
            self.end_all(_FINISHED)
        for thread in self._threads:
            thread.join(_EXIT_TIMEOUT_S)

    def gather(self, name: str, value: Any, timeout_s: float) -> list[Any]:
        folder = f"{_KEYS}/gather/{next(self._gathers)}"
        own = f"{folder}/{self.process}"
        self.client.key_value_set(own, json.dumps(value))
        self.barrier(name, timeout_s)
        found = {key: json.loads(text) for key, text in self.client.key_value_dir_get(folder)}
        # After this barrier, all processes have read the values of the previous gather.
        if self._old_key is not None:
            self.client.key_value_delete(self._old_key)
        self._old_key = own
        return [found[f"{folder}/{process}"] for process in range(self.count)]

    def barrier(self, name: str, timeout_s: float) -> None:
        with name_late_processes(timeout_s):
            self.client.wait_at_barrier(name, int(timeout_s * 1000))

    def name(self, process: int) -> str:
        return f"{process} ({self.hosts[process]})"

    def end_all(self, reason: ExitReason) -> None:
        """Makes all processes exit for this reason. If several call it, the first one wins."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            text = json.dumps(dataclasses.asdict(reason))
            self.client.key_value_set(f"{_KEYS}/exit", text)

    def exit(self, code: int) -> NoReturn:
        """Exits without cleanup, because libraries would wait for processes that are gone."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self.client.key_value_set(f"{_KEYS}/ended/{self.process}", "")
            deadline = time.monotonic() + _EXIT_TIMEOUT_S
            while self.process == 0 and time.monotonic() < deadline:
                if len(self.client.key_value_dir_get(f"{_KEYS}/ended/")) == self.count:
                    break
                time.sleep(0.05)
        _exit(code)

    def _wait_for_exit_reason(self) -> None:
        while not self.ending:
            try:
                text = self.client.blocking_key_value_get(f"{_KEYS}/exit", 3_600_000)
            except jax.errors.JaxRuntimeError as error:
                if str(error).startswith("DEADLINE_EXCEEDED"):
                    continue
                if not self.ending and str(error).startswith("UNAVAILABLE"):
                    _print_error(_lost_message(f"process {self.name(0)} was killed or crashed"))
                return  # JAX aborts this process.
            reason = ExitReason(**json.loads(text))
            if reason == _FINISHED:
                return
            if not self.ending:
                _print_error(reason.line)
                self.exit(reason.code)

    def _send_heartbeats(self) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            for beat in itertools.count():
                key = f"{_KEYS}/beat/{self.process}"
                self.client.key_value_set(key, str(beat), allow_overwrite=True)
                if self._finished.wait(self.peer_timeout_s / 6):
                    return

    def _watch_heartbeats(self) -> None:
        counts, changed = {}, [time.monotonic()] * self.count
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            while not self._finished.wait(self.peer_timeout_s / 12):
                found, now = dict(self.client.key_value_dir_get(f"{_KEYS}/beat/")), time.monotonic()
                for process in range(self.count):
                    key = f"{_KEYS}/beat/{process}"
                    if found.get(key) != counts.get(key):
                        changed[process] = now
                counts = found
                lost = [p for p in range(self.count) if now - changed[p] > self.peer_timeout_s]
                if lost and not self.ending:
                    what = _plural("process", [self.name(p) for p in lost])
                    line = _lost_message(f"no heartbeat from {what} for {self.peer_timeout_s:g} s")
                    self.end_all(ExitReason(line, HostsError.exit_code))
                    return


_run: _Run | None = None


@contextlib.contextmanager
def connected(
    launch: Launch | None,
    *,
    config: Mapping[str, Any],
    code: Mapping[str, Any],
    cancelled: Callable[[], bool] = lambda: False,
    start_timeout_s: float = START_TIMEOUT_S,
    peer_timeout_s: float = PEER_TIMEOUT_S,
) -> Iterator[None]:
    """Connects the processes of a run, and checks that their config, code and devices match.

    An error inside the block ends all processes of the run. Each prints one line that names the
    process with the error.

    Args:
        launch: how this process was started; None: the run has one process.
        config: key -> value; must be the same on all processes.
        code: name -> version; must be the same on all processes.
        cancelled: called repeatedly while this process waits for the others. If it returns True,
            this process exits.
        start_timeout_s: time limit for all processes to connect.
        peer_timeout_s: time after which a process without a heartbeat is considered lost.

    Raises:
        ConfigError: a run of one process leaves accelerators idle.
    """
    global _run
    if launch is None:
        check_devices([local_devices(None)])
        yield
        return
    try:
        _initialize_jax(launch, cancelled, start_timeout_s, peer_timeout_s)
    except UserError as error:  # The thread of `_initialize_jax` may still be running.
        _print_error(str(error))
        _exit(error.exit_code)
    except InterruptedError as error:
        log.info("%s; run the same command again", error)
        _exit(EXIT_STOPPED)
    _run = run = _Run(coordination_client(), launch, peer_timeout_s)
    run.start_threads()
    try:
        with _exit_on_config_error(run):
            facts = {"num_processes": launch.num_processes, **config}
            facts = {"host": platform.node(), "config": facts, "code": dict(code)}
            gathered = run.gather("start", facts, start_timeout_s)
            run.hosts = [row["host"] for row in gathered]
            _check_same_program(gathered)
        found = run.gather("compare devices", local_devices(launch), start_timeout_s)
        if run.process == 0:
            print_devices(found, launch.cluster, Console())
        with _exit_on_config_error(run):
            check_devices(found)
        yield
        run.barrier("end", BARRIER_TIMEOUT_S)
        run.finish()
        jax.distributed.shutdown()
    except BaseException as error:
        _fail(run, error)
    finally:
        _run = None


def is_first_host() -> bool:
    """Whether this is process 0, which writes files and logs."""
    return jax.process_index() == 0


def gather(name: str, value: Any, timeout_s: float = BARRIER_TIMEOUT_S) -> list[Any]:
    """Returns the values of all processes, in the order of their numbers.

    Args:
        name: name of this point of the program, for the error if a process does not reach it.
        value: JSON.
        timeout_s: time limit for all processes to call this.

    Raises:
        HostsError: a process did not call this in time. The error names it.
    """
    _check_connected()
    return [value] if _run is None else _run.gather(name, value, timeout_s)


def barrier(name: str, timeout_s: float = BARRIER_TIMEOUT_S) -> None:
    """Waits until all processes call this.

    Raises:
        HostsError: a process did not call this in time. The error names it.
    """
    _check_connected()
    if _run is not None:
        _run.barrier(name, timeout_s)


def on_first_host(
    name: str, action: Callable[[], Any], timeout_s: float = BARRIER_TIMEOUT_S
) -> Any:
    """Calls a function on process 0 only and returns its result on all processes.

    Args:
        name: see `gather`.
        action: returns JSON.
        timeout_s: time limit for the action.
    """
    value = action() if is_first_host() else None
    return gather(name, value, timeout_s)[0]


def check_same(name: str, value: Any, error: Callable[[int, Any, Any], UserError]) -> None:
    """Raises an error on all processes if a process has another value than process 0.

    Args:
        name: see `gather`.
        value: JSON.
        error: function (process, its value, value of process 0) -> the error to raise.
    """
    first, *others = gather(name, value)
    for process, other in enumerate(others, start=1):
        if other != first:
            raise error(process, other, first)


class StopAgreement:
    """Makes all processes stop at the same step if one of them is asked to stop.

    Args:
        requested: returns whether a signal handler in Python has asked this process to stop.
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
    """Converts barrier errors of JAX and Orbax to a HostsError that names the late processes.

    Args:
        timeout_s: time limit of the barrier, for the message.

    Raises:
        HostsError: a process did not reach the barrier in time.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        found = re.search(r"Barrier timed out\. Id: (.+?)(?:::\d+)?\. ", str(error))
        if found is None:
            raise
        # "1" in each line; before jaxlib 0.10 "/job:jax_worker/replica:0/task:1".
        _, _, lines = str(error).partition("timed out task names:")
        late = re.findall(r"(?:task:)?(\d+)\s*$", lines.split("RPC:")[0], re.MULTILINE)
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
    options: dict[str, Any] = {}
    if host in ("127.0.0.1", "localhost") and "JAX_COORDINATOR_BIND_ADDRESS" not in os.environ:
        options["coordinator_bind_address"] = f"127.0.0.1:{port}"
    if launch.process_id == 0:
        _check_port(options.get("coordinator_bind_address"), int(port))
    else:
        logging.getLogger("vit_jax").setLevel(logging.WARNING)
    platforms = jax.config.jax_platforms or ""  # pyright: ignore[reportAttributeAccessIssue]
    if platforms in ("", "cpu"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    errors: list[Exception] = []

    def initialize() -> None:
        try:
            jax.distributed.initialize(
                launch.coordinator,
                launch.num_processes,
                launch.process_id,
                local_device_ids=(
                    None if launch.local_device_ids is None else [*launch.local_device_ids]
                ),
                cluster_detection_method="deactivate",
                # JAX aborts the process at its own limit, so that must be later.
                initialization_timeout=int(start_timeout_s) + 60,
                heartbeat_timeout_seconds=max(10, int(peer_timeout_s)) * _JAX_TIMEOUT_FACTOR,
                shutdown_timeout_seconds=int(peer_timeout_s),
                **options,
            )
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=initialize, name="initialize", daemon=True)
    thread.start()
    deadline = time.monotonic() + start_timeout_s
    while thread.is_alive():
        thread.join(0.1)
        if cancelled():
            raise InterruptedError("stopped while waiting for the other processes to connect")
        if time.monotonic() > deadline:
            raise HostsError(
                f"not all {launch.num_processes} processes connected to {launch.coordinator}"
                f" within {start_timeout_s:g} s",
                "the same command on every host, and a port that all hosts can reach",
                "check that the command runs on every host, and check --coordinator",
            )
    if errors:
        raise errors[0]


def _check_port(bind_address: str | None, port: int) -> None:
    """Raises ConfigError if the port is in use, because JAX would share it silently."""
    bind_address = bind_address or os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", "")
    host = bind_address.rpartition(":")[0].strip("[]")
    host = "" if host in ("::", "0.0.0.0") else host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ConfigError(
            f"cannot listen on port {port} of this host: {error.strerror}",
            "a free port",
            "choose another --coordinator or JAX_COORDINATOR_PORT; another run may use this one",
        ) from None


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


@contextlib.contextmanager
def _exit_on_config_error(run: _Run) -> Iterator[None]:
    """Exits after a ConfigError that every process raises, so that each prints it itself."""
    try:
        yield
    except ConfigError as error:
        run.ending = True
        _print_error(str(error))
        run.exit(error.exit_code)


def _fail(run: _Run, error: BaseException) -> NoReturn:
    """Makes all processes exit because of an error in this one."""
    broken_collective = isinstance(error, jax.errors.JaxRuntimeError) and not str(error).startswith(
        "RESOURCE_EXHAUSTED"
    )
    if broken_collective:
        # Most likely another process has died. Its missing heartbeat will then name it.
        log.warning(
            "a computation failed; waiting %g s to see whether another process is lost",
            run.peer_timeout_s,
        )
        time.sleep(1.5 * run.peer_timeout_s)
    run.ending = True
    first_line = (str(error).splitlines() or [""])[0][:300]
    line, code = f"{type(error).__name__}: {first_line}", 1
    if isinstance(error, UserError):
        line, code = str(error), error.exit_code
    if code == 1 or "--debug" in sys.argv:
        traceback.print_exception(error)
    _print_error(line)
    # All waiting processes raise the same HostsError, which already names the late process.
    prefix = "" if isinstance(error, HostsError) else f"process {run.name(run.process)} stopped: "
    run.end_all(ExitReason(prefix + line, code))
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


def _print_error(line: str) -> None:
    """Prints the error line of this process. Only one thread prints; others wait for the exit."""
    if not _printing.acquire(blocking=False):
        threading.Event().wait(4 * _EXIT_TIMEOUT_S)
        return
    os.write(sys.stderr.fileno(), f"error: {line}\n".encode())


def _exit(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


_printing = threading.Lock()
