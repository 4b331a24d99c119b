"""Keeps compiled programs between runs, so that a second start does not compile them again.

JAX's persistent compilation cache does the work. JAX finds a program by a hash of its computation,
the compiler's options and flags (XLA_FLAGS, LIBTPU_INIT_ARGS), jaxlib, the platform's version (the
build of libtpu, CUDA) and the devices. This module adds what that leaves out:

- One subfolder per combination of JAX, the libraries that contain compilers or kernels, and, for
  programs that run on a CPU, its instruction set. No program of another version or CPU is found.
- One limit on the size of all subfolders, in buckets too. JAX limits one local folder.
- Repair: a process that is killed while it writes leaves half an entry, after which JAX's cache
  stores nothing more.
- Several hosts: only process 0 writes, so a folder that they do not share would make it wait for
  the others, which compile. On GPUs these would even wait for process 0 to measure kernels.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import re
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import jax
from jax.experimental.compilation_cache import compilation_cache

from vit_jax.parallel.processes import gather, is_first_host, on_first_host
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import write_json
from vit_jax.storage.paths import cache_dir, is_bucket, user_path

log = logging.getLogger(__name__)

AUTO = "auto"
"""Value of `compile_cache` for the default folder."""
DEFAULT_MB = 4096
"""Default of `compile_cache_mb`."""

# Libraries with compilers or kernels. Those that are installed count.
_LIBRARIES = (
    "jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda12-pjrt", "jax-cuda13-plugin",
    "jax-cuda13-pjrt", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cublas-cu12",
    "nvidia-cublas",
)  # fmt: skip
# A subfolder begins with this. JAX's names: KEY-cache is a program, KEY-atime the time of its last
# use, written after it, .lockfile its lock.
_PREFIX, _PROGRAM, _USED, _LOCK = "jax-", "-cache", "-atime", ".lockfile"
_LOCK_TIMEOUT_S = 10.0
# Longest wait of the other hosts for the file that process 0 writes.
_SHARED_TIMEOUT_S = 3.0
_PROBLEM = re.compile(r"Error (reading|writing) persistent compilation cache entry for '([^']*)'")


def use_compile_cache(place: str | None = AUTO, max_mb: int = DEFAULT_MB) -> None:
    """Makes JAX keep compiled programs from now on. Every process of a run must call it.

    A cache that cannot be used is a warning: the run then compiles.

    Args:
        place: folder or bucket; "auto": in the user's cache folder; None: no cache. If JAX has a
            cache already, e.g. from $JAX_COMPILATION_CACHE_DIR, that one is used.
        max_mb: limit on the size of all programs there, in MiB.
    """
    config: Any = jax.config
    has_one = not config.jax_enable_compilation_cache or config.jax_compilation_cache_dir
    wants = gather("compare compilation caches", place is not None and not has_one)
    if not all(wants):
        if any(wants) and is_first_host():
            log.warning(
                "no compilation cache: process %d has another one or none", wants.index(False)
            )
        return
    assert place is not None
    root = cache_dir() / "compiled" if place == AUTO else user_path(place)
    device = jax.devices()[0]
    facts = compiler_facts(device)
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
    folder = root / f"{_PREFIX}{facts['jax']}-{device.platform}-{digest}"
    problem = _open(folder, facts, max_mb * 2**20)
    if problem is not None:
        if is_first_host():
            log.warning("no compilation cache: %s", problem)
        return
    if is_bucket(folder):
        # XLA keeps measurements of GPU kernels in a local folder only.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    else:
        jax.config.update("jax_compilation_cache_max_size", max_mb * 2**20)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    _log_problems(folder)


def compiler_facts(device: Any) -> dict[str, str]:
    """Returns what programs for a device depend on beside their computation: versions, the CPU."""
    facts = {}
    for library in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            facts[library] = importlib.metadata.version(library)
    facts["platform"] = device.client.platform_version
    if device.platform == "cpu":
        facts["cpu"] = _cpu()
    return facts


def _cpu() -> str:
    """Returns the CPU's architecture, a hash of its instruction set, and the number of cores."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # Not Linux.
        text = platform.processor()
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    known = " ".join(sorted(flags[1].split())) if flags else text
    digest = hashlib.sha256(known.encode()).hexdigest()[:8]
    return f"{platform.machine()} {digest}, {os.cpu_count()} cores"


def _open(folder: Path, facts: dict[str, str], max_bytes: int) -> str | None:
    """Prepares the folder on process 0. Returns the problem on all processes, or None."""
    about = folder / "about.json"
    token, problem = on_first_host(
        "open the compilation cache", lambda: _prepare(about, facts, max_bytes)
    )
    if problem is None:
        sees = gather("look for the compilation cache", _token(about, token) == token)
        if not all(sees):
            problem = (
                f"process {sees.index(False)} does not see {folder} of process 0; set compile_cache"
                " to a folder or bucket that all hosts share"
            )
    return problem


def _prepare(about: Path, facts: dict[str, str], max_bytes: int) -> tuple[str, str | None]:
    """Returns the random token of the folder, and the problem that prevents its use."""
    try:
        about.parent.mkdir(parents=True, exist_ok=True)
        token = _token(about)
        if token is None:
            token = uuid.uuid4().hex
            write_json(about, {"token": token, **facts})
        if not is_bucket(about):  # JAX needs its lock even to read.
            with (about.parent / _LOCK).open("a"):
                pass
        _tidy(about.parent.parent, max_bytes)
    except OSError as error:
        return "", f"{about.parent}: {error.strerror or error}"
    return token, None


def _token(about: Path, wanted: str | None = None) -> str | None:
    """Reads the token of a folder; waits for the wanted one, in case its disk is slow."""
    deadline = time.monotonic() + (0.0 if wanted is None else _SHARED_TIMEOUT_S)
    while True:
        try:
            found = json.loads(about.read_text())["token"]
        except (OSError, ValueError, KeyError, TypeError):
            found = None
        if found == wanted or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _tidy(root: Path, max_bytes: int) -> None:
    """Deletes half-written programs, and those not used for longest until the rest fits."""
    # Objects are written whole, so that one listing is enough as long as there is space.
    if isinstance(root, BucketPath):
        sizes = [
            size
            for path, size in root.find()
            if path.parent.name.startswith(_PREFIX) and path.name.endswith(_PROGRAM)
        ]
        if sum(sizes) <= max_bytes:
            return
    programs: list[tuple[float, int, list[Path]]] = []
    for folder in sorted(path for path in root.iterdir() if path.name.startswith(_PREFIX)):
        lock: Any = contextlib.nullcontext()
        if not is_bucket(folder):
            lock = filelock.FileLock(folder / _LOCK, timeout=_LOCK_TIMEOUT_S)
        with lock:
            programs += _programs(folder)
    total = sum(size for _, size, _ in programs)
    for _, size, files in sorted(programs, key=lambda program: program[0]):
        if total <= max_bytes:
            return
        for path in files:
            path.unlink(missing_ok=True)
        total -= size


def _programs(folder: Path) -> list[tuple[float, int, list[Path]]]:
    """Returns (time of last use, size in bytes, files) of each program, and deletes broken ones."""
    found = []
    for program in folder.glob(f"*{_PROGRAM}"):
        try:
            about = program.stat()
        except FileNotFoundError:  # Another run has deleted it.
            continue
        if is_bucket(folder):  # Objects are written whole, and JAX does not note their use.
            found.append((about.st_mtime, about.st_size, [program]))
            continue
        used = program.with_name(program.name.removesuffix(_PROGRAM) + _USED)
        if used.exists():
            used_s = int.from_bytes(used.read_bytes(), "little") / 1e9
            found.append((used_s, about.st_size, [program, used]))
        else:
            program.unlink()
    return found


def _log_problems(folder: Path) -> None:
    """Logs JAX's warnings about the cache as one line each, and deletes programs it cannot read."""
    warnings.filterwarnings("always", _PROBLEM.pattern)
    show, logged = warnings.showwarning, set()

    def show_in_one_line(message: Any, *args: Any, **kwargs: Any) -> None:
        problem = _PROBLEM.match(str(message))
        if problem is None:
            show(message, *args, **kwargs)
            return
        reading, name = problem[1] == "reading", problem[2]
        if reading:
            with contextlib.suppress(OSError):
                for path in folder.glob(f"{name}-*"):
                    path.unlink(missing_ok=True)
        if problem[1] not in logged:
            logged.add(problem[1])
            what = "damaged, and compiled again" if reading else "not kept"
            reason = " ".join(str(message)[problem.end() :].strip(": ").split())
            log.warning("compilation cache %s: %s is %s: %s", folder, name, what, reason[:200])

    warnings.showwarning = show_in_one_line


@contextlib.contextmanager
def without_compile_cache() -> Iterator[None]:
    """Programs are compiled anew in the `with` block, and not kept."""
    before: bool = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX reads the option when it compiles the first program.
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


@dataclasses.dataclass
class CacheUse:
    """What JAX's compilation cache did."""

    hits: int = 0  # programs found there
    writes: int = 0  # programs compiled and stored there

    def __str__(self) -> str:
        """Returns the end of a line that says how long compiling took."""
        if self.hits:
            return ", from the compilation cache"
        folder = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
        return f", kept in {folder}" if self.writes else ""


@contextlib.contextmanager
def watch_compile_cache() -> Iterator[CacheUse]:
    """Counts what JAX's compilation cache does in the `with` block."""
    use = CacheUse()

    def count(event: str, **_: Any) -> None:
        use.hits += event == "/jax/compilation_cache/cache_hits"
        use.writes += event == "/jax/compilation_cache/cache_misses"

    jax.monitoring.register_event_listener(count)
    try:
        yield use
    finally:
        jax.monitoring.unregister_event_listener(count)
