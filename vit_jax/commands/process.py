"""The arguments that make a command one of several processes, and their meaning."""

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vit_jax.commands.arguments import seconds
from vit_jax.schema import Section

# What may differ between hosts: where the data lie there, and how fast they are read.
_OF_THE_HOST = (
    "data.data_dir",
    "data.num_threads",
    "data.num_workers",
    "data.cache_mb",
    "data.prefetch_batches",
)
_CLUSTERS = ("auto", "none", "slurm", "tpu", "jobset", "openmpi")


def add_process_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares them. None is needed where SLURM, a TPU pod, Kubernetes or Open MPI says it all."""
    group = parser.add_argument_group("several processes")
    group.add_argument(
        "--cluster", choices=_CLUSTERS, default="auto",
        help="what started the processes; none: this one is alone",
    )  # fmt: skip
    group.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 listens")
    group.add_argument("--num_processes", type=int, metavar="N", help="of the run")
    group.add_argument("--process_id", type=int, metavar="K", help="of this one, from 0")
    group.add_argument(
        "--start_timeout_s", type=seconds, default=300, metavar="S",
        help="by when all processes must have come (%(default)g)",
    )  # fmt: skip
    group.add_argument(
        "--peer_timeout_s", type=seconds, default=60, metavar="S",
        help="silence after which a process is taken to be gone (%(default)g)",
    )  # fmt: skip


@contextlib.contextmanager
def started(
    args: argparse.Namespace, config: Section, cancelled: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Makes this process one of the run's while entered.

    Args:
        args: parsed, with those declared above.
        config: to be the same on all hosts.
        cancelled: asked while waiting for the others.

    Raises:
        UserError: see `vit_jax.parallel.distributed.start`.
    """
    from vit_jax.parallel.distributed import start
    from vit_jax.parallel.launch import detect
    from vit_jax.run.folder import code_versions

    launch = detect(args.cluster, args.coordinator, args.num_processes, args.process_id)
    flat = _flat(config.to_mapping())
    shared = {
        k: v for k, v in flat.items() if k not in _OF_THE_HOST and not k.endswith(".data_dir")
    }
    with start(
        launch,
        config=shared,
        code={} if launch is None else code_versions(),
        cancelled=cancelled,
        start_timeout_s=args.start_timeout_s,
        peer_timeout_s=args.peer_timeout_s,
    ):
        yield


def _flat(mapping: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Returns nested dicts as one, its keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        flat |= (
            _flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
        )
    return flat
