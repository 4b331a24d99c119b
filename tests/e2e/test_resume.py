"""Stopped and killed runs end bit for bit like an uninterrupted one."""

import json
import random
import re
import signal

import jax
import numpy as np
import pytest
from processes import TINY, finish, one_line, start, wait_for
from short_runs import content, read_item, saved_steps, train

from vit_jax.__main__ import main
from vit_jax.run.metrics import read_metrics
from vit_jax.run.time_account import PARTS

STEPS = 60
LENGTH = [f"--config.train_steps={STEPS}", "--config.evaluation.interval_steps=25"]
# Figures that depend on the clock or the machine. All others must be equal.
CLOCKED = ("time", "train/images_per_second", "train/images_per_second_per_device", "host/rss_mb",
           "train/step_time_s", "train/data_wait_fraction", "train/compile_time_s",
           "checkpoint/blocked_s", *(f"seconds/{part}" for part in PARTS))  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.


def run_here(workdir, digits_dir, *overrides):
    data = f"--config.data.data_dir={digits_dir}"
    return main(["train", f"--config={TINY}", f"--workdir={workdir}", data, *LENGTH, *overrides])


def logged_step(workdir):
    path = workdir / "metrics.jsonl"
    rows = read_metrics(path)
    return rows[-1]["step"] if rows else 0


def metrics(workdir):
    rows = read_metrics(workdir / "metrics.jsonl")
    rows = [{k: v for k, v in row.items() if k not in CLOCKED} for row in rows]
    return [row for row in rows if row.keys() != {"step"}]


def assert_same_run(workdir, reference):
    assert metrics(workdir) == metrics(reference)
    assert len(metrics(workdir)) == STEPS + 3  # One line per step, three evaluations.
    examples, wanted = ((w / "examples-0.jsonl").read_text() for w in (workdir, reference))
    assert examples == wanted
    assert len(examples.splitlines()) == STEPS
    last = [w / "checkpoints" / str(STEPS) for w in (workdir, reference)]
    for item in ("params", "optimizer", "ema"):
        ours, theirs = (read_item(folder / item) for folder in last)
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    result, want = (json.loads((w / "result.json").read_text()) for w in (workdir, reference))
    assert result | {"wall_time_s": 0, "seconds": 0} == want | {"wall_time_s": 0, "seconds": 0}


@pytest.fixture(scope="module")
def reference(tmp_path_factory, digits_dir):
    """The folder of an uninterrupted run."""
    workdir = tmp_path_factory.mktemp("reference") / "run"
    assert run_here(workdir, digits_dir) == 0
    return workdir


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_process_saves_exits_75_and_resumes(
    number, tmp_path, digits_dir, reference, caplog
):
    workdir = tmp_path / "run"
    process = start(workdir, digits_dir, *LENGTH)
    wait_for(lambda: logged_step(workdir) >= 17, process)
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == 75
    assert "Traceback" not in err
    saved = max(saved_steps(workdir))
    assert f"stopped and saved at step {saved}" in err
    assert saved >= 17
    assert not (workdir / "result.json").exists()
    with caplog.at_level("INFO", logger="vit_jax"):
        assert run_here(workdir, digits_dir) == 0
    assert f"resuming from step {saved}" in caplog.text
    assert_same_run(workdir, reference)


@pytest.mark.slow
def test_a_run_killed_at_any_moment_resumes_from_its_last_complete_checkpoint(
    tmp_path, digits_dir, reference, caplog
):
    """It is killed at a random step first, and then while a checkpoint is half written."""
    workdir = tmp_path / "run"
    process = start(workdir, digits_dir, *LENGTH)
    wait_for(lambda: logged_step(workdir) >= random.Random(0).randint(10, 30), process)
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL
    half_written = []

    def saving():
        half_written[:] = (workdir / "checkpoints").glob("*tmp*")
        return bool(half_written) and logged_step(workdir) > 35

    for _ in range(20):
        process = start(workdir, digits_dir, *LENGTH)
        wait_for(saving, process)
        process.kill()
        finish(process)
        left = list((workdir / "checkpoints").glob("*tmp*"))
        if left:  # Otherwise the save was complete before the kill.
            break
    assert left
    complete = saved_steps(workdir)
    with caplog.at_level("INFO", logger="vit_jax"):
        assert run_here(workdir, digits_dir) == 0
    assert f"resuming from step {max(complete)}" in caplog.text
    assert not list((workdir / "checkpoints").glob("*tmp*"))
    assert_same_run(workdir, reference)


def without_lock(run):
    return {path: data for path, data in content(run).items() if path != ".lock"}


def test_a_finished_run_says_so_and_changes_nothing(digits_dir, run, caplog):
    before = without_lock(run)
    with caplog.at_level("INFO", logger="vit_jax"):
        assert train(run, digits_dir) == 0
    assert "is already finished" in caplog.text
    assert without_lock(run) == before


def test_another_config_on_the_folder_is_refused_and_changes_nothing(digits_dir, run, capfd):
    before = without_lock(run)
    assert train(run, digits_dir, "--config.optimizer.learning_rate=0.5") == 2
    assert re.search(r"optimizer.learning_rate: [\d.]+ there, 0.5 now", one_line(capfd))
    assert without_lock(run) == before


@pytest.mark.slow
def test_two_deterministic_runs_are_bit_exact(tmp_path, digits_dir):
    """On a GPU this is what the option is for."""
    options = ["--deterministic", "--config.train_steps=20", "--config.model.dtype=bfloat16"]
    found = []
    for workdir in (tmp_path / "one", tmp_path / "two"):
        code, _, err = finish(start(workdir, digits_dir, *options))
        assert code == 0, err
        environment = json.loads((workdir / "env.json").read_text())
        assert "--xla_gpu_deterministic_ops=true" in environment["xla_flags"]
        found.append(metrics(workdir))
    assert len(found[0]) > 20
    assert found[0] == found[1]
