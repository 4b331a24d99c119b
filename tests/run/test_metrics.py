import json
import sys
import time
import types

import numpy as np
import pytest

from vit_jax.config.run import LoggingConfig
from vit_jax.errors import ConfigError, RunFolderError
from vit_jax.run.metrics import ExampleLog, MetricsWriter, example_hash, read_metrics
from vit_jax.storage.log_file import read_log
from vit_jax.storage.paths import user_path

PLAIN = LoggingConfig(tensorboard=False)


def writer(folder, config=PLAIN, start_step=0):
    return MetricsWriter(folder, config, start_step=start_step, run_config={"seed": 0})


def write(folder, steps, config=PLAIN, start_step=0, value=1.0):
    with writer(folder, config, start_step) as made:
        for step in steps:
            made.write(step, {"train/loss": value * step})


def tensorboard_scalars(folder) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def test_a_value_that_is_not_finite_is_null_in_the_file_and_nan_when_read(tmp_path):
    write(tmp_path, [1], value=float("inf"))
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["train/loss"] is None
    assert np.isnan(read_metrics(tmp_path / "metrics.jsonl")[0]["train/loss"])


def test_a_line_is_one_json_object_with_step_and_time(tmp_path):
    values = {"train/loss": 0.5, "eval/test/examples": 360}
    before = time.time()
    with writer(tmp_path) as made:
        made.write(5, values)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert before <= row["time"] <= time.time()
    assert row == {"step": 5, "time": row["time"], **values}


@pytest.mark.parametrize("start_step", [0, 1, 4, 9])
def test_resuming_deletes_the_lines_of_later_steps(tmp_path, start_step):
    write(tmp_path, [1, 2, 3, 4])
    write(tmp_path, [10], start_step=start_step)
    steps = [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert steps == [*[step for step in (1, 2, 3, 4) if step <= start_step], 10]
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]  # Without TensorBoard.


@pytest.mark.parametrize(
    "bad",
    ["{}", '{"step": "2"}', '{"step": true}', '{"step": 2, "train/loss": "low"}', '{"step": 2.5}'],
)
def test_a_line_without_a_step_or_with_text_is_damaged(bad, tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{bad}\n{{"step": 3}}\n')
    assert [row["step"] for row in read_metrics(path)] == [1, 3]
    write(tmp_path, [4], start_step=3)
    assert [row["step"] for row in read_metrics(path)] == [1, 3, 4]


def test_tensorboard_holds_the_same_scalars(tmp_path):
    with writer(tmp_path, LoggingConfig()) as made:
        made.write(1, {"train/loss": 0.5, "train/learning_rate": 0.25})
        made.write(2, {"train/loss": 2.0})
    found = tensorboard_scalars(tmp_path)
    assert found["train/loss"] == [(1, 0.5), (2, 2.0)]
    assert found["train/learning_rate"] == [(1, 0.25)]


@pytest.mark.parametrize(("start_step", "kept"), [(2, [1, 2]), (0, [])])
def test_tensorboard_hides_steps_that_are_trained_again(tmp_path, start_step, kept):
    write(tmp_path, [1, 2, 3, 4], LoggingConfig())
    (events,) = (tmp_path / "tensorboard").iterdir()
    events.rename(events.with_name("events.out.tfevents.1.host"))  # Files are read in name order.
    again = range(start_step + 1, 4)
    write(tmp_path, again, LoggingConfig(), start_step=start_step, value=100.0)
    expected = [(s, float(s)) for s in kept] + [(s, 100.0 * s) for s in again]
    assert tensorboard_scalars(tmp_path)["train/loss"] == expected


def test_a_missing_wandb_package_is_a_config_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError) as caught:
        writer(tmp_path, LoggingConfig(wandb_project="vits"))
    assert caught.value.got == "'logging.wandb_project' is 'vits' but wandb is not installed"
    assert "pip install wandb" in caught.value.fix
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def wandb_calls(monkeypatch):
    calls = []

    class Run:
        def log(self, values, step):
            calls.append((step, values))

        def finish(self):
            calls.append("finish")

    def init(**options):
        calls.append(options)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    return calls


def test_wandb_gets_all_values_of_a_folder_in_one_run(tmp_path, wandb_calls):
    config = LoggingConfig(tensorboard=False, wandb_project="vits")
    write(tmp_path, [1], config)
    write(tmp_path, [2], config, start_step=1)
    first, _, _, second, logged, finish = wandb_calls
    expected = {
        "project": "vits", "resume": "allow", "config": {"seed": 0}, "dir": str(tmp_path),
    }  # fmt: skip
    assert first == second
    assert first.items() >= expected.items()
    assert logged == (2, {"train/loss": 2.0})
    assert finish == "finish"


def test_wandb_keeps_its_files_in_the_cache_folder_for_a_run_in_a_bucket(
    gcs, tmp_path, monkeypatch, wandb_calls
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write(user_path(f"{gcs.url}/run"), [1], LoggingConfig(tensorboard=False, wandb_project="vits"))
    assert wandb_calls[0]["dir"] == str(tmp_path / "vit_jax" / "wandb")
    assert (tmp_path / "vit_jax" / "wandb").is_dir()
    assert wandb_calls[0]["id"].startswith("run-")


def test_a_full_disk_is_a_run_folder_error(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunFolderError) as caught:
        write(tmp_path, [1])
    assert caught.value.got == f"cannot write {tmp_path}/metrics.jsonl: No space left on device"
    assert "the last complete checkpoint is kept" in caught.value.fix


def test_a_path_that_cannot_be_written_is_a_run_folder_error(tmp_path):
    with pytest.raises(RunFolderError, match="No such file or directory"):
        writer(tmp_path / "gone")
    (tmp_path / "tensorboard").write_text("")
    with pytest.raises(RunFolderError, match="cannot write"):
        writer(tmp_path, LoggingConfig())
    (tmp_path / "run" / "metrics.jsonl").mkdir(parents=True)
    with pytest.raises(RunFolderError, match="cannot write"):
        writer(tmp_path / "run")


def test_example_hashes_can_be_summed_over_hosts_and_depend_on_the_order():
    indices = np.array([5, 2**33, 0, 5])
    whole = example_hash(range(4), indices)
    for hosts in (2, 4):
        size = 4 // hosts
        parts = [range(h * size, (h + 1) * size) for h in range(hosts)]
        assert sum(example_hash(r, indices[r.start : r.stop]) for r in parts) % 2**64 == whole
    assert example_hash(range(4), indices[[1, 0, 2, 3]]) != whole
    # SplitMix64's published first output from state 0.
    assert example_hash(range(1), np.array([0])) == 0xE220A8397B1DCDAF


def test_each_host_logs_its_examples_to_its_own_file(tmp_path):
    for host, rows in enumerate((range(0, 2), range(2, 4))):
        with ExampleLog(tmp_path, host, rows, start_step=0, kind="all") as made:
            for step in (1, 2, 3):
                made.write(step, np.array([step, 10 * step]) + host)
    with ExampleLog(tmp_path, 1, range(2, 4), start_step=2, kind="all") as made:
        made.write(3, np.array([7, 8]))
    assert read_log(tmp_path / "examples-1.jsonl") == [
        {"step": 1, "rows": [2, 4], "indices": [2, 11]},
        {"step": 2, "rows": [2, 4], "indices": [3, 21]},
        {"step": 3, "rows": [2, 4], "indices": [7, 8]},
    ]
    assert len(read_log(tmp_path / "examples-0.jsonl")) == 3


def test_a_hash_has_sixteen_digits_and_kind_none_writes_no_file(tmp_path):
    with ExampleLog(tmp_path, 0, range(2), start_step=0, kind="hash") as made:
        made.write(1, np.array([3, 4]))
    (row,) = read_log(tmp_path / "examples-0.jsonl")
    assert int(row["hash"], 16) == example_hash(range(2), np.array([3, 4]))
    assert len(row["hash"]) == 16
    with ExampleLog(tmp_path / "no such folder", 0, range(2), start_step=0, kind="none") as made:
        made.write(1, np.array([3, 4]))
    with pytest.raises(RunFolderError, match=r"examples-0.jsonl"):
        ExampleLog(tmp_path / "no such folder", 0, range(2), start_step=0, kind="all")
