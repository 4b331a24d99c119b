"""Sweeps of real training runs that are interrupted give the same results as uninterrupted ones."""

import json
import os
import re
from pathlib import Path

import psutil
import pytest
from slurm_cluster import running_cluster
from sweep_processes import finish, start, table, wait_for

from vit_jax.__main__ import main
from vit_jax.run.metrics import read_metrics
from vit_jax.storage.paths import user_path

pytestmark = pytest.mark.slow
SMALL = Path(__file__).parent / "small.py"
NAMES = {"pretrain", "search/digits/learning_rate=0.001", "search/digits/learning_rate=0.01",
         "final/digits/seed1"}  # fmt: skip


@pytest.fixture(scope="module")
def reference(once, tmp_path_factory, digits_dir):
    """An uninterrupted sweep."""

    def make():
        workdir = tmp_path_factory.mktemp("reference") / "sweep"
        code, out = finish(start(workdir, f"{SMALL}:{digits_dir}"))
        assert code == 0, out
        return str(workdir)

    workdir = Path(once("sweep", make))
    assert set(table(workdir)) == NAMES
    return workdir


def step(workdir, name):
    rows = read_metrics(workdir / "jobs" / name / "metrics.jsonl")
    return rows[-1]["step"] if rows else 0


def logs(workdir):
    return {str(p): p.read_text()[-3000:] for p in workdir.rglob("*log*") if p.is_file()}


def choice(workdir):
    return json.loads((workdir / "jobs/final/digits/seed1/job.json").read_text())["selection"]


@pytest.fixture(params=["disk", "bucket"])
def workdir(request, tmp_path):
    if request.param == "disk":
        return tmp_path / "sweep"
    return user_path(f"{request.getfixturevalue('gcs').url}/sweep")


def test_a_killed_sweep_that_is_started_again_gives_the_same_results(
    workdir, digits_dir, reference
):
    for name, reached in (("pretrain", 25), ("search/digits/learning_rate=0.01", 3)):
        process = start(workdir, f"{SMALL}:{digits_dir}")
        wait_for(lambda n=name, r=reached: step(workdir, n) >= r, lambda: logs(workdir))
        everything = psutil.Process(process.pid)
        for one in [everything, *everything.children(recursive=True)]:
            one.kill()
        finish(process)
        assert table(workdir).keys() < NAMES
    code, out = finish(start(workdir, f"{SMALL}:{digits_dir}"))
    assert code == 0, out
    assert table(workdir) == table(reference)
    assert choice(workdir) == choice(reference)
    attempt = json.loads((workdir / "jobs/pretrain/.sweep/attempt.json").read_text())
    assert attempt["number"] == 2
    assert "resuming from step" in (workdir / "jobs/pretrain/log.txt").read_text()
    assert main(["report", str(workdir)]) == 0
    table_of_runs = (workdir / "report" / "runs.csv").read_text()
    assert all(name in table_of_runs for name in NAMES)


@pytest.fixture
def cluster():
    with running_cluster(nodes=1) as running:
        yield running


def test_a_sweep_runs_on_slurm_and_its_jobs_are_requeued(cluster, tmp_path, digits_dir, reference):
    """Without sacct: one plain `scontrol requeue`, and one signal of the time limit."""
    workdir = tmp_path / "sweep"
    environment = {**cluster.environment, "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = start(workdir, f"{SMALL}:{digits_dir}", "--executor=slurm", environment=environment)

    def number():
        (line,) = cluster.call("squeue", "-h", "-o", "%A %j").splitlines()
        assert line.endswith("-pretrain")
        return line.split()[0]

    wait_for(lambda: step(workdir, "pretrain") >= 12, lambda: logs(workdir))
    first = number()
    cluster.call("scontrol", "requeue", first)
    log = workdir / "jobs/pretrain/log.txt"
    wait_for(lambda: "resuming from step" in log.read_text(), lambda: logs(workdir))
    saved = int(re.findall(r"stopped and saved at step (\d+)", log.read_text())[0])
    wait_for(lambda: step(workdir, "pretrain") >= saved + 5, lambda: logs(workdir))
    cluster.call("scancel", "--signal=USR2", number())
    code, out = finish(process)
    assert code == 0, (out, logs(workdir))
    assert cluster.job(first)["JobState"] == "COMPLETED"
    assert cluster.job(first)["Restarts"] == "2"
    message = log.read_text()
    assert f"resuming from step {saved}" in message
    assert len(re.findall(r"stopped and saved at step (\d+)", message)) == 2
    assert table(workdir) == table(reference)
    assert choice(workdir) == choice(reference)
    assert os.environ.get("SLURM_CONF") is None
