"""A run that is killed along a trace takes the time that the simulator says."""

import time
from pathlib import Path

import numpy as np
import pytest
from processes import TIMEOUT_S, UNMIXED, finish, start_command

from vit_jax.plan.preemption import along_trace, simulate
from vit_jax.plan.run_costs import measured_costs
from vit_jax.run.folder import read_config

INTERVAL = 50
# Seconds that a machine lasts and until the next, for two traces.
TRACES = ([(21, 3), (40, 1), (15, 6)], [(33, 2), (12, 2), (30, 4)])


def start(workdir, digits_dir):
    return start_command(
        Path(__file__).parent / "slow_steps.py", "0.1", "train", f"--config={UNMIXED}",
        f"--workdir={workdir}", f"--config.data.data_dir={digits_dir}",
        "--config.train_steps=500", f"--config.checkpoint.interval_steps={INTERVAL}",
        "--config.evaluation.interval_steps=100", "--config.logging.interval_steps=10",
    )  # fmt: skip


def run_along(trace, workdir, digits_dir):
    """Kills the run along a trace and returns the time from its start to its end."""
    begin = time.time()
    for up_s, down_s in trace:
        process = start(workdir, digits_dir)
        time.sleep(up_s)
        assert process.poll() is None, process.communicate()[1]
        process.kill()
        finish(process)
        time.sleep(down_s)
    process = start(workdir, digits_dir)
    process.wait(TIMEOUT_S)
    assert process.returncode == 0, process.communicate()[1]
    return (workdir / "result.json").stat().st_mtime - begin


@pytest.mark.slow
@pytest.mark.parametrize("trace", TRACES, ids=["one", "two"])
def test_a_killed_run_takes_the_simulated_time(tmp_path, digits_dir, trace):
    finish(start_command("-m", "vit_jax", "--help"))  # Starts the server of processes.
    # Another trace measures the times, among them those of a restart.
    run_along([(25, 1)], tmp_path / "measured", digits_dir)
    costs = measured_costs(tmp_path / "measured", read_config(tmp_path / "measured"))
    took = run_along(trace, tmp_path / "killed", digits_dir)
    up_s, down_s = np.array([*trace, (np.inf, 0)], float).T
    said = simulate(costs, INTERVAL, along_trace(up_s, down_s, np.zeros(1)))
    print(f"simulated {said.total_s[0]:.1f} s, took {took:.1f} s, {costs}")
    assert took == pytest.approx(said.total_s[0], rel=0.1)
