"""Saves compiled training steps, and loads the one that fits a run.

A step is compiled for the devices of a run, which need not be there: see `plan --save`. It fits a
run if its computation, its compiler and its devices are the same. Per step there are two files:

    NAME.json       what the step was compiled from and for; it is written last
    NAME.step       the executable, by jax.experimental.serialize_executable
"""

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.sharding import Mesh

from vit_jax.errors import ConfigError, FileError
from vit_jax.parallel.processes import gather
from vit_jax.run.compile_cache import compiler_facts
from vit_jax.storage.files import read_json, write_json
from vit_jax.storage.paths import user_path

log = logging.getLogger(__name__)

# Flags that change neither the program nor its speed.
_IGNORED_FLAGS = ("--xla_force_host_platform_device_count", "--xla_dump_")


def save_step(
    folder: Path,
    lowered: jax.stages.Lowered,
    compiled: jax.stages.Compiled,
    mesh: Mesh,
    options: dict[str, Any],
) -> Path:
    """Saves a compiled step.

    Args:
        folder: folder or bucket; it can hold several steps.
        lowered: what was compiled.
        compiled: the step. It must be compiled `without_compile_cache`, because what XLA has read
            from there for a CPU cannot be saved again: it would fail when it runs.
        mesh: its devices.
        options: the run's `compiler_options`.

    Returns:
        The file with the executable.

    Raises:
        ConfigError: the executables of this platform cannot be saved.
        OSError: the folder cannot be written.
    """
    facts = _facts(lowered, mesh, options)
    try:
        content, _, _ = serialize_executable.serialize(compiled)
    except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
        raise ConfigError(
            f"--save: {str(error).splitlines()[0]}",
            "a platform whose executables can be saved",
            "leave --save out",
        ) from None
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
    name = f"{facts['devices'].replace(' ', '-')}-{digest}"
    path = folder / f"{name}.step"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    write_json(folder / f"{name}.json", {**facts, "sha256": hashlib.sha256(content).hexdigest()})
    return path


def load_step(
    place: str, lowered: jax.stages.Lowered, mesh: Mesh, options: dict[str, Any]
) -> jax.stages.Compiled | None:
    """Loads the saved step that fits. Every process of a run must call it.

    Args:
        place: folder or bucket of `save_step`.
        lowered: the step of this run.
        mesh: the devices of this run.
        options: the run's `compiler_options`.

    Returns:
        The step; None if none fits, or if a host cannot load it. The log says why.

    Raises:
        FileError: `place` is no path.
    """
    folder, step = user_path(place), None
    try:
        name, problem = _closest(folder, _facts(lowered, mesh, options))
        if not problem:
            step = _load(folder / f"{name}.step", lowered, mesh)
    except Exception as error:  # Stores and runtimes raise various types; the step can be compiled.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        problem = f"a step in {folder} cannot be loaded: {lines[0][:200]}"
    problems = [found for found in gather("load the compiled step", problem) if found]
    if problems:
        log.warning("no step compiled ahead is used: %s", problems[0])
        return None
    return step


def _closest(folder: Path, wanted: dict[str, str]) -> tuple[str, str]:
    """Returns the name of the saved step with the fewest differences, and what they are."""
    differences, damaged = {}, ""
    for path in sorted(folder.glob("*.json")):
        if path.with_suffix(".step").exists():
            try:
                differences[path.stem] = _differences(read_json(path), wanted)
            except FileError as error:
                damaged = str(error)
    if not differences:
        return "", damaged or f"plan --save has saved none in {folder}"
    name = min(differences, key=lambda one: len(differences[one]))
    found = differences[name]
    return name, f"{folder / name}.step does not fit ({'; '.join(found)})" if found else ""


def _load(path: Path, lowered: jax.stages.Lowered, mesh: Mesh) -> jax.stages.Compiled:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != read_json(path.with_suffix(".json"))["sha256"]:
        raise ValueError("it is damaged")
    return serialize_executable.deserialize_and_load(
        content,
        lowered.in_tree,
        lowered.out_tree,
        backend=mesh.devices.flat[0].client,
        execution_devices=list(mesh.devices.flat),
    )


def _facts(lowered: jax.stages.Lowered, mesh: Mesh, options: dict[str, Any]) -> dict[str, str]:
    """Returns everything that an executable depends on."""
    devices = list(mesh.devices.flat)
    flags = f"{os.environ.get('XLA_FLAGS', '')} {os.environ.get('LIBTPU_INIT_ARGS', '')}".split()
    return {
        "devices": f"{len(devices)} {devices[0].device_kind}",
        "order of devices": " ".join(str(device.id) for device in devices),
        "hosts": str(len({device.process_index for device in devices})),
        "flags": " ".join(flag for flag in flags if not flag.startswith(_IGNORED_FLAGS)),
        "compiler_options": json.dumps(options, sort_keys=True),
        **compiler_facts(devices[0]),
        "program": hashlib.sha256(lowered.as_text().encode()).hexdigest(),
    }


def _differences(saved: dict[str, Any], wanted: dict[str, str]) -> list[str]:
    """Returns what a saved step was made from and for that differs from this run, in words."""
    rows = []
    for key in sorted(saved.keys() | wanted.keys()):
        there, here = saved.get(key), wanted.get(key)
        if key == "program" and there != here:
            rows.append("the program differs: another config, data set or version of vit_jax")
        elif key != "sha256" and there != here:
            if key == "flags":  # Only those that differ, if not just their order does.
                one, other = str(there).split(), str(here).split()
                there = " ".join(flag for flag in one if flag not in other)
                here = " ".join(flag for flag in other if flag not in one)
            rows.append(f"{key}: {_short(there)} there, {_short(here)} here")
    return rows


def _short(value: Any) -> str:
    text = " ".join(str(value).split()) or "none"
    return text if len(text) <= 80 else f"{text[:77]}..."
