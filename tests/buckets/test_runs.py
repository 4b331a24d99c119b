"""Training runs whose folder is in a bucket, hurt in many ways, end like an undisturbed local run.

A run is killed with SIGKILL, loses its bucket for a while, or meets another process that wants the
same folder. In the end parameters, optimizer, averages and metrics are equal bit for bit.
"""

import json
import random
import signal
import time

import pytest
from e2e.test_resume import LENGTH, assert_same_run, wait_for
from many_processes import Run
from processes import TINY, finish, start

from vit_jax.storage.lock import STALE_S
from vit_jax.storage.log_file import LogFile, segments
from vit_jax.storage.paths import is_bucket, user_path

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.
FINAL_STEPS = ["50", "60"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory, digits_dir):
    """The local folder of an undisturbed run."""
    workdir = tmp_path_factory.mktemp("reference") / "run"
    complete(workdir, digits_dir)
    return workdir


@pytest.fixture
def workdir(gcs):
    return user_path(f"{gcs.url}/runs/tiny")


def begin(workdir, digits_dir, *overrides):
    return start(workdir, digits_dir, *LENGTH, *overrides)


def complete(workdir, digits_dir):
    """Runs to the end."""
    code, _, err = finish(begin(workdir, digits_dir))
    assert code == 0, err


def refused(workdir, digits_dir, process=None):
    """Returns the line with which a command, by default `begin`, is refused."""
    code, _, err = finish(process or begin(workdir, digits_dir))
    assert code == 2, err
    return only_error(err)


def copied(workdir, folder):
    """Copies a run folder from a bucket to the local disk, segments of logs as one file."""
    for path, _ in workdir.find():
        target = folder / path.relative_to(workdir)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.download(target)
    assert segments(folder / "metrics.jsonl")
    for name in ("metrics.jsonl", "examples-0.jsonl", "examples-1.jsonl"):
        if segments(folder / name):
            LogFile(folder / name).close()
    return folder


def check_same(workdir, reference, tmp_path):
    assert is_bucket(workdir)
    here = copied(workdir, tmp_path / "copied")
    assert_same_run(here, reference)
    assert sorted(path.name for path in (here / "checkpoints").iterdir()) == FINAL_STEPS


def kill(process):
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL


def wait_for_save(gcs, process):
    """Waits until something of the first checkpoint was written."""
    wait_for(
        lambda: any("/checkpoints/10" in count["object"] for count in gcs.server.counts()), process
    )


@pytest.mark.slow
def test_a_run_that_is_killed_ten_times_at_random_moments(
    workdir, gcs, digits_dir, reference, tmp_path
):
    """The moments are numbers of writes to the bucket: before, between and in the saves."""
    draw = random.Random(0)
    for _ in range(10):
        gcs.server.clear()
        process, writes = begin(workdir, digits_dir), draw.randint(1, 60)
        wait_for(lambda: gcs.server.requests("write") >= writes, process)  # noqa: B023
        kill(process)
    complete(workdir, digits_dir)
    check_same(workdir, reference, tmp_path)


@pytest.mark.slow
def test_a_run_on_a_bad_connection(workdir, gcs, digits_dir, reference, tmp_path):
    gcs.server.faults(
        seed=1, latency_s=0.002, throttled=0.02, cut=0.02, answer_lost=0.02, burst=(2, 200)
    )
    complete(workdir, digits_dir)
    assert gcs.server.requests(what="faults") >= 8
    gcs.server.faults()
    check_same(workdir, reference, tmp_path)


def only_error(err):
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in err
    return line


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["read_only", "expired"])
def test_a_bucket_that_refuses_a_run_ends_it_with_one_line(
    harm, workdir, gcs, digits_dir, reference, tmp_path
):
    process = begin(workdir, digits_dir)
    wait_for_save(gcs, process)
    gcs.server.faults(**{harm: True})
    assert str(workdir) in refused(workdir, digits_dir, process)
    gcs.server.faults()
    complete(workdir, digits_dir)
    check_same(workdir, reference, tmp_path)


@pytest.mark.slow
def test_an_object_that_was_deleted_below_a_run_is_named(workdir, digits_dir):
    complete(workdir, digits_dir)
    (workdir / "result.json").unlink()
    (workdir / "checkpoints" / "60" / "params" / "_METADATA").unlink()
    assert f"{workdir}/checkpoints/60" in refused(workdir, digits_dir)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused_and_the_run_continues_without_it(
    workdir, digits_dir, reference, tmp_path
):
    complete(workdir, digits_dir)
    (workdir / "result.json").unlink()
    latest = workdir / "checkpoints" / FINAL_STEPS[-1]
    objects = [path for path, _ in latest.find() if "d" in path.parts[len(latest.parts) :]]
    assert objects
    for path in objects:
        content = bytearray(path.read_bytes())
        for at in range(0, len(content), max(1, len(content) // 6)):
            content[at] ^= 0xFF
        path.write_bytes(bytes(content))
    error = refused(workdir, digits_dir)
    assert f"checkpoint {latest} is damaged" in error
    assert f"copy it elsewhere, delete {latest}, and run the same command again" in error
    latest.remove_tree()
    complete(workdir, digits_dir)
    check_same(workdir, reference, tmp_path)


@pytest.mark.slow
def test_a_second_process_is_refused_and_told_who_runs(workdir, gcs, digits_dir):
    process = begin(workdir, digits_dir, "--config.train_steps=100000")
    wait_for_save(gcs, process)
    assert f"by process {process.pid} on host" in refused(workdir, digits_dir)
    kill(process)


@pytest.mark.slow
def test_a_run_that_cannot_renew_its_lease_ends_before_others_may_take_it(workdir, gcs, digits_dir):
    process = begin(workdir, digits_dir, "--config.train_steps=100000")
    wait_for_save(gcs, process)
    gcs.server.faults(burst=(1, 1), only="write .*lock-")
    cut_off = time.monotonic()
    code, _, err = finish(process)
    assert 30 < time.monotonic() - cut_off < STALE_S
    assert code not in (0, -signal.SIGKILL)
    assert f"this run has lost its folder: the lease of {workdir}" in only_error(err)
    gcs.server.faults()
    process = begin(workdir, digits_dir, "--config.train_steps=100000")
    gcs.server.clear()
    wait_for(lambda: gcs.server.requests("write") > 60, process)
    kill(process)


@pytest.mark.slow
def test_a_run_moves_between_hosts_that_mount_a_bucket(mount_bucket, digits_dir):
    here, there = mount_bucket() / "run", mount_bucket() / "run"
    process = begin(here, digits_dir)
    wait_for(lambda: (there / "checkpoints" / "10" / "commit_success.txt").exists(), process)
    assert f"by process {process.pid} on host" in refused(there, digits_dir)
    kill(process)
    complete(there, digits_dir)
    assert json.loads((here / "result.json").read_text())


@pytest.mark.slow
def test_two_processes_that_share_only_a_bucket_are_killed_five_times(gcs, digits_dir, tmp_path):
    """One process at a time is killed; the other one ends, and the same command continues."""
    workdir, draw = user_path(f"{gcs.url}/runs/two"), random.Random(1)
    options = {"count": 2, "devices": 1}
    undisturbed = Run(tmp_path / "undisturbed", TINY, digits_dir, *LENGTH, **options)
    assert undisturbed.codes() == [0, 0], undisturbed.printed(0)
    for attempt in range(5):
        gcs.server.clear()
        overrides = [*LENGTH, "--peer_timeout_s=15"]
        run = Run(tmp_path / f"{attempt}", TINY, digits_dir, *overrides, workdir=workdir, **options)
        writes = draw.randint(1, 60)
        run.wait_for(lambda: gcs.server.requests("write") >= writes)  # noqa: B023
        run.processes[draw.randrange(2)].kill()
        codes = sorted(run.codes())
        # JAX aborts a process that loses process 0 while both connect.
        assert codes[0] == -signal.SIGKILL
        assert codes[1] in (76, -signal.SIGABRT)
    run = Run(tmp_path / "last", TINY, digits_dir, *LENGTH, workdir=workdir, **options)
    assert run.codes() == [0, 0], run.printed(0) + run.printed(1)
    check_same(workdir, undisturbed.workdir, tmp_path)
