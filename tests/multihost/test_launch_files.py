"""The YAML files of experiments/launch, run and read as their engines do it, without a cloud."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
import yaml
from launch_stand_ins import (
    LAUNCH,
    TIMEOUT_S,
    Origin,
    bash,
    git,
    installed,
    lines,
    with_stand_ins,
    write_program,
)
from many_processes import ROOT, free_port
from many_processes import TIMEOUT_S as RUN_TIMEOUT_S

from vit_jax.config.file import load_config
from vit_jax.run.metrics import read_metrics

SKY = {"tpu.yaml": "tpu", "gpus.yaml": "cuda"}  # file -> its lock
JOBSETS = ["jobset_tpu.yaml", "jobset.yaml"]
TPU_RUN = (
    "-m vit_jax train --config=configs/pretrain.py:imagenet2012,B/16 --workdir=gs://b/runs/b16"
    " --config.data.data_dir=gs://b/data --config.seed=1"
)


def read(name):
    return yaml.safe_load((LAUNCH / name).read_text())


class Node:
    """A machine on which SkyPilot runs a task: a folder with the repository at a commit.

    Args:
        folder: a new folder.
        name: file of the task.
        env: all environment variables, see `with_stand_ins`.
        rank: number of the node, of two.
        port: of the coordinator; None: that of the file.
    """

    def __init__(self, folder, name, env, rank=0, port=None):
        self.folder, self.task = folder, read(name)
        settings = {k: v for k, v in self.task["envs"].items() if v is not None}
        self.env = {
            **settings, "BUCKET": "gs://b", "ARGUMENTS": "--config.seed=1",
            "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2", "SKYPILOT_NUM_NODES": "2",
            "SKYPILOT_NODE_RANK": str(rank), "HOME": str(folder), **env,
        }  # fmt: skip
        if port:
            self.task["run"] = self.task["run"].replace("8476", str(port))

    def clone(self, origin, ref):
        """What SkyPilot does with a commit as `--git-ref`."""
        git("clone", "--quiet", origin.url, self.folder)
        git("-C", self.folder, "checkout", "--quiet", ref)
        return self

    def call(self, block):
        return bash("-c", self.task[block], cwd=self.folder, env=self.env)

    def start(self, out):
        command = ["bash", "-c", self.task["run"]]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.env, stdout=out, stderr=out, text=True,
            start_new_session=True,
        )  # fmt: skip


@pytest.mark.parametrize("name", SKY)
def test_each_node_installs_the_locks_and_runs_one_process(tmp_path, name):
    origin, stand_ins = Origin(tmp_path), tmp_path / "stand_ins"
    commit = origin.commit("one")
    env = with_stand_ins(stand_ins, EXIT_CODE="75")
    for rank in (0, 1):
        node = Node(tmp_path / f"node{rank}", name, env, rank).clone(origin, commit)
        done = node.call("setup")
        assert done.returncode == 0, done.stderr
        done = node.call("run")
        assert done.returncode == 75, done.stderr
    commits, digests = installed(stand_ins)
    assert commits == {commit}
    assert sorted(digests) == sorted(["requirements.lock", f"requirements-{SKY[name]}.lock"])
    ran = [line.strip() for line in lines(stand_ins / "ran")]
    if name == "tpu.yaml":  # The slice's metadata says the rest.
        assert ran == [TPU_RUN] * 2
    else:
        run = TPU_RUN.replace("imagenet2012,B", "imagenet21k,L").replace("b16", "l16")
        assert ran == [f"127.0.0.1:8476 2 {rank} {run}" for rank in (0, 1)]


@pytest.mark.parametrize("name", SKY)
def test_three_recoveries_install_one_commit_and_one_lock(tmp_path, name):
    origin, stand_ins = Origin(tmp_path), tmp_path / "stand_ins"
    commit = origin.commit("one")
    for recovery in range(4):
        node = Node(tmp_path / f"node{recovery}", name, with_stand_ins(stand_ins))
        node.clone(origin, commit)
        assert node.call("setup").returncode == node.call("run").returncode == 0
        origin.commit(f"after {recovery}")  # The branch moves on.
    commits, digests = installed(stand_ins)
    assert commits == {commit}
    assert [len(found) for found in digests.values()] == [1, 1]
    assert len(lines(stand_ins / "ran")) == 4


@pytest.mark.parametrize("name", SKY)
def test_a_branch_or_a_failed_installation_ends_the_setup(tmp_path, name):
    origin, stand_ins = Origin(tmp_path), tmp_path / "stand_ins"
    commit = origin.commit("one")
    branch = git("-C", origin.clone, "branch", "--show-current")
    done = Node(tmp_path / "a", name, with_stand_ins(stand_ins)).clone(origin, branch).call("setup")
    assert done.returncode == 2
    assert f"got the branch {branch}, expected a commit: start this file with" in done.stderr
    assert not lines(stand_ins / "installed")
    failing = with_stand_ins(stand_ins, UV_EXIT_CODE="1")
    assert Node(tmp_path / "b", name, failing).clone(origin, commit).call("setup").returncode == 1


def test_only_stopped_and_lost_processes_are_recovered():
    tpu, gpus = (
        set(read(name)["resources"]["job_recovery"]["recover_on_exit_codes"]) for name in SKY
    )
    assert tpu == {75, 76, 134}
    assert gpus - tpu == {143}


def test_all_files_install_the_same_uv_and_python():
    texts = [p.read_text() for p in LAUNCH.iterdir() if p.suffix in (".sh", ".yaml")]
    for pattern in (r"astral\.sh/uv/([\d.]+)/", r"--python (\d[\d.]+) "):
        found = [re.findall(pattern, text) for text in texts]
        assert len({version for versions in found for version in versions}) == 1
        assert sum(map(bool, found)) >= 3


@pytest.mark.slow
def test_two_processes_train_stop_and_go_on_by_the_commands_of_gpus(tmp_path, digits_dir):
    """On loopback, with the real python; SIGTERM to one of them in the middle."""
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    (bucket / "data").symlink_to(digits_dir)
    short = [
        "--config.train_epochs=none", "--config.train_steps=150", "--config.model.scan=true",
        "--config.logging.interval_steps=1", "--config.evaluation.interval_epochs=none",
    ]  # fmt: skip
    settings = {
        "BUCKET": str(bucket), "CONFIG": "configs/quickstart.py", "ARGUMENTS": " ".join(short),
        "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "HOME": os.environ["HOME"],
    }  # fmt: skip
    workdir = bucket / "runs" / "l16"

    def start(attempt):
        port, started = free_port(), []
        for rank in (0, 1):
            folder = tmp_path / f"{attempt}-{rank}"
            env = with_stand_ins(folder / "stand_ins", **settings)
            real = f'#!/bin/bash\ncd {shlex.quote(str(ROOT))} && exec {sys.executable} "$@"\n'
            write_program(folder / "stand_ins/python", real)
            node = Node(folder, "gpus.yaml", env, rank, port)
            git("init", "--quiet", folder)
            git("-C", folder, "commit", "--quiet", "--allow-empty", "--message=one")
            git("-C", folder, "checkout", "--quiet", "--detach")
            for lock in ("requirements.lock", "requirements-cuda.lock"):
                shutil.copy(ROOT / lock, folder)
            assert node.call("setup").returncode == 0
            with (folder / "log").open("w") as log:
                started.append(node.start(log))
        return started

    def ends(started):
        return [process.wait(RUN_TIMEOUT_S) for process in started]

    def log(attempt):
        return (tmp_path / f"{attempt}-0" / "log").read_text()

    def steps():
        rows = read_metrics(workdir / "metrics.jsonl")
        return [row["step"] for row in rows if "train/loss" in row]

    first = start("first")
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while not (workdir / "metrics.jsonl").exists() or len(steps()) < 5:
        assert time.monotonic() < deadline, log("first")
        time.sleep(0.2)
    os.killpg(first[1].pid, signal.SIGTERM)
    codes = ends(first)
    assert codes[0] == 75, log("first")
    saved = int(re.findall(r"stopped and saved at step (\d+)", log("first"))[0])
    assert ends(start("second")) == [0, 0], log("second")
    assert "2 processes, 2 devices (started by flags)" in log("second")
    assert f"resuming from step {saved}" in log("second")
    assert steps() == list(range(1, 151))


# Runs in SkyPilot's own environment: its protobuf is another one than ours.
_PARSE = """
import json, socket, sys
def refuse(*arguments, **more): raise OSError("the network is off")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
import sky
from sky.utils import yaml_utils
for path in sys.argv[1:]:
    try:
        sky.Task.from_yaml(path)
    except ValueError as error:
        print(json.dumps(str(error)))
    config = yaml_utils.read_yaml(path)
    config["workdir"]["ref"] = "1234567890" * 4
    task = sky.Task.from_yaml_config(config, env_overrides=[("BUCKET", "gs://b")])
    (resources,) = task.resources
    print(json.dumps([task.num_nodes, task.workdir, resources.to_yaml_config()]))
"""


def _python_of_sky():
    program = shutil.which("sky")
    first = Path(program).read_text(encoding="utf-8").splitlines()[0] if program else ""
    return first.removeprefix("#!") if first.startswith("#!") else None


@pytest.mark.slow
@pytest.mark.skipif(_python_of_sky() is None, reason="SkyPilot is not installed")
def test_skypilot_reads_the_files_with_the_network_off(tmp_path):
    done = subprocess.run(
        [_python_of_sky(), "-c", _PARSE, *(str(LAUNCH / name) for name in SKY)],
        cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}, text=True, capture_output=True,
        timeout=TIMEOUT_S * 3,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines() if line[0] in '"[']
    for missing in printed[::2]:
        assert "Environment variable 'BUCKET' is None. Please set a value" in missing
    for name, (nodes, workdir, resources) in zip(SKY, printed[1::2], strict=True):
        assert workdir["ref"] == "1234567890" * 4
        assert resources["use_spot"] is True
        wanted = read(name)["resources"]["job_recovery"]
        assert resources["job_recovery"] == wanted
        assert nodes == {"tpu.yaml": 1, "gpus.yaml": 4}[name]
    tpu = printed[1][2]
    assert tpu["infra"] == "gcp/us-central1"
    assert tpu["accelerators"] == {"tpu-v5litepod-16": 1}
    assert tpu["accelerator_args"]["gcp_queued_resource"] is True


@pytest.mark.parametrize("name", JOBSETS)
def test_the_counts_and_the_command_of_a_jobset_fit(name):
    jobset = read(name)
    (job,) = jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    assert spec["parallelism"] == spec["completions"]
    (container,) = spec["template"]["spec"]["containers"]
    assert re.fullmatch(r"MY_IMAGE@sha256:\w+", container["image"])
    variables = {row["name"]: row["value"] for row in container.get("env", [])}
    if name == "jobset.yaml":
        label = jobset["metadata"]["name"]
        assert variables == {
            "JAX_COORDINATOR_ADDRESS": f"{label}-{job['name']}-0-0.{label}:8476",
            "JAX_NUM_PROCESSES": str(spec["completions"]),
        }
    else:
        columns, rows = map(int, re.findall(r"\d+", "4x4"))
        selector = spec["template"]["spec"]["nodeSelector"]
        assert selector["cloud.google.com/gke-tpu-topology"] == "4x4"
        chips = container["resources"]["limits"]["google.com/tpu"]
        assert spec["completions"] * chips == columns * rows
        assert variables == {}
    program, command, config, workdir, data = container["command"]
    assert (program, command, workdir) == ("vit-jax", "train", "--workdir=gs://MY_BUCKET/runs/b16")
    recipe = config.removeprefix("--config=pretrain")
    load_config(f"{ROOT}/configs/pretrain.py{recipe}", [data.removeprefix("--config.")])
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [1, 2])
    assert jobset["spec"]["failurePolicy"]["rules"][0]["action"] == "FailJobSet"


def _strict(schema):
    """Makes fields that a schema does not know errors; an API server drops them silently."""
    if isinstance(schema, list):
        return [_strict(value) for value in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: _strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("pattern", None)
    if schema.get("type") == "object" and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


@pytest.mark.skipif("JOBSET_SCHEMA" not in os.environ, reason="JOBSET_SCHEMA is not set")
@pytest.mark.parametrize("name", JOBSETS)
def test_the_schema_of_jobset_accepts_the_file(name):
    """JOBSET_SCHEMA is the path of the openAPIV3Schema of v1alpha2 in JobSet's CRD, as JSON."""
    schema = json.loads(Path(os.environ["JOBSET_SCHEMA"]).read_text(encoding="utf-8"))
    schema = _strict(schema)
    schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own
    validator = jsonschema.Draft7Validator(schema)
    jobset = read(name)
    assert [error.message for error in validator.iter_errors(jobset)] == []
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["backoffLimits"] = 0
    assert len(list(validator.iter_errors(jobset))) == 1
