"""How a process detects from its environment what started it."""

import os
from unittest import mock

import pytest

from vit_jax.errors import ConfigError
from vit_jax.parallel import launch
from vit_jax.parallel.launch import Launch, share_of_devices

SLURM = {
    "SLURM_JOB_ID": "4097", "SLURM_STEP_NODELIST": "node[03-04]", "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_GPUS_ON_NODE": "8",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
}  # fmt: skip
PER_GPU = {
    "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_GPUS_ON_NODE": "4",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
}  # fmt: skip
# 65535 - 4096 + 1 + 4097 % 4096: as JAX chooses it.
PORT = 61441


def detect(*arguments, environ, **keywords):
    with mock.patch.dict(os.environ, environ, clear=True):
        return launch.detect(*arguments, **keywords)


def test_without_a_cluster_there_is_a_single_process():
    assert detect(environ={}) is None
    assert detect(num_processes=1, environ={}) is None
    assert detect("none", environ=SLURM) is None
    assert (
        detect(environ={"WORLD_SIZE": "1"}) is detect("none", environ={"WORLD_SIZE": "2"}) is None
    )
    assert detect("auto", "a:1", 2, 0, environ={"WORLD_SIZE": "2"}) == Launch("flags", "a:1", 2, 0)


def test_flags_replace_environment_variables():
    expected = Launch("flags", "10.0.0.1:8476", 4, 3)
    assert detect("auto", "10.0.0.1:8476", 4, 3, environ={}) == expected
    said = {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:8476", "JAX_NUM_PROCESSES": "4"}
    assert detect(environ=said | {"JAX_PROCESS_ID": "3"}) == expected
    assert detect(process_id=3, environ=said | {"JAX_PROCESS_ID": "1"}) == expected


def test_slurm_with_one_process_per_node_uses_all_gpus_of_the_node():
    """JAX by itself would give it the GPU of its number on the node: the first one of eight."""
    assert detect(environ=SLURM) == Launch("slurm", f"node03:{PORT}", 2, 1, None, 8)


def test_slurm_with_one_process_per_gpu_divides_the_gpus():
    assert detect(environ=SLURM | PER_GPU) == Launch("slurm", f"node03:{PORT}", 8, 5, (1,), 4)
    two_each = PER_GPU | {"SLURM_STEP_TASKS_PER_NODE": "2(x4)", "SLURM_NODEID": "2"}
    assert detect(environ=SLURM | two_each) == Launch("slurm", f"node03:{PORT}", 8, 5, (2, 3), 4)


def test_slurm_may_show_each_process_only_its_own_gpu():
    """Then that one has number 0 in every process."""
    bound = PER_GPU | {"CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_PER_TASK": "1"}
    assert detect(environ=SLURM | bound) == Launch("slurm", f"node03:{PORT}", 8, 5, None, 4)


def test_slurm_nodes_may_have_different_numbers_of_tasks():
    uneven = {
        "SLURM_STEP_TASKS_PER_NODE": "4(x1),1", "SLURM_NTASKS": "5", "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_PROCID": "4",
    }  # fmt: skip
    found = detect(environ=SLURM | uneven)
    assert found is not None
    assert found.local_device_ids is None  # The second node's only task: all eight.


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # The batch script.
        SLURM | {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"},  # A shell of salloc.
    ],
)
def test_slurm_tasks_without_srun_are_an_error(environ):
    with pytest.raises(ConfigError, match="SLURM allocated 4 tasks, but srun did not start") as e:
        detect(environ=environ)
    assert "put srun before the command" in str(e.value)
    assert detect("none", environ=environ) is None


def test_slurm_with_one_task_is_a_single_process():
    assert detect(environ={"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}) is None
    assert detect(environ={"SLURM_JOB_ID": "7", "SLURM_NNODES": "1"}) is None
    one = {"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
    assert detect(environ=SLURM | one | {"SLURM_STEP_TASKS_PER_NODE": "1"}) is None


def test_open_mpi_may_start_the_processes_of_a_slurm_allocation_of_nodes():
    ranks = {
        "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "2", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    for nodes in ("1", "2"):
        found = detect(environ=ranks | {"SLURM_NNODES": nodes})
        assert found is not None
        assert (found.cluster, found.num_processes, found.process_id) == ("openmpi", 4, 2)


def test_nodes_of_slurm_may_be_started_with_jax_variables():
    flags = {
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:8476", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1",
    }  # fmt: skip
    found = detect(environ=flags | {"SLURM_NNODES": "2"})
    assert found == Launch("flags", "10.0.0.1:8476", 2, 1)


@pytest.mark.parametrize(
    "environ",
    [
        {"LWS_GROUP_SIZE": "1", "LWS_WORKER_INDEX": "0"},
        {"NNODES": "2"},
        {"MY_GROUP_SIZE": "2", "OTHER_RANK": "1"},
        {"SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_ID": "1"},
        {"AWS_BATCH_JOB_ARRAY_SIZE": "4", "AWS_BATCH_JOB_ARRAY_INDEX": "1"},
    ],
)
def test_a_number_of_processes_without_that_of_this_one_is_no_starter(environ):
    assert detect(environ=environ) is None


@pytest.mark.parametrize("text", ['["algo-1"]', '{"cluster": {"worker": ["a:1"]}}', "{}", "a, b"])
def test_a_single_host_of_other_starters_is_a_single_process(text):
    assert detect(environ={"SM_HOSTS": text, "TF_CONFIG": text, "CLUSTER_SPEC": text}) is None


def test_open_mpi_4_has_the_coordinator_and_open_mpi_5_works_on_one_host():
    ranks = {
        "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "0,1",
    }  # fmt: skip
    uri = {"OMPI_MCA_orte_hnp_uri": "12288.0;tcp://10.96.0.1,10.148.0.1:34911"}
    assert detect(environ=ranks | uri) == Launch("openmpi", "10.96.0.1:61443", 4, 2, (0,))
    with pytest.raises(ConfigError, match="set --coordinator"):
        detect(environ=ranks)
    here = ranks | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "prterun-a-1@1"}
    found = detect(environ=here | {"CUDA_VISIBLE_DEVICES": ""})
    assert found is not None
    host, port = found.coordinator.split(":")
    assert host == "127.0.0.1"
    assert 61440 <= int(port) <= 65535


@pytest.mark.parametrize("worker", [0, 1])
def test_the_hosts_of_several_tpu_slices_are_numbered_slice_by_slice(monkeypatch, worker):
    """The variables that GKE sets in a JobSet of two slices with two hosts each."""
    monkeypatch.setattr("jax._src.clusters.cloud_tpu_cluster.running_in_cloud_tpu_vm", True)
    environ = {
        "JOB_COMPLETION_INDEX": f"{worker}", "TPU_WORKER_HOSTNAMES": "slice1-0,slice1-1",
        "TPU_WORKER_ID": f"{worker}", "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1",
        "MEGASCALE_COORDINATOR_ADDRESS": "localhost:8081",
    }  # fmt: skip
    expected = Launch("tpu", "localhost:8482", 4, 2 + worker)
    assert detect(environ=environ) == detect("jobset", environ=environ) == expected


def test_the_number_of_a_jobset_pod_is_its_index():
    pod = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3",
        "JAX_COORDINATOR_ADDRESS": "run-workers-0-0.run", "JAX_COORDINATOR_PORT": "6002",
        "JAX_NUM_PROCESSES": "4",
    }  # fmt: skip
    found = detect(environ=pod)
    assert found == Launch("jobset", "run-workers-0-0.run:6002", 4, 3)


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        ({"coordinator": "a:1"}, {}, "--coordinator without --num_processes, --process_id"),
        ({"coordinator": "a", "num_processes": 2, "process_id": 0}, {}, "HOST:PORT"),
        ({"coordinator": "a:1", "num_processes": 2, "process_id": 2}, {}, "process_id 2 of 2"),
        ({"cluster": "slurm"}, {}, "--cluster=slurm, but the environment shows no such"),
        ({"cluster": "openmpi"}, {}, "--cluster=openmpi, but the environment shows no such"),
        ({}, {"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES='two'"),
        ({}, {"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE=2, as of several processes, which"),
        ({}, {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"}, "LWS_GROUP_SIZE=2, as of several"),
        (
            {},
            {"DSTACK_NODES_NUM": "2", "DSTACK_NODE_RANK": "0"},
            "DSTACK_NODES_NUM=2, as of",
        ),
        ({}, {"VC_WORKER_NUM": "2", "VC_TASK_INDEX": "1"}, "VC_WORKER_NUM=2, as of several"),
        ({}, {"MF_PARALLEL_NUM_NODES": "2", "MF_PARALLEL_NODE_INDEX": "0"}, "=2, as of several"),
        ({}, {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "0"}, "SKYPILOT_NUM_NODES=2, as of"),
        (
            {},
            {"AWS_BATCH_JOB_NUM_NODES": "2", "AWS_BATCH_JOB_NODE_INDEX": "1"},
            "AWS_BATCH_JOB_NUM_NODES=2, as of several",
        ),
        ({}, {"NNODES": "2", "NODE_RANK": "1"}, "NNODES=2, as of several processes"),
        ({}, {"PMI_SIZE": "4", "PMI_RANK": "1"}, "PMI_SIZE=4, as of several processes, which"),
        ({}, {"NUM_PROCESSES": "2", "PROCESS_ID": "1"}, "NUM_PROCESSES=2, as of several processes"),
        ({}, {"SM_HOSTS": '["algo-1", "algo-2"]'}, "as of several processes, which is not read"),
        ({}, {"TF_CONFIG": '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}}'}, "TF_CONFIG="),
        (
            {},
            {"SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "1(x2)"},
            "SLURM allocated 2 nodes, but srun did not start",
        ),
    ],
)
def test_impossible_settings_are_errors(arguments, environ, message):
    with pytest.raises(ConfigError) as caught:
        detect(**arguments, environ=environ)
    assert message in str(caught.value)


def test_gpus_that_cannot_be_divided_evenly_are_an_error():
    shares = [share_of_devices(8, 4, i, bound=False) for i in range(4)]
    assert shares == [(0, 1), (2, 3), (4, 5), (6, 7)]
    with pytest.raises(ConfigError, match="8 GPUs for 3 processes on this host"):
        share_of_devices(8, 3, 0, bound=False)
