"""Runs stopped and killed, with real processes and real signals, end as if they were not."""

import json
import random
import signal
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from processes import TIMEOUT_S, finish, start

from vit_jax.run.metrics import read_metrics

# What a clock or the machine decides differs between runs; everything else must not.
CLOCKED = ("time", "train/images_per_second", "train/images_per_second_per_device", "host/rss_mb",
           "train/step_time_s", "train/data_wait_fraction", "train/compile_time_s",
           "checkpoint/blocked_s")  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.


def run_to_end(workdir, digits_dir, *overrides):
    code, out, err = finish(start(workdir, digits_dir, *overrides))
    assert code == 0, err
    return out + err


def wait_for(condition, process):
    """Polls quickly until the condition holds; fails when the process ends before."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.001)


def logged_step(workdir):
    path = workdir / "metrics.jsonl"
    rows = read_metrics(path)
    return rows[-1]["step"] if rows else 0


def metrics(workdir):
    rows = read_metrics(workdir / "metrics.jsonl")
    rows = [{k: v for k, v in row.items() if k not in CLOCKED} for row in rows]
    return [row for row in rows if row.keys() != {"step"}]


def final_arrays(workdir):
    step = workdir / "checkpoints" / "400"
    with ocp.PyTreeCheckpointer() as checkpointer:
        return {n: checkpointer.restore(step / n) for n in ("params", "optimizer", "ema")}


def assert_same_run(workdir, reference):
    assert metrics(workdir) == metrics(reference)
    assert len(metrics(workdir)) == 400 + 3  # A line a step, three evaluations.
    examples, wanted = ((w / "examples-0.jsonl").read_text() for w in (workdir, reference))
    assert examples == wanted
    assert len(examples.splitlines()) == 400
    ours, theirs = final_arrays(workdir), final_arrays(reference)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    result, want = (json.loads((w / "result.json").read_text()) for w in (workdir, reference))
    assert result | {"wall_time_s": 0} == want | {"wall_time_s": 0}


@pytest.fixture(scope="module")
def reference(tmp_path_factory, digits_dir):
    """The run that nobody disturbed."""
    workdir = tmp_path_factory.mktemp("reference") / "run"
    run_to_end(workdir, digits_dir)
    return workdir


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_saves_exits_75_and_goes_on_bit_for_bit(
    number, tmp_path, digits_dir, reference
):
    workdir = tmp_path / "run"
    process = start(workdir, digits_dir)
    wait_for(lambda: logged_step(workdir) >= 33, process)
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == 75
    assert "Traceback" not in err
    saved = max(int(p.name) for p in (workdir / "checkpoints").iterdir() if p.name.isdigit())
    assert f"stopped and saved at step {saved}" in err
    assert saved >= 33
    assert not (workdir / "result.json").exists()
    said = run_to_end(workdir, digits_dir)
    assert f"resuming from step {saved}" in said
    assert_same_run(workdir, reference)


def test_a_killed_run_goes_on_from_its_last_complete_checkpoint(tmp_path, digits_dir, reference):
    workdir = tmp_path / "run"
    moments = random.Random(0)
    for _ in range(2):
        process = start(workdir, digits_dir)
        target = logged_step(workdir) + moments.randint(20, 90)
        wait_for(lambda target=target: logged_step(workdir) >= target, process)
        process.kill()
        assert finish(process)[0] == -signal.SIGKILL
    run_to_end(workdir, digits_dir)
    assert_same_run(workdir, reference)


def test_a_run_killed_in_the_middle_of_a_save_goes_on(tmp_path, digits_dir, reference):
    workdir = tmp_path / "run"
    half_written = []

    def saving():
        half_written[:] = (workdir / "checkpoints").glob("*tmp*")
        return bool(half_written) and logged_step(workdir) > 40

    for _ in range(20):
        process = start(workdir, digits_dir)
        wait_for(saving, process)
        process.kill()
        finish(process)
        left = list((workdir / "checkpoints").glob("*tmp*"))
        if left:  # Otherwise the save was complete before the kill.
            break
    assert left
    complete = [int(p.name) for p in (workdir / "checkpoints").iterdir() if p.name.isdigit()]
    said = run_to_end(workdir, digits_dir)
    assert f"resuming from step {max(complete)}" in said
    assert not list((workdir / "checkpoints").glob("*tmp*"))
    assert_same_run(workdir, reference)


def test_a_finished_run_says_so_and_changes_nothing(digits_dir, reference):
    def content():
        files = (p for p in sorted(reference.rglob("*")) if p.is_file() and p.name != ".lock")
        return {p: p.read_bytes() for p in files}

    before = content()
    said = run_to_end(reference, digits_dir)
    assert "is finished already" in said
    assert content() == before


def test_another_config_on_the_folder_is_refused_and_changes_nothing(digits_dir, reference):
    before = (reference / "config.json").read_bytes()
    code, _, err = finish(start(reference, digits_dir, "--config.optimizer.learning_rate=0.5"))
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert "optimizer.learning_rate: 0.001 there, 0.5 now" in err
    assert (reference / "config.json").read_bytes() == before
