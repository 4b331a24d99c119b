"""The status of runs, from made-up and from real files."""

import datetime
import json
import sys
import time
from pathlib import Path

import pytest
from processes import ROOT

from vit_jax.__main__ import main
from vit_jax.errors import ConfigError
from vit_jax.run.default_folder import default_folder, default_sweep_folder, recipe_name
from vit_jax.run.status import STATES, read_status
from vit_jax.run.time_account import TimeAccount


def write_run(folder, event="running", *, age=0.0, config=None, metrics=(), result=None):
    """Writes a run at step 30 of 130 that has logged three lines, the last `age` seconds ago."""
    last = time.time() - age
    session = {"session": 1, "began": last - 60, "total_steps": 130}
    session["seconds"] = {"start": 20.0, "steps": 40.0}
    lines = (("running", last - 20, 0), ("running", last - 10, 10), (event, last, 30))
    rows = [session | {"event": kind, "time": at, "step": step} for kind, at, step in lines]
    folder.mkdir(parents=True)
    for name, content in (("sessions", rows), ("metrics", metrics)):
        text = "".join(json.dumps(row) + "\n" for row in content)
        (folder / f"{name}.jsonl").write_text(text)
    (folder / "config.json").write_text(json.dumps(config or {"train_steps": None}))
    (folder / "env.json").write_text("{}")
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_a_running_run_has_a_score_and_an_eta(tmp_path):
    rows = [{"step": 20, "eval/dev/accuracy_top1": 0.25}, {"step": 20, "eval/test/loss": 1.0}]
    found = read_status(write_run(tmp_path / "run", metrics=rows))
    assert (found.state, found.step, found.total_steps) == ("running", 30, 130)
    assert found.score_text == "dev 0.2500"
    assert found.eta_s == pytest.approx(100 * 10 / 20, abs=1)  # 20 steps took 10 s.
    assert found.seconds == 60


@pytest.mark.parametrize(
    ("event", "age", "state"),
    [("running", 500, "killed"), ("stopped", 0, "stopped"), ("running", 3, "running")],
)
def test_the_last_line_of_the_sessions_decides_the_state(tmp_path, event, age, state):
    found = read_status(write_run(tmp_path / "run", event, age=age))
    assert found.state == state
    assert found.eta_s is None or state == "running"


def test_the_score_is_the_metric_that_the_run_chooses_by(tmp_path):
    config = {"early_stopping": {"metric": "eval/dev/loss"}, "checkpoint": None}
    result = {"step": 9, "eval/test/accuracy_top1": 0.5, "eval/dev/loss": 0.7, "wall_time_s": 3.2}
    found = read_status(write_run(tmp_path / "run", config=config, result=result))
    assert (found.state, found.score_text) == ("finished", "dev/loss 0.7000")
    assert found.time_text == "0:00:03"


def test_the_time_of_a_finished_run_is_that_of_its_account(tmp_path):
    result = {"step": 9, "wall_time_s": 42.0, "seconds": {"start": 44.8, "steps": 42.0}}
    found = read_status(write_run(tmp_path / "run", result=result))
    assert found.time_text == "0:01:27"


def test_a_failed_run_says_why(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    account = TimeAccount()
    account.open(folder)
    account.close("failed", ConfigError("no file at a.npz", "a file", "correct\nthe path"))
    assert main(["runs", str(tmp_path)]) == 0
    line = capsys.readouterr().out.splitlines()[3]
    assert line.strip().endswith("failed: no file at a.npz; expected a file; correct the path")


def test_the_command_sorts_runs_by_state_and_score(tmp_path, capsys):
    write_run(tmp_path / "a" / "low", result={"step": 9, "eval/test/accuracy_top1": 0.5})
    write_run(tmp_path / "a" / "high", result={"step": 9, "eval/test/accuracy_top1": 0.75})
    write_run(tmp_path / "b", "failed")
    write_run(tmp_path / "c2")
    assert main(["runs", str(tmp_path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [line[0] for line in lines[2:6]] == ["c2", "b", "a/high", "a/low"]
    assert lines[4][1:4] == ["9/9", "test", "0.7500"]
    assert " ".join(lines[6]) == "1 running, 1 failed, 2 finished"
    assert main(["runs", str(tmp_path), "--json", "--sort=name"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["run"] for row in found] == ["a/high", "a/low", "b", "c2"]
    assert found[0]["score"] == 0.75
    assert {row["state"] for row in found} <= set(STATES)


def test_a_folder_without_runs_is_an_error(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: no run in {tmp_path}; ")
    assert main(["runs", str(tmp_path / "gone")]) == 2
    assert capsys.readouterr().err.startswith(f"error: no folder {tmp_path / 'gone'}; ")


def test_the_same_command_continues_its_run_and_another_gets_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["train", "--config=configs/quickstart.py", "--config.seed=1"]
    monkeypatch.setattr(sys, "argv", ["main", *command])
    first = default_folder("configs/quickstart.py")
    assert first == Path("runs") / f"quickstart-{datetime.date.today().isoformat()}"
    write_run(first, "stopped")
    (first / "env.json").write_text(json.dumps({"command": ["main", *command]}))
    assert default_folder("configs/quickstart.py") == first
    sys.argv.pop()
    second = default_folder("configs/quickstart.py")
    assert second.name == f"{first.name}-2"
    (first / "result.json").write_text('{"step": 9}')
    sys.argv.append(command[-1])
    assert default_folder("configs/quickstart.py") == second
    assert recipe_name("configs/a b.py:L/16,x") == "a-b-L-16-x"


def test_a_sweep_continues_in_its_newest_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = str(ROOT / "configs" / "quickstart.py")
    (tmp_path / "mine.py").write_text(f"def get_sweep():\n    yield {config!r}, {{}}\n")
    folder = default_sweep_folder("mine.py")
    assert folder.name == f"mine-{datetime.date.today().isoformat()}"
    for _ in range(2):
        assert main(["sweep", "--sweep=mine.py", "--executor=commands"]) == 0
        assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.name]
    assert default_sweep_folder("mine.py") == folder
    assert default_sweep_folder("./mine.py").name == f"{folder.name}-2"
