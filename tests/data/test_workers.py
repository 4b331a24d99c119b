"""Reader processes: the same batches, and nothing left behind however the run ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
_FEED = """
import sys, time
import numpy as np
from vit_jax.config.data import AugmentConfig
from vit_jax.data.arrays import labelled_image
from vit_jax.data.loader import BatchSpec, train_batches
from vit_jax.data.sources import TfdsSource
from vit_jax.data.transforms import make_train_transform

if __name__ == "__main__":
    folder, workers, out, then = sys.argv[1:]
    source = TfdsSource("digits", "train", folder)
    spec = BatchSpec(64, range(64), num_threads=1, num_workers=int(workers))
    transform = make_train_transform(8, AugmentConfig())
    preprocessing = labelled_image(transform, 8, 10)
    feed = train_batches(source, preprocessing, spec, seed=3, start_step=5, end_step=1000)
    batches = [next(feed) for _ in range(6)]
    np.savez(out, *[b["image"] for b in batches], *[b["label"] for b in batches])
    print("ready", flush=True)
    if then == "wait":
        time.sleep(600)
    if then == "fail":
        raise RuntimeError("a bug")
    if then == "close":
        feed.close()
"""


def start(folder, workers, out, then):
    return subprocess.Popen(
        [sys.executable, "-c", _FEED, str(folder), str(workers), str(out), then],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def gone(processes, timeout_s=300):
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return not alive


def shared_memory():
    return set(Path("/dev/shm").glob("*"))


def test_the_batches_are_those_of_one_process(digits_dir, tmp_path):
    for workers in (0, 2, 3):
        process = start(digits_dir, workers, tmp_path / f"{workers}.npz", "close")
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
    want = np.load(tmp_path / "0.npz")
    for workers in (2, 3):
        got = np.load(tmp_path / f"{workers}.npz")
        assert got.files == want.files
        for name in want.files:
            np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize("end", ["close", "exit", "fail", "SIGINT", "SIGTERM", "SIGKILL"])
def test_no_process_and_no_shared_memory_is_left(digits_dir, tmp_path, end):
    before = shared_memory()
    is_signal = end.startswith("SIG")
    process = start(digits_dir, 2, tmp_path / "out.npz", "wait" if is_signal else end)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    family = psutil.Process(process.pid).children(recursive=True)
    if is_signal:
        assert len(family) >= 2
        process.send_signal(getattr(signal, end))
    try:
        process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        # Python drops a KeyboardInterrupt that hits it in a finaliser; who waits presses again.
        assert end == "SIGINT"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=500)
    assert gone(family), [p.cmdline() for p in family if p.is_running()]
    deadline = time.monotonic() + 300
    while (left := shared_memory() - before) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left
