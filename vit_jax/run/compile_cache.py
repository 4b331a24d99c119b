"""Keeps compiled programs between runs, so that a second start does not compile them again.

JAX's persistent compilation cache does the work. This module adds what it leaves out: a subfolder
per version and CPU, a limit on its size, and a check that all hosts of a run share it. Otherwise
process 0 would wait for the others to compile. On GPUs they would wait for it to measure kernels.
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
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import jax
from jax.experimental.compilation_cache import compilation_cache

from vit_jax.parallel.processes import gather, is_first_host, on_first_host
from vit_jax.storage.files import write_json
from vit_jax.storage.paths import cache_dir, is_bucket, user_path

log = logging.getLogger(__name__)

AUTO = "auto"
"""Value of `compile_cache` for the default folder."""
# Limit on the programs of one version in a local folder. JAX deletes those not used for longest.
_MAX_BYTES = 4 * 2**30
# Libraries with compilers or kernels.
_LIBRARIES = re.compile(r"jax(lib|-.*)?|libtpu|nvidia-(cublas|cudnn).*")


def use_compile_cache(place: str | None = AUTO) -> None:
    """Makes JAX keep compiled programs from now on. Every process of a run must call it.

    `place` is a folder or bucket, or "auto": in the user's cache folder. If JAX has a cache
    already, e.g. from $JAX_COMPILATION_CACHE_DIR, that one is used. A cache that cannot be used is
    a warning.
    """
    config: Any = jax.config
    has_one = not config.jax_enable_compilation_cache or config.jax_compilation_cache_dir
    folder = None if place is None or has_one else _folder(place)
    token = on_first_host("open the compilation cache", lambda: folder and _open(folder))
    sees = token is not None and folder is not None and _read_token(folder) == token
    all_see = gather("look for the compilation cache", sees)
    if folder is None or not all(all_see):
        if any(all_see) and is_first_host():
            log.warning(
                "no compilation cache: process %d has another one or none, or does not see %s; set"
                " compile_cache to a folder or bucket that all hosts share",
                all_see.index(False),
                folder,
            )
        return
    if is_bucket(folder):
        # XLA keeps measurements of GPU kernels in a local folder only, and JAX locks one only.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    elif config.jax_compilation_cache_max_size == -1:
        jax.config.update("jax_compilation_cache_max_size", _MAX_BYTES)
    jax.config.update("jax_compilation_cache_dir", str(folder))


def _folder(place: str) -> Path:
    """Returns the folder for this version of the compilers and, on CPUs, this CPU."""
    facts = compiler_facts(jax.devices()[0])
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
    root = cache_dir() / "compiled" if place == AUTO else user_path(place)
    return root / f"jax-{jax.__version__}-{jax.default_backend()}-{digest}"


def compiler_facts(device: Any) -> dict[str, str]:
    """Returns what programs for a device depend on beside their computation: versions, the CPU."""
    installed = importlib.metadata.distributions()
    facts = {one.name: one.version for one in installed if _LIBRARIES.fullmatch(one.name)}
    if device.platform == "cpu":
        cpus = Path("/proc/cpuinfo")  # On Linux.
        known = cpus.read_text(encoding="utf-8") if cpus.exists() else platform.processor()
        flags = re.search(r"^(?:flags|Features)\s*:.*$", known, re.MULTILINE)
        facts["cpu"] = f"{platform.machine()} {os.cpu_count()} {flags[0] if flags else known}"
    return facts


def _open(folder: Path) -> str | None:
    """Returns the random token of the folder; None, and a warning: it cannot be used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _read_token(folder) is None:
            write_json(folder / "about.json", {"token": uuid.uuid4().hex})
        if not is_bucket(folder):
            _delete_halves(folder)
        return _read_token(folder)
    except OSError as error:
        log.warning("no compilation cache: %s: %s", folder, error.strerror or error)
        return None


def _read_token(folder: Path) -> str | None:
    try:
        return json.loads((folder / "about.json").read_text(encoding="utf-8"))["token"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _delete_halves(folder: Path) -> None:
    """Deletes programs whose writer was killed. JAX could neither read them nor store others."""
    with filelock.FileLock(folder / ".lockfile", timeout=10):
        for program in folder.glob("*-cache"):
            if not program.with_name(program.name.removesuffix("-cache") + "-atime").exists():
                program.unlink()


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
