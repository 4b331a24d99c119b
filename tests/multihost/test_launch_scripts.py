"""The scripts of experiments/launch: what they would do, and SLURM's for real where it is."""

import os
import re
import shutil
import subprocess
import sys
import time

import pytest
from many_processes import ROOT, TIMEOUT_S, free_port
from slurm_cluster import running_cluster

from vit_jax.run.metrics import read_metrics

LAUNCH = ROOT / "experiments" / "launch"
SCRIPTS = sorted(LAUNCH.glob("*.sh"))


def dry(script, *arguments, **environment):
    done = subprocess.run(
        ["bash", str(LAUNCH / script), *arguments, "--dry_run"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        env={**os.environ, **environment},
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.replace("\\", "")


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("slurm_per_node.sh", [], ["#SBATCH --ntasks-per-node=1", "srun --kill-on-bad-exit=0"]),
        ("slurm_per_gpu.sh", [], ["#SBATCH --ntasks-per-node=8", "srun --kill-on-bad-exit=0"]),
        ("gpu_server.sh", [], []),
        ("tpu_pod.sh", ["keep"], ["queued-resources create NAME", "--spot", "--worker=all"]),
        ("xpk.sh", ["train"], ["xpk workload create --workload=", "--num-slices=3"]),
    ],
)
def test_a_dry_run_prints_the_one_command(script, arguments, message):
    settings = {"CONFIG": "c.py:x", "WORKDIR": "/w", "ARGUMENTS": "--config.seed=1", "NAME": "NAME"}
    printed = dry(script, *arguments, **settings, SLICES="3")
    assert "-m vit_jax train --config=c.py:x --workdir=/w --config.seed=1" in printed
    for text in message:
        assert text in printed


def test_processes_on_a_gpu_server_get_equal_shares_of_its_gpus(tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nfor i in 0 1 2 3; do echo GPU $i:; done\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    lines = dry("gpu_server.sh", PROCESSES="2", PATH=path).splitlines()
    assert [re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", line) for line in lines] == [["0,1"], ["2,3"]]
    assert [line.split()[-1] for line in lines] == ["--process_id=0", "--process_id=1"]


# A stand-in for gcloud: one worker, whose commands run here. The slice is there from the start.
GCLOUD = """#!/bin/bash
set -- "${@/#--command=/}"
case "$*" in
  *describe*) echo ACTIVE ;;
  *ssh*) cd && exec bash -c "${@: -1:1}" ;;
esac
"""


@pytest.mark.parametrize("code", [0, 2])
def test_a_pod_run_goes_on_without_the_connection_and_keep_waits_for_its_end(tmp_path, code):
    home = tmp_path / "home"
    python = home / "vit_jax/.venv/bin/python"
    python.parent.mkdir(parents=True)
    # The run is lost once, as with exit code 76, before it ends.
    python.write_text(
        "#!/bin/sh\nsleep 0.3; echo $* >> ~/ran\n"
        f"[ $(wc -l < ~/ran) = 2 ] && exit {code}; exit 76\n"
    )
    (tmp_path / "gcloud").write_text(GCLOUD)
    for program in (python, tmp_path / "gcloud"):
        program.chmod(0o755)
    settings = {
        "HOME": str(home), "PATH": f"{tmp_path}:{os.environ['PATH']}", "PAUSE_S": "0.1",
        "PROJECT": "p", "REPOSITORY": "r", "BUCKET": "gs://b", "CONFIG": "c.py",
    }  # fmt: skip

    def call(action):
        return subprocess.run(
            ["bash", str(LAUNCH / "tpu_pod.sh"), action], text=True, capture_output=True,
            timeout=TIMEOUT_S, env={**os.environ, **settings},
        )  # fmt: skip

    assert call("train").returncode == 0
    done = call("keep")
    assert done.returncode == code, done.stderr
    runs = (home / "ran").read_text().splitlines()
    assert len(runs) == 2  # `keep` did not start a second one beside that of `train`.
    assert runs[0].startswith("-m vit_jax train --config=c.py --workdir=gs://b/runs/b16")
    assert (home / "vit_jax/exit_code").read_text().strip() == str(code)


def test_a_request_that_has_failed_is_not_waited_for(tmp_path):
    (tmp_path / "gcloud").write_text(GCLOUD.replace("ACTIVE", "FAILED"))
    (tmp_path / "gcloud").chmod(0o755)
    settings = {"PROJECT": "p", "REPOSITORY": "r", "BUCKET": "gs://b", "PAUSE_S": "0.1"}
    settings["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(LAUNCH / "tpu_pod.sh"), "create"], text=True, capture_output=True,
        timeout=TIMEOUT_S, env={**os.environ, **settings},
    )  # fmt: skip
    assert done.returncode == 1
    assert "the request for vit-b16 has failed" in done.stderr


def test_settings_that_nobody_has_edited_are_told():
    train = ["bash", str(LAUNCH / "tpu_pod.sh"), "train"]
    done = subprocess.run(train, text=True, capture_output=True)
    assert done.returncode == 2
    assert "PROJECT is MY_PROJECT: set it in the environment, or edit tpu_pod.sh" in done.stderr
    printed = subprocess.run([*train, "--dry_run"], text=True, capture_output=True)
    assert printed.returncode == 0
    assert "BUCKET is gs://MY_BUCKET" in printed.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_accepts_the_scripts():
    done = subprocess.run(["shellcheck", *map(str, SCRIPTS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def cluster():
    with running_cluster(nodes=2) as running:
        yield running


@pytest.mark.slow
def test_a_job_requeued_by_slurm_resumes_and_finishes(cluster, tmp_path, digits_dir):
    """Two nodes, a process each, train the quickstart's model; a requeue comes in the middle."""
    workdir = tmp_path / "run"
    short = [
        "--config.train_epochs=none", "--config.train_steps=150", "--config.model.scan=true",
        "--config.logging.interval_steps=1", "--config.evaluation.interval_epochs=none",
        f"--config.data.data_dir={digits_dir}",
    ]  # fmt: skip
    settings = {
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "CONFIG": "configs/quickstart.py",
        "WORKDIR": str(workdir),
        "ARGUMENTS": " ".join(short),
        "JAX_PLATFORMS": "cpu",
        "JAX_COORDINATOR_PORT": str(free_port()),
        "XLA_FLAGS": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    log, script = tmp_path / "job.log", str(LAUNCH / "slurm_per_node.sh")
    options = ["--parsable", "--gpus-per-node=0", "--cpus-per-task=1", f"--chdir={ROOT}"]
    printed = cluster.call("sbatch", *options, f"--output={log}", script, env=settings)
    job = int(printed.split(";")[0])

    def wait_for(condition):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            message = log.read_text() if log.exists() else ""
            assert time.monotonic() < deadline, (cluster.job(job), message)
            time.sleep(0.2)

    def steps():
        rows = read_metrics(workdir / "metrics.jsonl")
        return [row["step"] for row in rows if "train/loss" in row]

    wait_for(lambda: steps() and steps()[-1] >= 5)
    cluster.call("scontrol", "requeue", str(job))
    wait_for(lambda: cluster.job(job)["JobState"] in ("COMPLETED", "FAILED"))
    message = log.read_text()
    assert cluster.job(job)["JobState"] == "COMPLETED", message
    assert cluster.job(job)["Restarts"] == "1"
    saved = int(re.findall(r"stopped and saved at step (\d+)", message)[0])
    assert 5 <= saved < 150
    assert f"resuming from step {saved}" in message
    assert message.count("2 processes, 2 devices (started by slurm)") == 2
    assert steps() == list(range(1, 151))
    assert (workdir / "result.json").exists()
