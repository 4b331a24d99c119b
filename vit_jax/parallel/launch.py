"""Detects whether this process is one of several in a run, and how they were started.

A run of several processes is started by SLURM, a TPU pod, Kubernetes, Open MPI, or with flags. JAX
detects these, too, and this module takes the coordinator and the numbers of the processes from it.
But on SLURM and Open MPI, JAX assumes one process per GPU. This module divides the GPUs of a host
among its processes.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Mapping
from typing import Any

from vit_jax import jax_internals
from vit_jax.errors import ConfigError

CLUSTERS = ("auto", "none", "slurm", "tpu", "jobset", "openmpi")
# Numbers of processes or nodes that other starters set: torchrun, MPICH, MVAPICH, Horovod, Flux,
# jsrun and Kubeflow's JAXJob.
_SIZES = (
    "WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "HOROVOD_SIZE", "FLUX_JOB_SIZE",
    "JSM_NAMESPACE_SIZE", "NUM_PROCESSES",
)  # fmt: skip
# Names that still others use, such as SkyPilot and AWS Batch, for the number of processes or nodes,
# and for the rank of this one. Both begin with the starter's own word, or neither does.
_OTHER_SIZE = re.compile(
    r"(?:([A-Z0-9]+)_(?:\w+_)?)??(?:GROUP_SIZE|WORLD_SIZE|NNODES|NUM_NODES|NODES_NUM|WORKER_NUM)"
)
_OTHER_RANK = re.compile(
    r"(?:([A-Z0-9]+)_(?:\w+_)?)??(?:RANK|NODE_RANK|(?:NODE|WORKER|TASK)_INDEX)"
)
# JSON with the names of the hosts: of SageMaker, and of Vertex AI and other starters of TensorFlow.
_HOSTS = ("SM_HOSTS", "CLUSTER_SPEC", "TF_CONFIG")
# SLURM's numbers of tasks and, of a batch script that was given no number of tasks, of nodes.
_SLURM_SIZES = ("SLURM_NTASKS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
# Ports that are rarely in use; jobs on the same host should have different ones.
_FIRST_PORT, _PORTS = 61440, 4096


@dataclasses.dataclass(frozen=True)
class Launch:
    """How one of several processes was started."""

    cluster: str  # what started it: "flags", or one of CLUSTERS
    coordinator: str  # HOST:PORT where process 0 listens
    num_processes: int
    process_id: int  # from 0
    local_device_ids: tuple[int, ...] | None = None  # of the visible GPUs; None: all
    allocated: int | None = None  # GPUs of this host that the scheduler gave; None: unknown


def detect(
    cluster: str = "auto",
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> Launch | None:
    """Returns how this process was started; None: it is the only process of its run.

    The arguments, which come from flags, override the environment variables
    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID. Both override the values of
    the cluster, which is one of CLUSTERS. The coordinator is HOST:PORT.
    """
    environ, found = os.environ, None
    explicit = bool(coordinator or environ.get("JAX_COORDINATOR_ADDRESS"))
    of_slurm = "SLURM_STEP_NODELIST" in environ or "SLURM_NTASKS" in environ
    # Without a number of tasks, mpirun may have started the processes on the nodes.
    of_nodes = "OMPI_COMM_WORLD_SIZE" not in environ and bool(environ.keys() & {*_SLURM_SIZES})
    if cluster == "slurm" or (cluster == "auto" and (of_slurm or of_nodes)):
        found = _slurm(explicit=explicit)
    elif cluster in ("auto", "openmpi") and "OMPI_COMM_WORLD_SIZE" in environ:
        found = _openmpi()
    elif cluster in ("auto", "jobset") and "JOB_COMPLETION_INDEX" in environ:
        found = _jobset()
    elif cluster in ("auto", "tpu"):
        found = _tpu()
    if found is None and cluster not in ("auto", "none"):
        raise ConfigError(
            f"--cluster={cluster}, but the environment shows no such cluster",
            "a process that this cluster started",
            "start the command through the cluster, or leave --cluster out",
        )
    launch = _complete(found, coordinator, num_processes, process_id)
    size = next((name for name in _SIZES if environ.get(name, "1") != "1"), None)
    size = size or next((name for name in _HOSTS if _number_of_hosts(environ.get(name)) > 1), None)
    size = size or _other_size(environ)
    if launch is found is None and size and cluster == "auto" and num_processes is None:
        raise ConfigError(
            f"{size}={environ[size][:80]}, as of several processes, which is not read",
            "--coordinator=HOST:PORT --num_processes=N --process_id=K",
            "add them, or --cluster=none, with which each process is a run of its own",
        )
    return launch


def _other_size(environ: Mapping[str, str]) -> str | None:
    """Returns the variable in which another starter gives a number of processes, or None."""
    ranks = [_OTHER_RANK.fullmatch(name) for name in environ]
    starters = {match[1] for match in ranks if match and environ[match[0]].isdecimal()}
    sizes = [_OTHER_SIZE.fullmatch(name) for name in environ]
    found = [m[0] for m in sizes if m and m[1] in starters - {"SLURM", "OMPI"}]
    return next((n for n in found if environ[n].isdecimal() and int(environ[n]) > 1), None)


def _number_of_hosts(text: str | None) -> int:
    """Returns the number of hosts in a variable of _HOSTS; 0: it is none of these."""
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return 0
    cluster = found.get("cluster") if isinstance(found, dict) else None
    hosts = [*cluster.values()] if isinstance(cluster, dict) else [found]
    return sum(len(one) for one in hosts if isinstance(one, list))


def _complete(
    found: Launch | None, coordinator: str | None, num_processes: int | None, process_id: int | None
) -> Launch | None:
    """Overrides the detected values by flags and environment variables."""
    coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    port = os.environ.get("JAX_COORDINATOR_PORT")
    if coordinator and port and ":" not in coordinator:
        coordinator = f"{coordinator}:{port}"
    values: dict[str, Any] = {
        "coordinator": coordinator,
        "num_processes": _read_int(num_processes, "JAX_NUM_PROCESSES"),
        "process_id": _read_int(process_id, "JAX_PROCESS_ID"),
    }
    given = {name: value for name, value in values.items() if value is not None}
    if found is None and not given:
        return None
    if coordinator is None and given.get("num_processes", found and found.num_processes) == 1:
        return None
    if found is not None:
        launch = dataclasses.replace(found, **given)
    elif len(given) == len(values):
        launch = Launch("flags", **given)
    else:
        raise ConfigError(
            f"{', '.join(f'--{n}' for n in given)} without "
            f"{', '.join(f'--{n}' for n in values if n not in given)}",
            "--coordinator=HOST:PORT --num_processes=N --process_id=K together",
            "add the missing flags",
        )
    _check(launch)
    return launch


def _check(launch: Launch) -> None:
    if not re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^:\s]+):\d{1,5}", launch.coordinator):
        raise ConfigError(
            f"coordinator {launch.coordinator!r}",
            "HOST:PORT where process 0 listens",
            "set --coordinator, e.g. --coordinator=10.0.0.1:8476",
        )
    if not 0 <= launch.process_id < launch.num_processes:
        raise ConfigError(
            f"process_id {launch.process_id} of {launch.num_processes} processes",
            f"0 to {launch.num_processes - 1}",
            "number the processes from 0",
        )


def _read_int(value: int | None, name: str) -> int | None:
    text = os.environ.get(name)
    if value is not None or text is None:
        return value
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r}", "a whole number", "correct or unset it") from None


def _slurm(*, explicit: bool) -> Launch | None:
    environ = os.environ
    size = next((name for name in _SLURM_SIZES if name in environ), "")
    tasks = int(environ.get(size, "1"))
    started = int(environ.get("SLURM_STEP_NUM_TASKS", tasks))
    if "SLURM_STEP_NODELIST" not in environ or started < tasks:
        if tasks > 1 and not explicit:
            # This is the batch script itself, or a shell of salloc.
            raise ConfigError(
                f"SLURM allocated {tasks} {'tasks' if 'TASKS' in size else 'nodes'}, but srun did"
                " not start this process",
                "srun python -m vit_jax train ...",
                "put srun before the command, or add --cluster=none to use this process alone",
            )
        return None
    launch = _from_jax("slurm", "SlurmCluster")
    if launch is None or tasks == 1:
        return None
    node, allocated = int(environ.get("SLURM_NODEID", "0")), environ.get("SLURM_GPUS_ON_NODE", "")
    bound = {"SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_TRES_PER_TASK"}
    share = share_of_devices(
        visible_gpus(environ),
        _tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE") or str(tasks))[node],
        int(environ["SLURM_LOCALID"]),
        bound=not bound.isdisjoint(environ),
    )
    return dataclasses.replace(
        launch, local_device_ids=share, allocated=int(allocated) if allocated.isdigit() else None
    )


def _tasks_per_node(text: str) -> list[int]:
    """Parses SLURM's "2(x3),1": three nodes with two tasks each, then one node with one task."""
    counts = []
    for tasks, nodes in re.findall(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", text):
        counts += [int(tasks)] * int(nodes or 1)
    return counts


def share_of_devices(
    visible: int, processes: int, index: int, *, bound: bool
) -> tuple[int, ...] | None:
    """Returns the visible GPUs that a process should use; None: all.

    The counts are those of this host. `bound` says whether the scheduler shows each process only
    its own GPUs.

    >>> share_of_devices(8, 1, 0, bound=False)
    >>> share_of_devices(8, 4, 1, bound=False)
    (2, 3)
    >>> share_of_devices(1, 4, 1, bound=True)
    """
    if bound or processes == 1 or visible == 0:
        return None
    if visible % processes:
        raise ConfigError(
            f"{visible} GPUs for {processes} processes on this host",
            "the same number for each process",
            "start one process for each host or one for each GPU",
        )
    each = visible // processes
    return tuple(range(index * each, (index + 1) * each))


def visible_gpus(environ: Mapping[str, str]) -> int:
    """Returns the number of NVIDIA GPUs that this process sees, without opening them."""
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return len([d for d in named.split(",") if d.strip() not in ("", "-1")])
    if shutil.which("nvidia-smi") is None:
        return 0
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, encoding="utf-8", timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def _openmpi() -> Launch:
    count, rank, here, local_rank = (
        int(os.environ[f"OMPI_COMM_WORLD_{name}"])
        for name in ("SIZE", "RANK", "LOCAL_SIZE", "LOCAL_RANK")
    )
    launch = None
    with contextlib.suppress(RuntimeError):  # Open MPI 5 tells JAX nothing without mpi4py.
        launch = _from_jax("openmpi", "OmpiCluster")
    if launch is None:
        port = os.environ.get("JAX_COORDINATOR_PORT") or _port_of_job()
        coordinator = f"127.0.0.1:{port}" if here == count else ""
        launch = Launch("openmpi", coordinator, count, rank)
    share = share_of_devices(visible_gpus(os.environ), here, local_rank, bound=False)
    return dataclasses.replace(launch, local_device_ids=share)


def _port_of_job() -> int:
    """Returns a port that is the same for all processes of an Open MPI job."""
    name = os.environ.get("PMIX_NAMESPACE", "").encode()
    return _FIRST_PORT + zlib.crc32(name) % _PORTS


def _jobset() -> Launch | None:
    """Returns how a pod of an indexed Job or JobSet was started."""
    launch = _tpu()
    if launch is not None:
        return launch
    coordinator = os.environ.get("JAX_COORDINATOR_ADDRESS", "")
    count = os.environ.get("JAX_NUM_PROCESSES") or os.environ.get("NNODES")
    if coordinator and count:
        index = os.environ.get("NODE_RANK") or os.environ["JOB_COMPLETION_INDEX"]
        return Launch("jobset", coordinator, int(count), int(index))
    return _from_jax("jobset", "K8sCluster")


def _tpu() -> Launch | None:
    return _from_jax("tpu", "GkeTpuCluster", "GceTpuCluster")


def _from_jax(cluster: str, *names: str) -> Launch | None:
    found = jax_internals.cluster_info(names)
    return None if found is None else Launch(cluster, *found)
