"""Errors during training end with one line and exit code 2, and lose nothing."""

import json
import os
import subprocess

import pytest
from processes import UNMIXED, finish, one_line, start
from short_runs import SHORT, rewrite_item, saved_steps, train

from vit_jax.__main__ import main


@pytest.mark.slow
def test_a_checkpoint_of_another_architecture_is_refused(run, tmp_path, digits_dir, capfd):
    evaluate = ["eval", f"--workdir={run}", "--json"]
    assert main([*evaluate, "--config.model.width=32"]) == 2
    line = one_line(capfd)
    assert "of another architecture" in line
    assert "class_token: (1, 1, 16) there, (1, 1, 32) here" in line

    wider = [f"--config.init_from={run}", "--config.model.width=32"]
    assert train(tmp_path / "wider", digits_dir, *wider) == 2
    line = one_line(capfd)
    assert "holds a ViT-Ti/4 (width 16)" in line
    assert "set model.name=auto" in line
    assert not (tmp_path / "wider").exists()

    assert main(evaluate) == 0
    figures = json.loads(capfd.readouterr().out)
    result = json.loads((run / "result.json").read_text())
    assert figures["eval/test/examples"] == 360
    for name in figures:
        assert figures[name] == pytest.approx(result[name], rel=1e-6)


def test_a_checkpoint_of_other_data_is_refused(run, digits_dir, capfd):
    (run / "result.json").unlink()
    saved = next((run / "checkpoints" / "30" / "data").glob("metadata"))
    rewrite_item(saved, json.loads(saved.read_text()) | {"fingerprint": "0123456789abcdef"})
    assert train(run, digits_dir) == 2
    assert "0123456789abcdef" in one_line(capfd)


def test_a_damaged_result_is_a_one_line_error(run, digits_dir, capfd):
    (run / "result.json").write_text("{")
    assert train(run, digits_dir) == 2
    line = one_line(capfd)
    assert "result.json is damaged" in line
    assert "remove it to finish the run again" in line
    (run / "result.json").unlink()


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MB: a few checkpoints."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_keeps_complete_checkpoints(small_disk, digits_dir):
    options = [
        "--config.checkpoint.interval_steps=1", "--config.checkpoint.keep_last=50",
        "--config.logging.tensorboard=true", "--config.train_steps=12",
    ]  # fmt: skip
    # A process of its own, because a failed save leaves threads behind.
    code, _, err = finish(start(small_disk / "run", digits_dir, *SHORT, *options, config=UNMIXED))
    assert code == 2
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "cannot write checkpoints" in line
    assert "No space left" in line
    assert "free some space" in line
    kept = saved_steps(small_disk / "run")
    assert kept
    subprocess.run(["mount", "-o", "remount,size=30m", str(small_disk)], check=True)
    assert train(small_disk / "run", digits_dir, *options) == 0
    assert saved_steps(small_disk / "run")[-1] == 12
