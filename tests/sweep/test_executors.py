"""Executors: shares of devices, real local processes around a stand-in trainer, a fake SLURM."""

import json
import os
import signal
import stat
import sys
import threading
import types

import pytest
import submitit
from sweep_processes import STUB, finish, start, stub_command, wait_for

from vit_jax.__main__ import main
from vit_jax.errors import SweepError
from vit_jax.sweep import Job
from vit_jax.sweep.devices import divide_devices
from vit_jax.sweep.executor import build_executor
from vit_jax.sweep.job_process import JobProcess
from vit_jax.sweep.plan import Plan, PlannedJob
from vit_jax.sweep.sweep_file import Sweep

TINY = str(STUB.parents[1] / "e2e/tiny.py")
TWO = {"tiny": 1, "pretrain": 1}


def test_gpus_are_divided_and_shared_if_there_are_too_few(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    # A single job sees what the launcher sees, although submitit hides it.
    assert divide_devices(1)[0].environment == {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert [s.environment["CUDA_VISIBLE_DEVICES"] for s in divide_devices(2)] == ["4", "5"]
    assert divide_devices(4)[3].environment == {
        "CUDA_VISIBLE_DEVICES": "5",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.45",
    }


def test_tpu_chips_are_divided_evenly(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    monkeypatch.setattr("vit_jax.sweep.devices.tpu_chips", lambda: 8)
    first, second = divide_devices(2)
    assert first.environment["TPU_VISIBLE_CHIPS"] == "0,1,2,3"
    assert second.environment["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "2,2,1"
    assert second.description == "TPU chips 4,5,6,7"
    with pytest.raises(SweepError, match="8 TPU chips for 16 jobs at once"):
        divide_devices(16)


def test_cpu_cores_are_divided(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3, 6})
    assert [(s.cores, s.description) for s in divide_devices(2)] == [
        ((0, 1), "cores 0,1"),
        ((2, 3, 6), "cores 2,3,6"),
    ]
    assert divide_devices(1)[0].cores == ()


@pytest.fixture
def folders(tmp_path):
    (tmp_path / "stub").mkdir()
    return tmp_path / "sweep", tmp_path / "stub"


@pytest.fixture
def launch(folders, monkeypatch, capsys):
    """Returns a function that runs a sweep of stubs in this process."""

    def run(*arguments):
        monkeypatch.setattr(PlannedJob, "command", stub_command)
        monkeypatch.setenv("STUB", str(folders[1]))
        code = main(["sweep", f"--sweep={STUB}", f"--workdir={folders[0]}", *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def runs(stub):
    return {path.stem: len(path.read_text().splitlines()) for path in stub.glob("*.calls")}


def mark(stub, name, kind):
    path = stub / f"{name}.{kind}"
    path.touch()
    return path


def step(workdir, name):
    path = workdir / "jobs" / name / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_local_jobs_use_their_device_share_and_failures_show_their_log(folders, launch):
    workdir, stub = folders
    mark(stub, "pretrain", "fail")
    code, out = launch("--at_once=2")
    assert code == 1, out
    assert (workdir / "jobs/tiny/result.json").exists()
    # On a machine with several cores each of the two jobs has its own.
    cores = len(os.sched_getaffinity(0))
    gpus, own = (stub / "tiny.calls").read_text().split()
    # It sees the GPUs that the launcher sees, although submitit hides them.
    assert gpus == os.environ.get("CUDA_VISIBLE_DEVICES", "None")
    assert int(own) in {max(1, cores // 2), cores - cores // 2}
    assert f"pretrain: exit code 1; end of {workdir}/jobs/pretrain/log.txt:" in out
    shown = [line for line in out.splitlines() if line.startswith("  reason ")]
    assert shown == [f"  reason {n}" for n in range(28, 40)]
    assert "add --retry_failed: 1 finished, 1 failed" in out.splitlines()[-1]


def test_data_that_cannot_be_opened_are_said_once_before_the_first_job(folders, launch, tmp_path):
    sweep = tmp_path / "sweep.py"
    sweep.write_text(
        "from vit_jax.sweep import Job\n"
        "def get_sweep():\n"
        f"    gone = {{'data.source': 'folder', 'data.data_dir': {str(tmp_path / 'gone')!r}}}\n"
        f"    return [Job({TINY!r}, {{**gone, 'seed': s, 'data.augment.flip': s > 0}})"
        " for s in (0, 1)]\n"
    )
    code, out = launch(f"--sweep={sweep}")
    assert code == 2
    (error,) = [line for line in out.splitlines() if line.startswith("error: ")]
    assert error.startswith(
        f"error: the data of job 'seed=0,flip=false' and 1 more: no folder {tmp_path}/gone"
    )
    assert runs(folders[1]) == {}


@pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning")
@pytest.mark.parametrize("own", ["USR2", "USR1"])
def test_a_job_passes_warnings_on_but_leaves_submitit_its_own(tmp_path, monkeypatch, own):
    """The job ends with 75 on SIGTERM, and says whether it ignores submitit's signal."""
    other = {"USR1": signal.SIGUSR2, "USR2": signal.SIGUSR1}[own]
    environment = types.SimpleNamespace(global_rank=0, cluster="local", job_id="1")
    monkeypatch.setattr(submitit, "JobEnvironment", lambda: environment)
    submitit.JobEnvironment.USR_SIG = own
    code = (
        "import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: os._exit(75));"
        f"print(signal.getsignal(signal.SIG{own}) == signal.SIG_IGN, flush=True); time.sleep(60)"
    )
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    received = []
    signal.signal(getattr(signal, f"SIG{own}"), lambda number, frame: received.append(number))

    def warn():
        wait_for(lambda: (tmp_path / "log.txt").exists() and (tmp_path / "log.txt").read_text())
        for number in (getattr(signal, f"SIG{own}"), other):
            signal.pthread_kill(threading.main_thread().ident, number)

    thread = threading.Thread(target=warn)
    thread.start()
    try:
        assert JobProcess(tmp_path, [sys.executable, "-c", code])() == 75
    finally:
        thread.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    assert received == [getattr(signal, f"SIG{own}")]
    assert (tmp_path / "log.txt").read_text() == "True\n"


@pytest.mark.slow
def test_a_second_launcher_is_refused_and_jobs_survive_a_killed_launcher(folders, launch):
    workdir, stub = folders
    held = mark(stub, "tiny", "hold")
    first = start(workdir, STUB, stub=stub)
    wait_for(lambda: step(workdir, "tiny") == 3)
    code, out = launch()
    assert code == 2
    assert f"error: sweep folder {workdir} is in use by another launcher (process" in out
    first.kill()
    first.wait()
    first.stdout.close()  # The surviving job has it open too.
    second = start(workdir, STUB, stub=stub)
    assert second.stdout.readline() == "tiny: started by an earlier launcher\n"
    # The only slot is taken, so nothing else has started.
    assert runs(stub) == {"tiny": 1}
    held.unlink()
    code, out = finish(second)
    assert code == 0, out
    assert runs(stub) == TWO


@pytest.mark.slow
def test_ctrl_c_lets_jobs_save_and_the_next_launch_resumes_them(folders, launch):
    workdir, stub = folders
    held = mark(stub, "tiny", "hold")
    process = start(workdir, STUB, stub=stub)
    wait_for(lambda: step(workdir, "tiny") == 3)
    process.send_signal(signal.SIGINT)
    code, out = finish(process)
    assert code == 75, out
    assert "stopped; run the same command to resume: " in out
    log = (workdir / "jobs/tiny/log.txt").read_text()
    assert log == "begins at step 0\nstopped and saved at step 3\n"
    assert runs(stub) == {"tiny": 1}
    held.unlink()
    code, out = launch()
    assert code == 0, out
    assert (workdir / "jobs/tiny/log.txt").read_text() == log + "begins at step 3\n"
    assert runs(stub) == {**TWO, "tiny": 2}


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """SLURM commands that note how they are called; squeue prints the file `queue`."""
    programs = dict.fromkeys(("srun", "scancel", "scontrol"), "")
    programs |= {"sbatch": "echo Submitted batch job 7", "squeue": f"cat {tmp_path}/queue"}
    (tmp_path / "bin").mkdir()
    (tmp_path / "queue").touch()
    for name, body in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(f'#!/bin/sh\necho "{name} $@" >> {tmp_path}/called\n{body}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return tmp_path


def test_slurm_jobs_are_recognised_by_their_name_in_the_queue(slurm):
    plan = Plan(Sweep("s.py", (Job(TINY, name="a/b"),)), slurm / "w")
    job = plan.jobs["a/b"]
    job.folder.mkdir(parents=True)
    executor = build_executor("slurm", plan.folder, None, {"partition": "gpu", "nodes": 2})
    assert executor.running([job]) == {}
    executor.submit(job)
    called = (slurm / "called").read_text()
    script = next(job.folder.rglob("*.sh")).read_text()
    assert "sbatch" in called
    assert "#SBATCH --partition=gpu" in script
    assert "#SBATCH --nodes=2" in script
    (name,) = [line.split("=")[1] for line in script.splitlines() if "--job-name" in line]
    assert name.endswith("-a.b")
    # Not listed yet, but submitted a moment ago.
    assert executor.running([job]) == {"a/b": "queued"}
    (slurm / "queue").write_text(f"7 RUNNING {name}\n8 RUNNING other\n")
    # Another launcher recognizes it.
    other = build_executor("slurm", plan.folder, None, {})
    assert other.running([job]) == {"a/b": "running"}
    other.stop([job])
    assert "scancel --signal=TERM 7" in (slurm / "called").read_text()
    (slurm / "queue").write_text(f"7 PENDING {name}\n")
    other.stop([job])
    assert (slurm / "called").read_text().splitlines()[-1] == "scancel 7"
    (slurm / "queue").write_text(f"7 CANCELLED {name}\n")
    # Its files may lag behind, unless they say how it ended.
    assert other.running([job]) == {"a/b": "queued"}
    job.result.write_text(json.dumps({}))
    assert other.running([job]) == {}
    assert other.final_state(job) == "CANCELLED"


def test_unknown_slurm_options_are_refused(slurm):
    with pytest.raises(SweepError, match=r"Unknown argument 'partion'.* Valid arguments: .*partit"):
        build_executor("slurm", slurm, None, {"partion": "a"})
