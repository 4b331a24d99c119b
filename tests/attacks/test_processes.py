"""Processes that are killed, started twice, cut off from their reader, or on a wrong clock."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from attacks.draws import SEED, Commands, check
from e2e.test_resume import CLOCKED
from image_files import write_folder
from processes import ROOT, UNMIXED, finish, start, start_command
from short_runs import SHORT, content, saved_steps, train

from vit_jax.interop.native import open_native
from vit_jax.run.metrics import read_metrics

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sharding info not provided"),  # One device here.
    # A failed save leaves threads and an event loop of Orbax behind.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
# System calls of a save.
CALLS = ("rename", "fsync", "mkdir", "pwrite64,write", "unlink,rmdir")


def facts(run):
    """Returns metrics and weights without what depends on the clock."""
    rows = read_metrics(run / "metrics.jsonl")
    rows = [{k: v for k, v in row.items() if k not in CLOCKED} for row in rows]
    tensors = open_native(run)[0]
    return [row for row in rows if row.keys() != {"step"}], {
        n: tensors.read(n) for n in tensors.shapes
    }


def assert_same(run, reference):
    (rows, weights), (wanted_rows, wanted) = facts(run), facts(reference)
    assert rows == wanted_rows
    assert weights.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(weights[name], array)


def test_of_two_trainers_of_a_folder_one_trains(slow_draw, finished, digits_dir, tmp_path):
    for i in slow_draw.some(range(50), short=0):
        run = tmp_path / f"{i}"
        both = [start(run, digits_dir, *SHORT, config=UNMIXED) for _ in range(2)]
        ended = sorted((finish(process) for process in both), key=lambda done: done[0])
        assert ended[0][0] == 0, ended
        if ended[1][0] != 0:  # The second may have come when the first had finished.
            assert ended[1][0] == 2, ended
            (line,) = [e for e in ended[1][2].splitlines() if e.startswith("error: ")]
            assert "another process" in line or "is locked" in line or "in use" in line, line
        assert_same(run, finished)
        shutil.rmtree(run)


def test_a_clock_that_goes_backwards_changes_nothing(
    slow_draw, finished, digits_dir, tmp_path, monkeypatch, capfd, caplog
):
    """It is set back by a day. Set forward, it would end Orbax's own time limits."""
    run, real, calls = tmp_path / "run", time.time, itertools.count()
    first = slow_draw.random.randrange(20, 200)
    slow_draw.some([0], short=0)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() - 86_400 * (next(calls) > first))
        assert train(run, digits_dir) == 0
        command = Commands(capfd, caplog)
        check(command("report", run), "report", codes=(0,))
        check(command("checkpoint", "verify", run), "verify", codes=(0,))
        (run / "result.json").unlink()
        shutil.rmtree(run / "checkpoints" / "30")
        assert train(run, digits_dir) == 0
    assert_same(run, finished)


def test_a_reader_that_leaves_after_some_lines(slow_draw, finished, digits_dir, tmp_path):
    """`train` goes on to its end; other commands end with 141."""
    commands = {
        "models": ["models"],
        "config": ["config"],
        "inspect": ["checkpoint", "inspect", finished],
        "train": ["train", f"--config={UNMIXED}", f"--config.data.data_dir={digits_dir}", *SHORT],
    }
    attacks = [(name, lines) for name in commands for lines in (0, 1, 2, 5, 9)]
    for name, lines in slow_draw.some(attacks, short=0):
        run = tmp_path / f"{name}-{lines}"
        arguments = commands[name] + ([f"--workdir={run}"] if name == "train" else [])
        read, write = os.pipe()
        with os.fdopen(write, "wb") as writer:
            process = start_command("-m", "vit_jax", *arguments, stdout=writer)
        with os.fdopen(read, "rb", buffering=0) as reader:
            seen = b""
            while seen.count(b"\n") < lines and (piece := reader.read(1)):
                seen += piece
        code = process.wait(300)
        assert code in ((0,) if name == "train" else (0, 128 + signal.SIGPIPE)), (name, lines, code)
        assert "Traceback" not in os.pread(process._files[1].fileno(), 1 << 20, 0).decode()
        if name == "train":
            assert_same(run, finished)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_signal_at_a_system_call_of_a_save(slow_draw, finished, digits_dir, tmp_path):
    """The run is killed, or told to stop, at the n-th call of a kind; then it is continued."""
    attacks = [
        (call, number, slow_draw.random.randrange(1, 40))
        for call in CALLS
        for number in ("SIGKILL", "SIGTERM")
        for _ in range(3)
    ]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    for i, (call, number, when) in enumerate(slow_draw.some(attacks, short=0)):
        run, about = tmp_path / f"{i}", f"ATTACK_SEED={SEED}: {number} at call {when} of {call}"
        command = [
            "strace", "-f", "-qq", "-o", "/dev/null", "-P", str(run / "checkpoints"),
            "-e", f"trace={call}", "-e", f"inject={call}:signal={number}:when={when}",
            sys.executable, "-m", "vit_jax", "train", f"--config={UNMIXED}", f"--workdir={run}",
            f"--config.data.data_dir={digits_dir}", *SHORT,
        ]  # fmt: skip
        command = [word for word in command if word not in ("-P", str(run / "checkpoints"))]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode in (0, 75, -9, 137, 143, -15, 128 + 9), (about, done.stderr[-2000:])
        assert "Traceback" not in done.stderr, about
        for _ in range(3):  # A second signal may have come while it stopped.
            code, _, err = finish(start(run, digits_dir, *SHORT, config=UNMIXED))
            if code != 75:
                break
        assert code == 0, (about, err[-2000:])
        assert json.loads((run / "result.json").read_text())["step"] == 30
        assert saved_steps(run)[-1] == 30
        shutil.rmtree(run)


@pytest.fixture
def disk(tmp_path):
    """A function that gives the tmpfs at `tmp_path` a size in kB."""
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]).returncode
    ):
        pytest.skip("a tmpfs can only be mounted by root")

    def resize(kilobytes):
        subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(tmp_path)], check=True)

    yield resize
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_disk_of_growing_size(
    slow_draw, finished, digits_dir, disk, tmp_path, tmp_path_factory, capfd, caplog
):
    """On a full disk every command ends with one line, and leaves nothing half written."""
    command = Commands(capfd, caplog)
    photos = write_folder(tmp_path_factory.mktemp("photos"), size=(64, 64))
    data = ("--dataset=digits", f"--data_dir={digits_dir}")
    commands = {
        "npz": ["convert", finished, tmp_path / "w.npz", "--format=vision_transformer"],
        "orbax": ["convert", finished, tmp_path / "orbax", "--format=orbax"],
        "report": ["report", finished, f"--output={tmp_path / 'report'}"],
        "analyze": ["analyze", finished, *data, "--num_images=4", f"--output={tmp_path / 'in'}"],
        "fewshot": ["fewshot", finished, *data, "--shots=1", f"--workdir={tmp_path / 'shots'}"],
        "prepare": ["data", "prepare", photos, "--name=photos", f"--data_dir={tmp_path / 'data'}"],
        "train": [
            "train", f"--config={UNMIXED}", f"--workdir={tmp_path / 'run'}",
            f"--config.data.data_dir={digits_dir}", *SHORT,
        ],
    }  # fmt: skip
    failed = set()
    for kilobytes in slow_draw.some([8, 32, 64, 128, 256, 512, 1024, 4096, 16384], short=0):
        for name, arguments in commands.items():
            disk(kilobytes)
            before = content(tmp_path)
            outcome = command(*arguments)
            check(outcome, f"{name} with {kilobytes} kB")
            if outcome.code == 2:
                failed.add(name)
                if name in ("npz", "orbax"):
                    assert content(tmp_path) == before, (name, kilobytes)
                # What was left behind does not hinder the same command once there is room.
                disk(65536)
                again = command(*arguments)
                check(again, f"{name} again after {kilobytes} kB", codes=(0,))
            for path in tmp_path.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert failed == commands.keys()


def test_an_evaluation_on_a_full_disk(
    slow_draw, finished, digits_dir, disk, tmp_path, capfd, caplog
):
    """It prints its figures or ends with one line, and the run stays as it was."""
    command = Commands(capfd, caplog)
    run = shutil.copytree(finished, tmp_path / "run")
    wanted = content(run)
    usage = os.statvfs(tmp_path)
    used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize // 1024
    for more in slow_draw.some([4, 8, 32], short=0):
        disk(used + more)
        outcome = command("eval", f"--workdir={run}", f"--config.data.data_dir={digits_dir}")
        check(outcome, f"eval with {more} kB")
        kept = {name: value for name, value in content(run).items() if name in wanted}
        assert {k: v for k, v in kept.items() if "report/" not in str(k)} == {
            k: v for k, v in wanted.items() if "report/" not in str(k)
        }


def test_data_that_was_replaced_between_two_runs(draw, run, digits_dir, tmp_path, capfd, caplog):
    """A resumed run compares the fingerprint of its data and refuses other examples."""
    draw.some([0], short=1)
    command, data = Commands(capfd, caplog), shutil.copytree(digits_dir, tmp_path / "data")
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "30")
    (info,) = data.glob("digits/*/dataset_info.json")
    described = json.loads(info.read_text())
    for split in described["splits"]:
        split["shardLengths"] = [str(int(n) - 10) for n in split["shardLengths"]]
    info.write_text(json.dumps(described))
    before = content(run)
    outcome = command(
        "train", f"--config={UNMIXED}", f"--workdir={run}", f"--config.data.data_dir={data}", *SHORT
    )
    check(outcome, "ten examples fewer", codes=(2,))
    assert content(run / "checkpoints") == {
        name.removeprefix("checkpoints/"): data
        for name, data in before.items()
        if name.startswith("checkpoints/")
    }
