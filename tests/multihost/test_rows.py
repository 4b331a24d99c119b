"""Two processes whose devices alternate in the mesh, as those of the hosts of a TPU slice do."""

import json

from many_processes import free_port
from processes import start_command

PROGRAM = """
import json, sys
import jax
import numpy as np
from jax.sharding import Mesh
from vit_jax.parallel.mesh import AXES, host_rows, to_devices

port, process = sys.argv[1], int(sys.argv[2])
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
devices = np.array(jax.devices())[[0, 2, 1, 3]].reshape(4, 1, 1)
mesh = Mesh(devices, AXES)
rows = host_rows(mesh, 8)
batch = {"x": np.array(rows, np.int32)[:, None] * 10}
whole = to_devices(batch, mesh)["x"]
held = {str(s.index[0].start): s.data.ravel().tolist() for s in whole.addressable_shards}
print(json.dumps([list(rows), whole.shape, held]))
"""


def test_rows_in_several_blocks_reach_their_devices(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    port = free_port()
    env = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    processes = [
        start_command(tmp_path / "program.py", port, process, env=env) for process in (0, 1)
    ]
    found = []
    for process in processes:
        assert process.wait(120) == 0, process.printed()
        found.append(json.loads(process.printed()[0].splitlines()[-1]))
    assert found == [
        [[0, 1, 4, 5], [8, 1], {"0": [0, 10], "4": [40, 50]}],
        [[2, 3, 6, 7], [8, 1], {"2": [20, 30], "6": [60, 70]}],
    ]
