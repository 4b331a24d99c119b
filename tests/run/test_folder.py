import errno
import json
import os

import pytest
from small_config import small_mapping

from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, RunFolderError
from vit_jax.run.environment import git_revision
from vit_jax.run.folder import RunFolder, read_config


def config(**changes) -> Config:
    return Config.from_mapping(small_mapping(**changes))


def contents(folder) -> dict[str, bytes | None]:
    """Every file and its bytes, but for the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.name != ".lock"
    }


@pytest.fixture
def begun(tmp_path):
    """A run folder with a run in it that has saved something."""
    with RunFolder(tmp_path / "run", config()) as folder:
        folder.write_config()
        (folder.path / "checkpoints" / "1").mkdir(parents=True)
        (folder.path / "metrics.jsonl").write_text('{"step": 1}\n')
    return tmp_path / "run"


def test_config_and_environment_are_written_in_a_new_folder(tmp_path):
    path = tmp_path / "a" / "b"
    with RunFolder(path, config(seed=7)) as folder:
        folder.write_config()
        assert folder.result is None
    assert read_config(path) == config(seed=7)
    env = json.loads((path / "env.json").read_text())
    assert (env["device_count"], env["host_count"], env["platform"]) == (1, 1, "cpu")
    assert env["python"].startswith("3.")
    assert set(env["packages"]) >= {"jax", "flax", "optax", "orbax-checkpoint", "grain", "numpy"}
    revision = git_revision()
    assert env["git_revision"] == revision
    assert revision is None or len(revision.removesuffix("-dirty")) == 40


def test_a_run_that_is_refused_before_its_first_write_leaves_no_folder(tmp_path):
    run = tmp_path / "run"

    def start(*writes):
        with RunFolder(run, config()) as folder:
            (folder.path / "checkpoints").mkdir()
            for name in writes:
                (folder.path / name).write_text("{}")
            raise ConfigError("a", "b", "c")

    with pytest.raises(ConfigError):
        start()
    assert not run.exists()
    with pytest.raises(ConfigError):
        start("config.json", "checkpoints/7")
    assert contents(run) == {"config.json": b"{}", "checkpoints": None, "checkpoints/7": b"{}"}


def test_a_folder_with_other_files_is_used_and_not_removed(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError), RunFolder(tmp_path, config()):
        raise ConfigError("a", "b", "c")
    assert contents(tmp_path) == {"notes.txt": b"mine"}


def test_a_folder_in_use_is_refused(tmp_path):
    with RunFolder(tmp_path, config()):
        with pytest.raises(RunFolderError) as caught:
            RunFolder(tmp_path, config())
        assert caught.value.got == f"run folder {tmp_path} is in use by another process"
    with RunFolder(tmp_path, config()):
        pass


def test_a_folder_that_is_refused_is_not_locked(begun):
    with pytest.raises(RunFolderError, match="another config") as caught:
        RunFolder(begun, config(seed=1))
    with RunFolder(begun, config()):  # While the error is still alive.
        assert caught.value is not None


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"seed": 1}, "seed: 0 there, 1 now"),
        ({"optimizer__learning_rate": 0.01}, "optimizer.learning_rate: 0.001 there, 0.01 now"),
        ({"train_epochs": 3.0}, "train_steps: 100 there, None now; train_epochs: None there, 3.0"),
        ({"data__augment__flip": True}, "data.augment.flip: None there, Flip() now"),
    ],
)
def test_a_folder_of_another_config_is_refused_and_not_changed(begun, change, shown):
    before = contents(begun)
    with pytest.raises(RunFolderError) as caught:
        RunFolder(begun, config(**change))
    assert f"holds a run of another config ({shown}" in caught.value.got
    assert contents(begun) == before


def test_a_run_that_has_saved_nothing_is_replaced_by_one_of_another_config(begun, caplog):
    (begun / "checkpoints" / "1").rmdir()
    with RunFolder(begun, config(seed=1)) as folder:
        folder.write_config()
    assert "ended before its first save; this one replaces it" in caplog.text
    with RunFolder(begun, config(seed=1)):
        assert "ended before its first save; it starts again" in caplog.text
    assert read_config(begun).seed == 1


@pytest.mark.parametrize(
    "change",
    [
        {"mesh__data": 1},
        {"mesh__fsdp": 4, "mesh__rules": [["head/.*", ["data"]]], "mesh__slices": 2},
        {"logging__interval_steps": 3, "logging__tensorboard": False},
        {"data__data_dir": "/elsewhere"},
        {"data__num_threads": 0},
        {"checkpoint__interval_steps": 5, "checkpoint__keep_last": 2},
        {"model__scan": False, "model__remat": "full", "model__attention_implementation": "xla"},
        {"accumulation_steps": 2},  # "auto" before.
        {},
    ],
)
def test_keys_that_do_not_affect_the_result_may_differ(begun, change):
    with RunFolder(begun, config(**change)) as folder:
        folder.write_config()
    assert read_config(begun) == config(**change)


def test_a_number_of_microbatches_is_not_changed_to_another(tmp_path):
    with RunFolder(tmp_path, config(accumulation_steps=1)) as folder:
        folder.write_config()
        (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    with RunFolder(tmp_path, config()):
        pass
    with pytest.raises(RunFolderError, match="accumulation_steps: 1 there, 2 now"):
        RunFolder(tmp_path, config(accumulation_steps=2))


@pytest.mark.parametrize("trace", ["result.json", "metrics.jsonl", "checkpoints"])
def test_results_without_a_config_are_refused(tmp_path, trace):
    (tmp_path / trace).mkdir() if trace == "checkpoints" else (tmp_path / trace).write_text("{}")
    before = contents(tmp_path)
    with pytest.raises(RunFolderError) as caught:
        RunFolder(tmp_path, config())
    assert caught.value.got == f"{tmp_path} has {trace} but no config.json"
    assert contents(tmp_path) == before


def test_a_full_disk_is_a_run_folder_error_and_leaves_the_old_file(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    result = {"eval/test/accuracy_top1": 0.5, "step": 1}
    with RunFolder(tmp_path, config()) as folder:
        folder.write_json("result.json", result)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(RunFolderError, match="No space left on device"):
            folder.write_json("result.json", {"step": 2})
        assert folder.result == result


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(RunFolderError) as caught:
        read_config(tmp_path)
    assert caught.value.got == f"no run in {tmp_path}"


@pytest.mark.parametrize("text", ["{", "[]", '{"modle": {}}'])
def test_a_config_json_that_cannot_be_read_is_a_config_error(begun, text):
    (begun / "config.json").write_text(text)
    with pytest.raises(ConfigError):
        read_config(begun)
    with pytest.raises(ConfigError):
        RunFolder(begun, config())


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("file", "file"),
        ("file", "file/deeper/still"),
        ("report", ""),
        ("checkpoints", ""),
        ("tensorboard", ""),
    ],
)
def test_a_file_in_place_of_a_folder_of_the_run_is_found_before_training(tmp_path, name, run):
    """A file named `report` was a traceback after the training."""
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunFolderError) as caught:
        RunFolder(tmp_path / run, config())
    assert caught.value.got == f"{tmp_path / name} is a file"
    assert contents(tmp_path) == {name: b"mine"}


@pytest.mark.parametrize("content", ["{}", "[]", "[1]", "3", "", "null", '"finished"'])
def test_a_damaged_result_is_an_error_and_never_counts_as_finished(tmp_path, content):
    with RunFolder(tmp_path, config()) as folder:
        folder.write_config()
        (tmp_path / "result.json").write_text(content)
        with pytest.raises(RunFolderError) as caught:
            _ = folder.result
    assert caught.value.got.startswith(f"{tmp_path / 'result.json'} ")
    assert caught.value.fix == "remove it to finish the run again"
