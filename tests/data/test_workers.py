"""Reader processes give the same batches, and end however the run ends."""

import json
import signal
import time
from pathlib import Path

import psutil
import pytest
from data.files import upload
from image_files import write_folder
from processes import run_command, start_command

# A script, because types are checked in test processes and checked functions cannot be pickled.
_SCRIPT = """
import json, os, signal, sys, time
import numpy as np
from vit_jax.config.data import DataConfig
from vit_jax.data.arrays import labelled_image
from vit_jax.data.loader import BatchSpec, train_batches
from vit_jax.data.sources import open_training_data
from vit_jax.data.transforms import make_train_transform


def open_feed(workers):
    data = DataConfig.from_mapping({**json.loads(sys.argv[1]), "global_batch_size": 64})
    source = open_training_data(data).source
    transform = make_train_transform(8, data)
    preprocessing = labelled_image(transform, 8, len(source.class_names))
    spec = BatchSpec(64, range(64), num_threads=1, num_workers=workers)
    steps = {"seed": 3, "start_step": 5, "end_step": 1000}
    return train_batches(source, lambda step: preprocessing, spec, **steps)


def compare():
    with open_feed(0) as one, open_feed(2) as several:
        for _ in range(6):
            expected, found = next(one), next(several)
            assert found.keys() == expected.keys()
            for name in expected:
                np.testing.assert_array_equal(found[name], expected[name])


def run(end):
    os.setpgid(0, 0)
    feed = open_feed(1)
    for _ in range(3):
        next(feed)
    print("ready", flush=True)
    if end == "fail":
        raise RuntimeError("a bug")
    if end == "close":
        feed.close()
    if end == "group":  # `timeout` and srun send it to all processes.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        for _ in range(40):  # More than are prepared ahead.
            next(feed)
    if end.startswith("SIG"):
        time.sleep(600)


if __name__ == "__main__":
    compare() if sys.argv[2] == "compare" else run(sys.argv[2])
"""


def shared_memory():
    return set(Path("/dev/shm").glob("*"))


@pytest.fixture(scope="module")
def feed(tmp_path_factory):
    """A function (data, end) -> arguments of a command."""
    folder = tmp_path_factory.mktemp("workers")
    (folder / "feed.py").write_text(_SCRIPT)
    photos = {"source": "folder", "name": "photos"}
    photos["data_dir"] = str(write_folder(folder / "photos"))
    return lambda end, **data: (folder / "feed.py", json.dumps(data or photos), end)


@pytest.mark.slow
def test_batches_do_not_depend_on_the_number_of_processes(feed):
    done = run_command(*feed("compare"))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_reader_processes_read_from_a_bucket(feed, gcs, digits_dir, tmp_path):
    url = upload(digits_dir, f"{gcs.url}/datasets")
    data = {"name": "digits", "data_dir": url, "cache_dir": str(tmp_path / "cache")}
    done = run_command(*feed("compare", **data))
    assert done.returncode == 0, done.stderr


# Starting a reader process takes seconds of CPU time, so these runs have only one.
@pytest.mark.parametrize(
    "end",
    [
        "close",
        "SIGTERM",
        "SIGKILL",
        "group",
        "exit",
        "fail",
        "SIGINT",
    ],
)
@pytest.mark.slow
def test_no_process_or_shared_memory_is_left_behind(feed, end):
    before = shared_memory()
    process = start_command(*feed(end))
    run, readers = psutil.Process(process.pid), []
    deadline = time.monotonic() + 100
    while "ready" not in process.printed()[0] and time.monotonic() < deadline:
        readers = run.children(recursive=True) or readers
        time.sleep(0.05)
    assert readers, process.printed()
    if end.startswith("SIG"):
        process.send_signal(getattr(signal, end))
    code = process.wait(timeout=100)
    assert end != "group" or code == 0, process.printed()
    alive = psutil.wait_procs(readers, timeout=100)[1]
    assert not alive, [p.cmdline() for p in alive]
    while (left := shared_memory() - before) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left
