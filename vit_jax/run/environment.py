"""The code, packages and devices of each session of a run: environments.jsonl.

A run that continues with other code or packages is no longer the run that never stopped, so a
resume compares them with those of the session before.
"""

import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vit_jax.errors import RunFolderError, first_few
from vit_jax.plugins import ENVIRONMENTS, describe_plugins
from vit_jax.storage.log_file import LogFile, log_exists, read_log
from vit_jax.storage.private import hide_private, without_private

FILE = ENVIRONMENTS
CHANGED_CODE = "resumed with other code or packages"
"""Note on a run that `--new_code` has continued."""

# Packages that can change what a run learns, or whether it can continue.
_PACKAGES = (
    "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "tensorflow-datasets", "numpy",
    "opencv-python-headless", "pillow", "turbojpeg",
)  # fmt: skip
# Platform -> the packages of its devices.
_PLUGINS = {
    "tpu": ("libtpu",),
    "gpu": ("jax-cuda13-plugin", "jax-cuda12-plugin", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
}
# Folders of vit_jax that training does not import. Only wheels have `recipes`.
_NOT_IN_TRAINING = ("analysis", "bench", "commands", "plan", "recipes", "report", "sweep")
# Set in container images, which have no git.
_REVISION_VARIABLE = "VIT_JAX_REVISION"


def environment(config: Any = None) -> dict[str, Any]:
    """Returns the code, packages, devices and hosts of this process.

    With the config of a run, also the code from outside the package that it uses.
    Secrets and the home folder, which arguments and flags may hold, are replaced.
    """
    import jax

    from vit_jax.config.run import Config
    from vit_jax.run.own_code import own_code

    devices = jax.devices()
    code = code_environment()
    plugins = describe_plugins(own_code(config)) if isinstance(config, Config) else {}
    return {
        **code,
        **({"plugins": plugins} if plugins else {}),
        "packages": code["packages"] | _versions(_PLUGINS.get(devices[0].platform, ())),
        "command": without_private(sys.argv),
        "xla_flags": hide_private(os.environ.get("XLA_FLAGS", "")),
        "platform": devices[0].platform,
        "device_kind": devices[0].device_kind,
        "device_count": len(devices),
        "host_count": jax.process_count(),
        "hostname": platform.node(),
        "cpu_count": os.cpu_count(),
    }


def code_environment() -> dict[str, Any]:
    """Returns git revision, hash of the sources, and versions, without asking for the devices."""
    return {
        "git_revision": git_revision(),
        "sources": hash_of_sources(),
        "python": platform.python_version(),
        "packages": _versions(_PACKAGES),
    }


def code_versions() -> dict[str, str | None]:
    """Returns `code_environment` without nesting, to compare the processes of a run."""
    code = code_environment()
    return {**code.pop("packages"), **code}


@functools.cache
def hash_of_sources() -> str:
    """Returns the hash of the sources at its first call: later edits are not in this process."""
    return hash_of_files(Path(__file__).resolve().parents[1])


def hash_of_files(folder: Path) -> str:
    """Returns a hash of the files of a copy of vit_jax that training imports: code and tables."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        parts, kept = path.relative_to(folder).parts, path.suffix in (".py", ".csv", ".txt")
        if kept and parts[0] not in _NOT_IN_TRAINING and path.is_file():
            content = path.read_bytes()
            found.update(f"{'/'.join(parts)}\0{len(content)}\0".encode() + content)
    return found.hexdigest()[:12]


def _versions(names: tuple[str, ...]) -> dict[str, str | None]:
    return {name: _version(name) for name in names}


@functools.cache
def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_revision() -> str | None:
    """Returns the git revision, with "-dirty" if files have changed; None: it is not known."""
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return os.environ.get(_REVISION_VARIABLE) or None
    return done.stdout.strip() or None


def read_environments(folder: Path) -> list[dict[str, Any]]:
    """Returns the environments of a run's sessions, from its last start at step 0 on.

    [] if none is kept. Each has the keys of `environment` (in a sweep's folder those of
    `code_environment`), "time" in unix seconds, "step", where the session began (in a sweep: the
    number of finished jobs), and "changes", what `--new_code` let change.
    """
    rows = read_log(folder / FILE, _is_line)
    starts = [i for i, row in enumerate(rows) if row["step"] == 0]
    return rows[starts[-1] :] if starts else rows


def changed_code(folder: Path) -> bool:
    """Whether a run was continued with other code or packages than it was started with."""
    return any(row["changes"] for row in read_environments(folder))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns what may change the results, as "NAME BEFORE -> NOW".

    Python versions are compared without their last part. A package is compared if both list it:
    plug-ins of devices are listed only on their platform.
    """
    rows = []
    if before["sources"] != now["sources"]:
        then, here = (f"{e['sources']} (revision {e['git_revision']})" for e in (before, now))
        rows.append(f"vit_jax {then} -> {here}")
    old, new = (".".join(e["python"].split(".")[:2]) for e in (before, now))
    for name, plugin in before.get("plugins", {}).items():
        there = now.get("plugins", {}).get(name, {"sources": "not used"})["sources"]
        if there != plugin["sources"]:
            rows.append(f"{name} {plugin['sources']} -> {there}")
    versions = {"python": (old, new)}
    versions |= {p: (v, now["packages"].get(p, v)) for p, v in before["packages"].items()}
    return rows + [f"{name} {a} -> {b}" for name, (a, b) in versions.items() if a != b]


def check_code(what: str, folder: Path, now: Mapping[str, Any], *, new_code: bool) -> list[str]:
    """Returns what has changed since the last session of a folder, if `new_code` accepts it.

    `now` is `environment` or `code_environment`.

    Raises:
        RunFolderError: code or packages have changed, and are not accepted.
    """
    rows = read_environments(folder)
    if rows:
        changes = differences(rows[-1], now)
    else:
        changes = [f"{FILE} cannot be read" if log_exists(folder / FILE) else f"no {FILE}"]
    if changes and not new_code:
        raise RunFolderError(
            f"{what} was last run with other code or packages ({first_few(changes, 4, '; ')})",
            "the same code and packages",
            "go back to them, or add --new_code (in Python new_code=True) to continue with these;"
            " the result is then not bit for bit that of a run that never stopped",
        )
    return changes


def append_environment(
    folder: Path, found: Mapping[str, Any], *, step: int = 0, changes: list[str]
) -> None:
    """Appends the environment of this session; see `read_environments`."""
    log = LogFile(folder / FILE, is_valid=_is_line)
    log.write({"time": time.time(), "step": step, "changes": changes, **found})
    log.close()


def _is_line(row: dict[str, Any]) -> bool:
    """Whether a JSON object is a line of environments.jsonl."""
    packages, changes = row.get("packages"), row.get("changes")
    return (
        type(row.get("step")) is int
        and all(isinstance(row.get(name), str) for name in ("python", "sources"))
        and isinstance(row.get("git_revision", 0), str | None)
        and isinstance(changes, list)
        and isinstance(row.get("plugins", {}), dict)
        and all(isinstance(p, dict) and "sources" in p for p in row.get("plugins", {}).values())
        and isinstance(packages, dict)
        and all(isinstance(version, str | None) for version in packages.values())
    )
