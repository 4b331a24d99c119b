"""The scripts of experiments/launch: with stand-ins for gcloud and SLURM, and on a real SLURM."""

import re
import shutil
import subprocess
import sys
import time

import pytest
from launch_stand_ins import (
    LAUNCH,
    Origin,
    bash,
    installed,
    lines,
    with_stand_ins,
    write_program,
)
from many_processes import ROOT, TIMEOUT_S, free_port
from slurm_cluster import running_cluster

from vit_jax.run.metrics import read_metrics

SCRIPTS = sorted(LAUNCH.glob("*.sh"))
COMMIT = "0123456789abcdef0123456789abcdef01234567"
POD = {"PROJECT": "p", "REPOSITORY": "r", "BUCKET": "gs://b", "CONFIG": "c.py", "REVISION": COMMIT}


@pytest.fixture
def origin(tmp_path):
    return Origin(tmp_path)


def pod(action, folder, states=(), cwd=ROOT, **settings):
    """Runs tpu_pod.sh of `cwd`. Returns its result and what gcloud was asked."""
    env = with_stand_ins(folder, states, **POD | settings)
    done = bash(cwd / "experiments/launch/tpu_pod.sh", *action.split(), cwd=cwd, env=env)
    return done, lines(folder / "asked")


def wait_for(condition, pause_s=0.02, about=str):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, about()
        time.sleep(pause_s)


@pytest.mark.parametrize(
    ("action", "messages"),
    [
        ("create", ["queued-resources create NAME", "--zone=us-central1-a", "--spot"]),
        ("setup", ["--worker=all", f"git checkout -q --detach {COMMIT}", "requirements-tpu.lock"]),
        ("train", ["--worker=all", "train --config=c.py:x --workdir=/w --config.seed=1"]),
        ("watch", ["--worker=0", "tail"]),
        ("delete", ["queued-resources delete NAME"]),
    ],
)
def test_a_dry_run_of_a_pod_prints_the_command(tmp_path, action, messages):
    settings = {"CONFIG": "c.py:x", "WORKDIR": "/w", "ARGUMENTS": "--config.seed=1", "NAME": "NAME"}
    done, asked = pod(f"{action} --dry_run", tmp_path, **settings)
    assert (done.returncode, asked) == (0, [])
    for message in messages:
        assert message in done.stdout.replace("\\", "")


def test_the_names_of_slice_and_folder_follow_the_config(tmp_path):
    settings = {"CONFIG": "configs/pretrain.py:imagenet21k,L/16"}
    assert "queued-resources create pretrain-imagenet21k-l-16 " in (
        pod("create --dry_run", tmp_path, **settings)[0].stdout
    )
    train = pod("train --dry_run", tmp_path, **settings)[0].stdout.replace("\\", "")
    assert "--workdir=gs://b/runs/pretrain-imagenet21k-l-16 " in train


def test_a_slice_on_demand_is_asked_for_without_spot(tmp_path):
    done, _ = pod("create --dry_run", tmp_path, SPOT="")
    assert "create" in done.stdout
    assert "--spot" not in done.stdout


@pytest.mark.parametrize("state", ["FAILED", "SUSPENDING", "SUSPENDED"])
def test_a_request_that_has_ended_is_not_waited_for(tmp_path, state):
    done, asked = pod("create", tmp_path, states=["WAITING_FOR_RESOURCES", state])
    assert done.returncode == 1
    assert f"the request for c is {state}: run delete, then create" in done.stderr
    assert [line.split()[3] for line in asked] == ["create", "describe", "describe"]


def test_a_slice_whose_state_is_unknown_is_waited_for(tmp_path):
    states = ["error", "error", "PROVISIONING", "error", "ACTIVE"]
    done, asked = pod("create", tmp_path, states)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("network unreachable") == 3
    assert [line.split()[3] for line in asked] == ["create", *["describe"] * 5]


@pytest.mark.parametrize("code", [0, 1, 2, 75])
def test_a_pod_run_goes_on_without_the_connection_and_nothing_deletes_its_slice(
    tmp_path, origin, code
):
    folder = tmp_path / "stand_ins"
    settings = {"REPOSITORY": str(origin.url), "REVISION": origin.commit("one")}
    folder.mkdir()
    (folder / "hold").touch()
    for action in ("create", "setup", "train", "train"):
        done, asked = pod(action, folder, ["ACTIVE"], origin.clone, EXIT_CODE=str(code), **settings)
        assert done.returncode == 0, done.stderr
    wait_for(lambda: lines(folder / "locked"))  # The second start left the run alone.
    (folder / "hold").unlink()
    log = folder / "home/vit_jax/train.log"
    wait_for(lambda: lines(log))
    assert lines(log) == [f"exit code {code}"]
    (ran,) = lines(folder / "ran")
    assert ran.strip() == (
        "-m vit_jax train --config=c.py --workdir=gs://b/runs/c --config.data.data_dir=gs://b/data"
    )
    assert not [line for line in asked if "delete" in line]
    assert "queued-resources delete c" in pod("delete", folder)[1][-1]


def test_settings_that_nobody_has_edited_are_told(tmp_path):
    done, asked = pod("train", tmp_path, PROJECT="")
    assert (done.returncode, asked) == (2, [])
    assert "PROJECT is MY_PROJECT: set it in the environment, or edit tpu_pod.sh" in done.stderr
    done, _ = pod("train --dry_run", tmp_path, BUCKET="")
    assert done.returncode == 0
    assert "BUCKET is gs://MY_BUCKET" in done.stderr


def test_three_setups_of_a_pod_run_install_one_commit(tmp_path, origin):
    folder = tmp_path / "stand_ins"
    settings = {"REPOSITORY": str(origin.url), "REVISION": ""}
    first = origin.commit("one")
    for text in ("two", "three", "four"):
        shutil.rmtree(folder / "home/vit_jax", ignore_errors=True)  # a new slice
        done, _ = pod("setup", folder, cwd=origin.clone, **settings)
        assert done.returncode == 0, done.stderr
        newest = origin.commit(text)  # The server's branch and the clone move on.
    commits, digests = installed(folder)
    assert commits == {first}
    assert {name: len(found) for name, found in digests.items()} == {
        "requirements.lock": 1, "requirements-tpu.lock": 1,
    }  # fmt: skip
    # Another run has the commit of the clone, and so has a run that asks for it.
    for more in ({"WORKDIR": "gs://b/runs/other"}, {"REVISION": newest}):
        done, _ = pod("setup", folder, cwd=origin.clone, **settings | more)
        assert f"installing {newest}" in done.stderr


def test_the_revision_of_a_launch_is_a_commit_that_is_pushed(tmp_path, origin):
    env = with_stand_ins(tmp_path / "stand_ins", REVISION="")
    first = origin.commit("one")

    def call(**settings):
        script = origin.clone / "experiments/launch/revision.sh"
        done = bash(script, cwd=tmp_path, env=env | settings)
        assert done.stderr.count("\n") == (done.returncode != 0)
        return done.returncode, (done.stdout or done.stderr).strip()

    assert call() == (0, first)
    (origin.clone / "notes.txt").write_text("untracked, and no part of a run")
    with (origin.clone / "experiments/launch/tpu.yaml").open("a") as settings:
        settings.write("# another region\n")
    assert call() == (0, first)
    own = origin.clone / "configs" / "own.py"
    own.write_text("")
    code, message = call()
    assert code == 2
    assert message.startswith("error: files have changed: configs/own.py; expected")
    own.unlink()
    (origin.clone / "requirements.lock").write_text("edited")
    assert "files have changed: requirements.lock" in call()[1]
    second = origin.commit("two", push=False)
    code, message = call()
    assert code == 2
    assert f"no remote branch has {second}" in message
    assert "run git push, or set REVISION" in message
    assert call(REVISION=second) == (0, second)
    code, message = call(REVISION="main")
    assert code == 2
    assert "REVISION is main; expected a full commit of 40 digits" in message


def slurm(*arguments, cwd, env):
    return bash(cwd / "experiments/launch/slurm.sh", *arguments, cwd=cwd, env=env)


def test_a_dry_run_of_slurm_prints_what_it_would_do(tmp_path):
    settings = {"CONFIG": "c.py:x", "WORKDIR": "/w", "ARGUMENTS": "--config.seed=1", "PYTHON": ""}
    env = with_stand_ins(tmp_path, REVISION=COMMIT, **settings)
    done = slurm("--dry_run", "--ntasks-per-node=8", cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    assert lines(tmp_path / "asked") == []
    printed = done.stdout.splitlines()
    assert "#SBATCH --ntasks-per-node=1" in printed
    clone, checkout, _, sync, sbatch, change, srun = [line for line in printed if line[0] != "#"]
    code = f"{ROOT}/.launch/{COMMIT}"
    assert clone.split()[-1] == code
    assert checkout.split()[-2:] == ["--detach", COMMIT]
    assert sync.endswith(
        f"--require-hashes {code}/requirements.lock {code}/requirements-cuda.lock "
    )
    assert "sbatch --ntasks-per-node=8 " in sbatch
    assert change.split() == ["cd", code]
    assert srun.startswith("srun --kill-on-bad-exit=0 .venv/bin/python -m vit_jax train ")
    assert "--config=c.py:x --workdir=/w --config.seed=1" in srun


def test_three_starts_of_a_slurm_job_run_one_commit(tmp_path, origin):
    folder = tmp_path / "stand_ins"
    first = origin.commit("one")
    env = with_stand_ins(folder, REVISION="", PYTHON="", WORKDIR="runs/x")
    # The variables that sbatch gives to the job.
    (folder / "bin/sbatch").write_text(
        '#!/bin/bash\nexport -p > "$STAND_INS/variables"; echo "${@: -1}" > "$STAND_INS/job"\n'
    )
    assert slurm(cwd=origin.clone, env=env).returncode == 0
    job = lines(folder / "job")[0]
    for restart, text in enumerate(("two", "three", "four")):
        origin.commit(text)
        started = (
            f"source {folder}/variables; SLURM_JOB_ID=7 SLURM_RESTART_COUNT={restart} bash {job}"
        )
        done = bash("-c", f"{started}; git -C $CODE rev-parse HEAD", cwd=origin.clone, env=env)
        assert (done.returncode, done.stdout.strip()) == (0, first), done.stderr
    commits, digests = installed(folder)
    assert commits == {first}
    assert sorted(digests) == ["requirements-cuda.lock", "requirements.lock"]
    ran = lines(folder / "ran")
    assert len(ran) == 3
    assert f"--workdir={origin.clone}/runs/x " in ran[0]


@pytest.mark.parametrize(
    ("code", "restarts", "requeued"),
    [(0, 0, False), (1, 0, False), (2, 0, False), (75, 99, True), (76, 9, True), (76, 10, False)],
)
def test_a_slurm_job_is_requeued_after_a_stop_or_a_lost_process(tmp_path, code, restarts, requeued):
    env = with_stand_ins(
        tmp_path, SLURM_JOB_ID="7", SLURM_RESTART_COUNT=str(restarts), EXIT_CODE=str(code),
        PYTHON=str(tmp_path / "python"),
    )  # fmt: skip
    assert slurm(cwd=ROOT, env=env).returncode == code
    assert lines(tmp_path / "asked") == ["scontrol requeue 7"] * requeued


def test_a_slurm_job_without_a_commit_is_an_error(tmp_path):
    env = with_stand_ins(tmp_path, SLURM_JOB_ID="7", PYTHON="")
    done = slurm(cwd=ROOT, env=env)
    assert done.returncode == 2
    assert "run bash slurm.sh outside of any job" in done.stderr


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
    log, script = tmp_path / "job.log", str(LAUNCH / "slurm.sh")
    options = ["--parsable", "--gpus-per-node=0", "--cpus-per-task=1", f"--chdir={ROOT}"]
    printed = cluster.call("sbatch", *options, f"--output={log}", script, env=settings)
    job = int(printed.split(";")[0])

    def about():
        return cluster.job(job), log.read_text() if log.exists() else ""

    def steps():
        rows = read_metrics(workdir / "metrics.jsonl")
        return [row["step"] for row in rows if "train/loss" in row]

    wait_for(lambda: steps() and steps()[-1] >= 5, pause_s=0.2, about=about)
    cluster.call("scontrol", "requeue", str(job))
    wait_for(
        lambda: cluster.job(job)["JobState"] in ("COMPLETED", "FAILED"), pause_s=0.2, about=about
    )
    message = log.read_text()
    assert cluster.job(job)["JobState"] == "COMPLETED", message
    assert cluster.job(job)["Restarts"] == "1"
    saved = int(re.findall(r"stopped and saved at step (\d+)", message)[0])
    assert 5 <= saved < 150
    assert f"resuming from step {saved}" in message
    assert message.count("2 processes, 2 devices (started by slurm)") == 2
    assert steps() == list(range(1, 151))
    assert (workdir / "result.json").exists()


@pytest.mark.slow
def test_a_requeued_job_runs_the_commit_with_which_it_was_submitted(cluster, tmp_path, origin):
    """Two nodes, with a stand-in for python, and without those for SLURM's commands."""
    folder = tmp_path / "stand_ins"
    first = origin.commit("one")
    env = with_stand_ins(folder, REVISION="", PYTHON="", WORKDIR="runs/x", CONFIG="c.py")
    for name in ("srun", "sbatch", "scontrol"):
        (folder / "bin" / name).unlink()
    (folder / "hold").touch()
    own = (
        (folder / "python")
        .read_text()
        .replace("\n", '\ngit rev-parse HEAD >> "$STAND_INS/head"\n', 1)
    )
    write_program(folder / "python", own)
    script = str(origin.clone / "experiments/launch/slurm.sh")
    options = ["--parsable", "--gpus-per-node=0", "--cpus-per-task=1", f"--output={tmp_path}/log"]
    printed = cluster.call("bash", script, *options, env=env, cwd=origin.clone)
    job = int(printed.splitlines()[-1].split(";")[0])

    def about():
        return cluster.job(job), lines(tmp_path / "log")

    wait_for(lambda: len(lines(folder / "ran")) == 2, pause_s=0.2, about=about)
    origin.commit("two")
    cluster.call("scontrol", "requeue", str(job))
    wait_for(lambda: len(lines(folder / "ran")) == 4, pause_s=0.2, about=about)
    (folder / "hold").unlink()
    done = ("COMPLETED", "FAILED")
    wait_for(lambda: cluster.job(job)["JobState"] in done, pause_s=0.2, about=about)
    assert cluster.job(job)["JobState"] == "COMPLETED", about()
    assert lines(folder / "head") == [first] * 4
    run = f"-m vit_jax train --config=c.py --workdir={origin.clone}/runs/x"
    assert {line.strip().partition(" --config.data")[0] for line in lines(folder / "ran")} == {run}
