"""A run that is killed several times accounts for every second from its first start to its end."""

import json
import time

import pytest
from processes import UNMIXED, finish, start, start_command, wait_for

from vit_jax.run.metrics import read_metrics
from vit_jax.run.time_account import PARTS, read_sessions

LENGTH = (
    "--config.train_steps=600",
    "--config.checkpoint.interval_steps=50",
    "--config.evaluation.interval_steps=200",
)


def last_line(workdir):
    rows = read_sessions(workdir)
    return rows[-1] if rows else {"session": 0, "step": 0}


def kill_when(condition, workdir, digits_dir):
    """Starts the run, kills it once a condition on its last line holds; returns the start time."""
    begin = time.time()
    process = start(workdir, digits_dir, *LENGTH, config=UNMIXED)
    wait_for(lambda: condition(last_line(workdir)), process)
    process.kill()
    finish(process)
    return begin


@pytest.mark.slow
def test_the_seconds_of_a_killed_run_add_up_to_its_wall_time(tmp_path, digits_dir):
    workdir = tmp_path / "run"
    finish(start_command("-m", "vit_jax", "--help"))  # Starts the server of processes.
    began = kill_when(lambda row: row["session"] == 1, workdir, digits_dir)  # Before any step.
    time.sleep(1)
    kill_when(lambda row: row["session"] == 2 and row["step"] > 100, workdir, digits_dir)
    kill_when(lambda row: row["session"] == 3 and row["step"] > 250, workdir, digits_dir)
    code, _, err = finish(start(workdir, digits_dir, *LENGTH, config=UNMIXED))
    assert code == 0, err
    ended = (workdir / "result.json").stat().st_mtime
    result = json.loads((workdir / "result.json").read_text())
    seconds = result["seconds"]
    assert list(seconds) == list(PARTS)
    assert sum(seconds.values()) == pytest.approx(ended - began, rel=0.01)
    assert min(seconds.values()) >= 0
    for part in ("start", "compile", "restore", "steps", "data", "evaluation", "saving", "idle"):
        assert seconds[part] > 0, part
    assert seconds["idle"] > 1
    # What counts is what the run itself measures, without start, compilation and what was lost.
    counted = sum(seconds[part] for part in ("steps", "data", "evaluation", "saving"))
    assert counted < result["wall_time_s"] < sum(seconds.values()) - seconds["lost"]
    # Every step is logged; the lines after a restored checkpoint are written again.
    rows = [r for r in read_metrics(workdir / "metrics.jsonl") if "train/loss" in r]
    assert len(rows) == 600
    for part in PARTS:
        found = [row[f"seconds/{part}"] for row in rows]
        assert found == sorted(found), part
        assert found[-1] <= seconds[part] + 0.01
