"""Lists the devices of a run's processes, and checks that no accelerator is idle."""

import os
import platform
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from vit_jax.errors import ConfigError, first_few
from vit_jax.jax_internals import tpu_chips
from vit_jax.parallel.launch import Launch, visible_gpus


def local_devices(launch: Launch | None) -> dict[str, Any]:
    """Returns this process's devices and the number of accelerators allocated on its host."""
    devices, allocated = jax.local_devices(), None if launch is None else launch.allocated
    platform_name = devices[0].platform
    wanted = jax.config.jax_platforms or ""  # pyright: ignore[reportAttributeAccessIssue]
    if wanted == "cpu":
        allocated = None
    elif allocated is None and (launch is None or launch.local_device_ids is None):
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        if named and platform_name == "cpu":
            allocated = visible_gpus(os.environ)
        elif platform_name == "cpu":
            allocated = tpu_chips() or None
    return {
        "host": platform.node(),
        "node": os.environ.get("SLURM_NODEID"),
        "pid": os.getpid(),
        "platform": platform_name,
        "kind": devices[0].device_kind,
        "ids": [d.id for d in devices],
        "allocated": allocated,
    }


def check_devices(found: list[dict[str, Any]]) -> None:
    """Checks that the run uses all allocated accelerators, and only one platform.

    `found` has what `local_devices` returned on each process.
    """
    # Nodes are also distinguished by number, because emulated SLURM nodes share a host name.
    nodes: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for row in found:
        nodes.setdefault((row["host"], row["node"]), []).append(row)
    for (host, _), rows in nodes.items():
        allocated = max(row["allocated"] or 0 for row in rows)
        used = sum(len(row["ids"]) for row in rows if row["platform"] != "cpu")
        if used and used < allocated:
            raise ConfigError(
                f"{used} of {allocated} accelerators of {host} in use",
                "all accelerators that the scheduler allocated",
                "start one process a host that sees all of them, or one process for each",
            )
        if used < allocated:
            raise ConfigError(
                f"none of {allocated} accelerators of {host} in use: "
                f"JAX found only {rows[0]['kind']}",
                "all accelerators that the scheduler allocated",
                'install jax for accelerators, e.g. pip install "jax[cuda13]" or "jax[tpu]"; '
                "set JAX_PLATFORMS=cpu to use the CPU on purpose",
            )
    if len({row["platform"] for row in found}) > 1:
        rows = [f"process {i} ({row['host']}): {row['platform']}" for i, row in enumerate(found)]
        raise ConfigError(
            f"processes on different platforms ({first_few(rows, 8)})",
            "one platform",
            "install the same jax on every host",
        )


def print_devices(found: list[dict[str, Any]], cluster: str, console: Console) -> None:
    """Prints a table of processes, hosts and devices."""
    count = sum(len(row["ids"]) for row in found)
    table = Table(
        title=f"{len(found)} processes, {count} devices (started by {cluster})",
        title_justify="left",
    )
    for name in ("process", "host", "pid", "devices", "kind", "ids"):
        table.add_column(name, justify="right" if name in ("process", "pid", "devices") else "left")
    for process, row in enumerate(found):
        ids = [str(i) for i in row["ids"]]
        table.add_row(
            str(process),
            row["host"],
            str(row["pid"]),
            str(len(ids)),
            row["kind"],
            first_few(ids, 8, " "),
        )
    console.print(table)
