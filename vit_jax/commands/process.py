"""Arguments of commands that can run as several processes, and the connection between them."""

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vit_jax.commands.arguments import positive_number
from vit_jax.parallel.launch import CLUSTERS, detect
from vit_jax.schema import Section

# Keys that may differ between hosts: where the data are and how they are read.
_HOST_KEYS = (
    "data.data_dir",
    "data.num_threads",
    "data.num_workers",
    "data.cache_mb",
    "data.cache_dir",
    "data.cache_dir_gb",
    "compile_cache",
)


def add_process_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments. SLURM, TPU pods, Kubernetes and Open MPI need none of them."""
    group = parser.add_argument_group("several processes")
    group.add_argument(
        "--cluster",
        choices=CLUSTERS,
        default="auto",
        help="cluster that started the processes; none: a single process",
    )
    group.add_argument(
        "--coordinator", metavar="HOST:PORT", help="address on which process 0 listens"
    )
    group.add_argument(
        "--num_processes", type=int, metavar="N", help="number of processes of the run"
    )
    group.add_argument("--process_id", type=int, metavar="K", help="number of this process, from 0")
    group.add_argument(
        "--start_timeout_s",
        type=positive_number,
        default=300,
        metavar="S",
        help="time limit for all processes to connect (%(default)g)",
    )
    group.add_argument(
        "--peer_timeout_s",
        type=positive_number,
        default=60,
        metavar="S",
        help="time after which a process without heartbeat is considered lost (%(default)g)",
    )


@contextlib.contextmanager
def started(
    args: argparse.Namespace, config: Section, cancelled: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Connects this process to the others of its run, and opens the compilation cache.

    Args:
        args: parsed arguments, including those of `add_process_arguments`.
        config: config of the command; must be the same on all hosts.
        cancelled: polled while this process waits for the others to connect.
    """
    from vit_jax.parallel.processes import connected
    from vit_jax.run.compile_cache import AUTO, use_compile_cache
    from vit_jax.run.environment import code_versions

    launch = detect(args.cluster, args.coordinator, args.num_processes, args.process_id)
    flat = _flat(config.to_mapping())
    shared = {k: v for k, v in flat.items() if k not in _HOST_KEYS and not k.endswith(".data_dir")}
    with connected(
        launch,
        config=shared,
        code={} if launch is None else code_versions(),
        cancelled=cancelled,
        start_timeout_s=args.start_timeout_s,
        peer_timeout_s=args.peer_timeout_s,
    ):
        use_compile_cache(flat.get("compile_cache", AUTO))  # Only runs have such a key.
        yield


def _flat(mapping: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Flattens nested dicts; keys are joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        flat |= (
            _flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
        )
    return flat
