"""JAX's private modules still have what `jax_internals` uses of them."""

import os
from unittest import mock

import jax
import pytest
from many_processes import free_port
from processes import run_command

from vit_jax import jax_internals
from vit_jax.jax_internals import CoordinationClient

METHODS = [name for name in vars(CoordinationClient) if not name.startswith("_")]
CLIENT = """
import json, sys
import jax
from vit_jax.jax_internals import coordination_client
jax.distributed.initialize(sys.argv[1], 1, 0, coordinator_bind_address=sys.argv[1],
                           cluster_detection_method="deactivate")
print(json.dumps([name for name in dir(coordination_client())]))
"""


def test_the_coordination_client_has_the_methods_that_are_used(tmp_path):
    (tmp_path / "client.py").write_text(CLIENT)
    done = run_command(tmp_path / "client.py", f"127.0.0.1:{free_port()}")
    assert done.returncode == 0, f"JAX {jax.__version__} has moved its client: {done.stderr}"
    missing = [name for name in METHODS if f'"{name}"' not in done.stdout]
    assert not missing, f"JAX {jax.__version__} has no {missing}: change parallel/processes.py"


@pytest.mark.parametrize(
    ("environ", "call", "expected"),
    [
        ({"SLURM_JOB_ID": "4097", "SLURM_STEP_NODELIST": "node[03-04]", "SLURM_NTASKS": "4",
          "SLURM_PROCID": "3", "SLURM_LOCALID": "1"},
         lambda: jax_internals.cluster_info(["SlurmCluster"]), ("node03:1234", 4, 3)),
        ({"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
          "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
         lambda: jax_internals.cluster_info(["OmpiCluster"]), ("10.96.0.1:1234", 2, 1)),
        ({}, lambda: jax_internals.cluster_info(
            ["GkeTpuCluster", "GceTpuCluster", "K8sCluster"]), None),
        ({}, lambda: jax_internals.tpu_chips() >= 0, True),
    ],
    ids=["slurm", "openmpi", "clusters", "tpu chips"],
)  # fmt: skip
def test_jax_finds_clusters_and_chips(environ, call, expected):
    environ = environ | {"JAX_COORDINATOR_PORT": "1234"}
    with mock.patch.dict(os.environ, environ, clear=True):
        assert call() == expected
