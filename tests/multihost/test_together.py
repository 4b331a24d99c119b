"""Several processes, connected by gloo on loopback, train like one; an error in one ends all."""

import json
import shutil
import signal
import time

import pytest
from e2e.test_damage import flip_a_value
from many_processes import ROOT, Run

from vit_jax.run.environment import read_environments
from vit_jax.run.metrics import read_metrics

pytestmark = pytest.mark.slow

TINY = ROOT / "tests" / "e2e" / "tiny.py"
QUICKSTART = ROOT / "configs" / "quickstart.py"
# Gloo sums over devices in another order than a single process; Adam enlarges the rounding.
RELATIVE = 2e-4
SHORT = ["--config.train_steps=30", "--config.evaluation.interval_steps=15"]
# Without what takes long to compile.
SMALL_QUICKSTART = [
    "--config.train_steps=12", "--config.logging.interval_steps=1", "--config.model.scan=true",
    "--config.evaluation.interval_epochs=none", "--config.evaluation.interval_steps=6",
    "--config.optimizer.schedule.warmup_epochs=none", "--config.optimizer.schedule.warmup_steps=4",
    "--config.checkpoint.interval_epochs=none", "--config.checkpoint.interval_steps=6",
]  # fmt: skip
LONGER = ["--config.train_steps=40", "--config.evaluation.interval_steps=20"]
FEWSHOT = [
    "--config.train_steps=6", "--config.optimizer.schedule.warmup_steps=2",
    "--config.evaluation.splits.test=test", "--config.fewshot.datasets.numbers.name=digits",
    "--config.fewshot.datasets.numbers.crop=resize", "--config.fewshot.shots=(1,5)",
    "--config.fewshot.interval_steps=3", "--config.fewshot.batch_size=50",
    "--config.fewshot.datasets.larger.name=digits",
    "--config.fewshot.datasets.larger.image_size=12",
]  # fmt: skip
NOTED = {"RECORD_STATES": "1"}
# Every parameter is cut over both processes, in two slices.
CUT = [*SHORT, "--config.mesh.data=1", "--config.mesh.fsdp=2", "--config.mesh.slices=2"]
LEARNED = ("train/loss", "train/gradient_norm", "train/parameter_norm", "eval/test/loss")


def figures(workdir):
    """Returns (step, name) -> value of all metrics that do not depend on time."""
    counted = (*LEARNED, "eval/test/examples", "train/learning_rate")
    rows = read_metrics(workdir / "metrics.jsonl")
    return {(row["step"], k): v for row in rows for k, v in row.items() if k in counted}


def assert_same_run(run, one, steps):
    ours, theirs = figures(run.workdir), figures(one.workdir)
    assert ours.keys() == theirs.keys()
    assert len([k for k in ours if k[1] == "train/loss"]) == steps
    for key, value in ours.items():
        assert value == pytest.approx(theirs[key], rel=RELATIVE), key


@pytest.fixture(scope="module")
def one(tmp_path_factory, digits_dir):
    """One process with two devices."""
    folder = tmp_path_factory.mktemp("one")
    return Run(folder, TINY, digits_dir, *SHORT, count=1, devices=2).succeeds()


@pytest.fixture(scope="module")
def two(tmp_path_factory, digits_dir):
    """Two processes with a device each, two slices, every parameter cut over both."""
    folder = tmp_path_factory.mktemp("two")
    return Run(folder, TINY, digits_dir, *CUT, count=2, extra=NOTED).succeeds()


def test_two_processes_train_like_one_process_with_two_devices(two, one):
    assert_same_run(two, one, steps=30)
    assert figures(two.workdir)[15, "eval/test/examples"] == 360
    # Each row of each batch is the same example, augmented in the same way; each host has half.
    assert two.rows() == one.rows()
    assert [len(rows) for rows in two.rows()] == [32] * 30
    # The first process writes and shows, the other one computes.
    env = json.loads((two.workdir / "env.json").read_text())
    assert (env["host_count"], env["device_count"]) == (2, 2)
    assert "2 processes, 2 devices (started by flags)" in two.printed(0, "out")
    assert "finished" in two.printed(0, "out")
    assert not [line for line in two.printed(1, "out").splitlines() if "[Gloo]" not in line]
    rows = read_metrics(two.workdir / "metrics.jsonl")
    assert [row["step"] for row in rows if "checkpoint/blocked_s" in row] == [10, 20, 30]
    assert two.saved()[-1] == 30


def test_one_host_resumes_a_run_of_two_hosts(tmp_path, digits_dir, two):
    """From the checkpoint of step 20, to which each of two processes wrote its half."""
    shutil.copytree(two.workdir, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "30")
    alone = Run(tmp_path, TINY, digits_dir, *SHORT, count=1, extra=NOTED).succeeds()
    assert "resuming from step 20" in alone.printed(0)
    # Parameters, moments and average are bit for bit what the two had on their devices.
    there, here = two.states(0), alone.states(0)
    assert here["restored", 20] == there["saved", 20] == two.states(1)["saved", 20]
    assert there["saved", 20] not in (there["saved", 10], there["saved", 30])
    # It sees the rest of the examples in the same batches, and learns the same from them.
    assert alone.rows() == two.rows()[20:]
    ours, theirs = figures(alone.workdir), figures(two.workdir)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert value == pytest.approx(theirs[key], rel=RELATIVE), key
    first, second = read_environments(alone.workdir)
    assert (first["host_count"], first["device_count"]) == (2, 2)
    assert (second["host_count"], second["device_count"]) == (1, 1)


@pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.
def test_two_processes_go_back_from_a_damaged_checkpoint_together(tmp_path, digits_dir, two):
    """The value that changed is in the half of one process; both compare the whole array."""
    steps = shutil.copytree(two.workdir, tmp_path / "run") / "checkpoints"
    (tmp_path / "run" / "result.json").unlink()
    flip_a_value(steps / "30", "params")
    again = Run(tmp_path, TINY, digits_dir, *CUT, count=2, extra=NOTED).succeeds()
    assert "checkpoints/30 is damaged: array 'params/" in again.printed(0)
    assert "going back to step 20" in again.printed(0)
    assert (steps / "damaged-30").is_dir()
    assert again.states(0)["restored", 20] == two.states(0)["saved", 20]
    assert again.states(0)["saved", 30] == two.states(0)["saved", 30]


def test_processes_that_never_connect_end_with_an_error(tmp_path, digits_dir):
    run = Run(tmp_path, TINY, digits_dir, "--start_timeout_s=20", count=2, expected=4)
    assert run.codes() == [76, 76]
    for process in (0, 1):
        (line,) = run.printed(process).splitlines()
        assert line.startswith("error: not all 4 processes connected to 127.0.0.1:")
        assert "within 20 s; expected the same command on every host" in line


def test_a_process_that_is_late_at_a_save_is_named(tmp_path, digits_dir):
    stuck = {"STUCK_AT_SAVE": "1"}
    run = Run(tmp_path, TINY, digits_dir, *SHORT, count=2, extra=stuck)
    assert run.codes() == [76, 76]
    for process in (0, 1):
        line = run.printed(process).splitlines()[-1]
        assert line.startswith("error: process 1 (")
        assert "did not reach 'save checkpoint 10' within 3 s" in line
        assert "Traceback" not in run.printed(process)


def test_four_processes_train_the_quickstart_like_one_process(tmp_path, digits_dir):
    whole = Run(tmp_path / "1", QUICKSTART, digits_dir, *SMALL_QUICKSTART, count=1).succeeds()
    sharded = [*SMALL_QUICKSTART, "--config.mesh.fsdp=2"]
    run = Run(tmp_path / "4", QUICKSTART, digits_dir, *sharded, count=4).succeeds()
    assert_same_run(run, whole, steps=12)
    assert run.rows() == whole.rows()
    assert [len(rows) for rows in run.rows()] == [128] * 12


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, digits_dir):
    return Run(tmp_path_factory.mktemp("two"), TINY, digits_dir, *LONGER, count=2).succeeds()


def test_a_killed_process_is_named_and_the_same_command_continues(
    tmp_path, digits_dir, undisturbed
):
    run = Run(tmp_path, TINY, digits_dir, *LONGER, "--peer_timeout_s=6", count=2)
    run.wait_for(lambda: run.saved())  # Of step 10; it is written while training continues.
    run.processes[1].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    assert run.codes() == [76, -signal.SIGKILL]
    # Six seconds without a heartbeat; the last one was at most one second old.
    assert 5 < time.monotonic() - killed < 20
    line = run.printed(0).splitlines()[-1]
    assert line.startswith("error: no heartbeat from process 1 (")
    assert "for 6 s; expected all processes to run;" in line
    assert "run the same command again" in line
    assert "Traceback" not in run.printed(0)
    saved = run.saved()[-1]
    assert saved >= 10
    again = Run(tmp_path, TINY, digits_dir, *LONGER, count=2).succeeds()
    assert f"resuming from step {saved}" in again.printed(0)
    assert figures(again.workdir) == figures(undisturbed.workdir)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_one_process_stops_all_at_one_step(number, tmp_path, digits_dir, undisturbed):
    # JAX looks for the signal once a second, in which a tiny model would be trained to its end.
    slow = {"SECONDS_PER_STEP": "0.1"}
    run = Run(tmp_path, TINY, digits_dir, *LONGER, count=2, extra=slow)
    metrics = run.workdir / "metrics.jsonl"
    run.wait_for(lambda: any(row["step"] >= 5 for row in read_metrics(metrics)))
    run.processes[1].send_signal(number)
    assert run.codes() == [75, 75], run.printed(0) + run.printed(1)
    saved = run.saved()[-1]
    assert f"stopped and saved at step {saved}" in run.printed(0)
    assert 5 <= saved < 40
    trained = [len((tmp_path / f"rows{i}.jsonl").read_text().splitlines()) for i in (0, 1)]
    assert trained == [saved, saved]
    again = Run(tmp_path, TINY, digits_dir, *LONGER, count=2).succeeds()
    assert f"resuming from step {saved}" in again.printed(0)
    assert figures(again.workdir) == figures(undisturbed.workdir)


def test_few_shot_evaluation_by_two_processes_finds_what_one_finds(tmp_path, digits_dir):
    results = []
    for count in (1, 2):
        run = Run(
            tmp_path / str(count), TINY, digits_dir, *FEWSHOT, count=count, devices=2 // count
        ).succeeds()
        results.append(json.loads((run.workdir / "result.json").read_text()))
    one, two = results
    names = [name for name in one if name.startswith("fewshot/")]
    assert sum(name.endswith("/accuracy_top1") for name in names) == 2 * 2
    for name in names:
        # Sums over devices are rounded otherwise: an example more or less, of 360.
        slack = 2 / 360 if "accuracy" in name else 0
        assert two[name] == pytest.approx(one[name], abs=slack), name
