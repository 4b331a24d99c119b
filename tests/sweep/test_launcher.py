"""Real launchers, submitit's real processes, and a stand-in for the trainer."""

import json
import os
import signal
from pathlib import Path

import pytest
from sweep_processes import finish, result, start, wait_for

SWEEP = Path(__file__).parent / "stubbed.py"
RATES = ("0.001", "0.02", "0.03")
SEARCH = [f"search/pets/learning_rate={rate}" for rate in RATES]
ALL = ["tiny", "pretrain", *SEARCH, "final/pets/seed0", "final/pets/seed2"]
TWO = {"tiny": 1, "pretrain": 1}


@pytest.fixture
def folders(tmp_path):
    (tmp_path / "stub").mkdir()
    return tmp_path / "sweep", tmp_path / "stub"


def calls(stub, name):
    path = stub / f"{name.replace('/', '.')}.calls"
    return path.read_text().splitlines() if path.exists() else []


def runs(stub):
    return {name: len(calls(stub, name)) for name in ALL}


def mark(stub, name, kind):
    path = stub / f"{name.replace('/', '.')}.{kind}"
    path.touch()
    return path


def step(workdir, name):
    path = workdir / "jobs" / name / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_sweep_runs_in_order_chooses_and_is_not_run_twice(folders):
    workdir, stub = folders
    code, out = finish(start(workdir, SWEEP, "--at_once=2", stub=stub))
    assert code == 0, out
    assert runs(stub) == dict.fromkeys(ALL, 1)
    assert (
        "pets: chose search/pets/learning_rate=0.001 of 3 by eval/dev/accuracy_top1 0.9910" in out
    )
    # Seeds 0 and 2 give 0.5 and 0.7.
    assert "test/accuracy_top1 0.6000 +- 0.1414 (2 seeds)" in out
    assert out.splitlines()[-1] == "finished: 7 finished"
    about = json.loads((workdir / "jobs/final/pets/seed2/job.json").read_text())
    assert about["stage"] == "final"
    assert about["overrides"] == {
        "optimizer.learning_rate": 0.001, "init_from": f"{workdir}/jobs/pretrain",
        "data.train_split": "train", "evaluation.splits": {"test": "test"}, "seed": 2,
    }  # fmt: skip
    scores = [0.991, 0.99, 0.98]
    assert about["selection"] == {
        "metric": "eval/dev/accuracy_top1", "mode": "max", "split": "dev", "chosen": SEARCH[0],
        "score": 0.991, "candidates": [list(pair) for pair in zip(SEARCH, scores, strict=True)],
    }  # fmt: skip
    sweep = json.loads((workdir / "sweep.json").read_text())
    assert {job["name"]: job["state"] for job in sweep["jobs"]} == dict.fromkeys(ALL, "finished")
    # On a machine of several cores each of the two has its own.
    cores = len(os.sched_getaffinity(0))
    (line,) = calls(stub, "tiny")
    # It sees the GPUs that the launcher sees, though submitit would hide them.
    assert line.split()[0] == os.environ.get("CUDA_VISIBLE_DEVICES", "None")
    assert int(line.split()[1]) in {max(1, cores // 2), cores - cores // 2}
    code, out = finish(start(workdir, SWEEP, stub=stub))
    assert code == 0, out
    assert runs(stub) == dict.fromkeys(ALL, 1)


def test_a_failed_job_is_reported_and_retried_when_asked(folders):
    workdir, stub = folders
    failing = mark(stub, SEARCH[1], "fail")
    code, out = finish(start(workdir, SWEEP, stub=stub))
    assert code == 1, out
    assert f"{SEARCH[1]}: exit code 1; {workdir}/jobs/{SEARCH[1]}/log.txt ends" in out
    # The last twelve lines.
    told = [line for line in out.splitlines() if line.startswith("  reason ")]
    assert told == [f"  reason {n}" for n in range(28, 40)]
    assert out.count(f"blocked  waits for failed '{SEARCH[1]}'") == 2
    assert result(workdir, "tiny") is not None
    before = runs(stub)
    assert before == {**dict.fromkeys(ALL, 1), "final/pets/seed0": 0, "final/pets/seed2": 0}
    failing.unlink()
    code, out = finish(start(workdir, SWEEP, stub=stub))
    assert code == 1, out
    assert runs(stub) == before
    code, out = finish(start(workdir, SWEEP, "--retry_failed", stub=stub))
    assert code == 0, out
    assert runs(stub) == {**dict.fromkeys(ALL, 1), SEARCH[1]: 2}


def test_overrides_of_a_wrong_kind_are_one_line_too(tmp_path):
    """In a process of its own: here the types of all calls are checked."""
    sweep = tmp_path / "s.py"
    sweep.write_text("def get_sweep():\n    return [('a.py', ['seed=1'])]\n")
    code, out = finish(start(tmp_path / "sweep", sweep))
    assert code == 2
    told = (
        "error: a job with the overrides ['seed=1']; expected a dict such as {'seed': 1}; give one"
    )
    assert out.splitlines() == [told]


def test_nothing_runs_twice_under_two_launchers_nor_after_one_was_killed(folders):
    workdir, stub = folders
    held = mark(stub, "tiny", "hold")
    first = start(workdir, f"{SWEEP}:two", stub=stub)
    wait_for(lambda: step(workdir, "tiny") == 3)
    code, out = finish(start(workdir, f"{SWEEP}:two", stub=stub))
    assert code == 2
    assert out.startswith(f"error: sweep folder {workdir} is in use by another launcher (process ")
    assert len(out.splitlines()) == 1
    first.kill()
    first.wait()
    first.stdout.close()  # Not read to its end: the job that goes on has it open, too.
    second = start(workdir, f"{SWEEP}:two", stub=stub)
    assert second.stdout.readline() == "tiny: started by an earlier launcher\n"
    # The one place is taken: nothing else has begun, and this not anew.
    assert {name: count for name, count in runs(stub).items() if count} == {"tiny": 1}
    held.unlink()
    code, out = finish(second)
    assert code == 0, out
    assert {name: count for name, count in runs(stub).items() if count} == TWO


def test_a_launcher_that_is_asked_to_stop_lets_jobs_save_and_goes_on(folders):
    workdir, stub = folders
    held = mark(stub, "tiny", "hold")
    process = start(workdir, f"{SWEEP}:two", stub=stub)
    wait_for(lambda: step(workdir, "tiny") == 3)
    process.send_signal(signal.SIGINT)
    code, out = finish(process)
    assert code == 75, out
    assert "stopped; the same command goes on: " in out
    log = (workdir / "jobs/tiny/log.txt").read_text()
    assert log == "begins at step 0\nstopped and saved at step 3\n"
    assert {name: count for name, count in runs(stub).items() if count} == {"tiny": 1}
    held.unlink()
    code, out = finish(start(workdir, f"{SWEEP}:two", stub=stub))
    assert code == 0, out
    assert (workdir / "jobs/tiny/log.txt").read_text() == log + "begins at step 3\n"
    assert {name: count for name, count in runs(stub).items() if count} == {**TWO, "tiny": 2}


def test_the_folder_of_another_sweep_is_left_as_it_is(tmp_path):
    workdir, other = tmp_path / "sweep", tmp_path / "other.py"
    code, out = finish(start(workdir, f"{SWEEP}:two", "--executor=commands"))
    assert code == 0, out
    before = (workdir / "sweep.json").read_bytes()
    jobs = sorted(path.name for path in (workdir / "jobs").iterdir())
    other.write_text(
        "from vit_jax.sweep import Job\n\n\ndef get_sweep():\n"
        f"    yield Job({str(SWEEP.parents[1] / 'e2e/tiny.py')!r}, name='other')\n"
    )
    code, out = finish(start(workdir, other, "--executor=commands"))
    assert code == 2
    told = (
        f"error: sweep folder {workdir} is of {SWEEP}:two, which has no job of {other}; expected"
        " a folder for each sweep; choose another --workdir, or remove this one"
    )
    assert out.splitlines() == [told]
    assert (workdir / "sweep.json").read_bytes() == before
    assert sorted(path.name for path in (workdir / "jobs").iterdir()) == jobs
    # More jobs and the old ones are the same sweep.
    code, out = finish(start(workdir, SWEEP, "--executor=commands"))
    assert code == 0, out
