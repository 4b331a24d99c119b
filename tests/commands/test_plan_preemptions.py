"""`plan --preemptions`: runs on machines that are preempted."""

import json

import pytest
from processes import run_command
from small_config import small_mapping

from vit_jax.__main__ import main
from vit_jax.config.run import Config
from vit_jax.plan.run_costs import measured_costs, read_trace
from vit_jax.run.folder import read_config

pytestmark = pytest.mark.slow

SECONDS = ("start", "compile", "restore", "steps", "lost", "data", "evaluation", "saving", "idle")


def line(session, step, save_s, *seconds, event="running"):
    return {
        "session": session, "event": event, "began": 0.0, "time": 0.0, "step": step, "saves": 9,
        "save_s": save_s, "seconds": dict(zip(SECONDS, map(float, seconds), strict=True)),
    }  # fmt: skip


def write_run(folder, *lines, **config):
    folder.mkdir()
    mapping = Config.from_mapping(small_mapping(**config)).to_mapping()
    (folder / "config.json").write_text(json.dumps(mapping))
    (folder / "env.json").write_text('{"device_count": 4}')
    (folder / "sessions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return folder


@pytest.fixture
def measured(tmp_path):
    """A run of three sessions: killed after 50 steps, killed before it trained, finished."""
    folder = write_run(
        tmp_path / "run",
        line(1, 10, None, 12, 40, 0, 10, 0, 1, 0, 0, 0),
        line(1, 50, 0.25, 12, 40, 0, 50, 0, 5, 0, 1, 0),
        line(2, 50, 0.25, 90, 40, 0, 50, 0, 5, 0, 1, 30),
        line(3, 40, 0.25, 97, 60, 4, 40, 10, 5, 0, 1, 60),
        line(3, 100, 0.5, 97, 60, 4, 100, 10, 10, 20, 2, 60, event="finished"),
    )
    checkpoint = folder / "checkpoints" / "100"
    checkpoint.mkdir(parents=True)
    times = {"init_timestamp_nsecs": 10**18, "commit_timestamp_nsecs": 10**18 + 6 * 10**9}
    (checkpoint / "_CHECKPOINT_METADATA").write_text(json.dumps(times))
    return folder


def test_the_times_of_a_run_are_those_of_its_restarts(measured):
    costs = measured_costs(measured, read_config(measured))
    assert costs.steps == 100
    assert costs.step_s == pytest.approx((100 + 10 + 20) / 100)
    assert (costs.save_s, costs.write_s) == (0.5, 6.0)
    # The second session never trained: its start may be incomplete.
    assert (costs.start_s, costs.compile_s, costs.restore_s) == (7.0, 20.0, 4.0)
    assert measured_costs(measured, read_config(measured), steps=7).steps == 7


def test_a_run_that_was_never_restarted_restores_in_the_time_of_a_write(tmp_path):
    folder = write_run(tmp_path / "run", line(1, 50, 0.25, 12, 40, 0, 50, 0, 5, 0, 1, 0))
    costs = measured_costs(folder, read_config(folder))
    assert (costs.start_s, costs.compile_s) == (12.0, 40.0)
    assert costs.restore_s == costs.write_s == 0.25  # No checkpoint says how long it took.


def test_a_run_is_simulated_with_its_measured_times(measured, tmp_path, capsys):
    output = tmp_path / "out.json"
    arguments = ["--preemptions=20", "--down_s=60", "--spot_price=0.5", "--on_demand_price=2"]
    assert main(["plan", f"--run={measured}", *arguments, f"--output={output}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for text in (
        "20 preemptions an hour, another machine after 60 s; 1,000 simulated runs on 4 chips",
        "100 steps of 1.3 s, measured in",
        "A session starts in 7 s, compiles in 20 s and restores in 4 s.",
        "A save blocks training for 500 ms and is complete after 6 s.",
        "on demand",
        "Young",
        "times as much",
    ):
        assert text in printed, text
    found = json.loads(output.read_text())
    # Without preemptions: 27 s, 130 s of steps, 6 s for the last save, few other saves.
    assert found["on_demand_hours_p50"] * 3600 == pytest.approx(27 + 130 + 6, rel=0.05)
    assert found["on_demand_cost_p50"] == pytest.approx(
        found["on_demand_hours_p50"] * 4 * 2, rel=1e-4
    )
    assert found["spot_hours_p5"] < found["spot_hours_p50"] < found["spot_hours_p95"]
    assert found["spot_cost_p50"] == pytest.approx(found["spot_chip_hours_p50"] * 0.5, rel=1e-3)
    assert found["spot_chip_hours_p50"] < found["spot_hours_p50"] * 4  # Idle time is free.


def test_a_trace_and_an_interval_of_the_config_are_simulated(measured, tmp_path, capsys):
    trace = tmp_path / "trace.csv"
    trace.write_text("up_s,down_s\n100,10\n300,\n60,20\n")
    mapping = json.loads((measured / "config.json").read_text())
    mapping["checkpoint"]["interval_steps"] = 33
    (measured / "config.json").write_text(json.dumps(mapping))
    assert main(["plan", f"--run={measured}", f"--preemptions={trace}", "--steps=1000"]) == 0
    printed = capsys.readouterr().out
    assert "3 preemptions of" in printed
    assert "33 steps" in printed
    assert "chip-hours" in printed
    assert max(map(len, printed.splitlines())) <= 100 + len(str(trace))


def test_machines_that_never_last_long_enough_are_said_to_be(measured, tmp_path, capsys):
    trace = tmp_path / "trace.json"
    trace.write_text("[20, 25]")
    assert main(["plan", f"--run={measured}", f"--preemptions={trace}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "never ends" in printed
    assert "The run does not end" in printed


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "up_s,down_s\n10,1\n20,\n"),
        ("t.csv", "\ufeffup_s,down_s\n10,1\n20,\n"),
        ("t.csv", "down_s,up_s,zone\n1,10,a\n5,20,b\n"),
        ("t.json", '[{"up_s": 10, "down_s": 1}, 20]'),
        ("t.json", '[{"up_s": 10, "down_s": 1}, {"up_s": 20}]'),
    ],
)
def test_traces_are_csv_or_json(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    up_s, down_s = read_trace(tmp_path / name, 5.0)
    assert (up_s.tolist(), down_s.tolist()) == ([10, 20], [1, 5])


@pytest.mark.parametrize(
    ("arguments", "trace", "got"),
    [
        (["--preemptions=TRACE"], "up\n3\n", "trace.csv has no up_s"),
        (["--preemptions=TRACE"], "up_s\n", "has no times"),
        (["--preemptions=TRACE"], "up_s\n0\n", "not positive"),
        (["--preemptions=TRACE"], "up_s\nx\n", "could not convert"),
        (["--preemptions=nowhere.csv"], "", "nowhere.csv: No such file or directory"),
        (["--preemptions=-1"], "", "expected a rate above 0 per hour, or a file"),
        ([], "", "--run without --preemptions"),
        (["--preemptions=1", "--topology=cpu:1"], "", "--run with --config or --topology"),
        (["--preemptions=1", "--notice_s=-3"], "", "'-3' is not a number above 0"),
        (["--preemptions=1", "--spot_price=free"], "", "'free' is not a number above 0"),
    ],
)
def test_errors_are_one_line(measured, tmp_path, capsys, arguments, trace, got):
    (tmp_path / "trace.csv").write_text(trace)
    arguments = [a.replace("TRACE", str(tmp_path / "trace.csv")) for a in arguments]
    assert main(["plan", f"--run={measured}", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert got in err


def test_runs_without_times_are_one_line_errors(tmp_path, capsys):
    no_save = write_run(tmp_path / "a", line(1, 50, None, 12, 40, 0, 50, 0, 5, 0, 1, 0))
    epochs = write_run(
        tmp_path / "b",
        line(1, 50, 0.25, 12, 40, 0, 50, 0, 5, 0, 1, 0),
        train_steps=None,
        train_epochs=3.0,
    )
    assert main(["plan", f"--run={no_save}", "--preemptions=1"]) == 2
    assert "has no account of a run that has trained and saved" in capsys.readouterr().err
    assert main(["plan", f"--run={epochs}", "--preemptions=1"]) == 2
    assert "add --steps=N" in capsys.readouterr().err
    assert main(["plan", "--preemptions=1", "--topology=cpu:1"]) == 2
    assert "--config not given" in capsys.readouterr().err


@pytest.mark.multidevice
@pytest.mark.slow
def test_a_planned_run_is_simulated():
    arguments = ["--topology=cpu:1", "--config.model.depth=1", "--config.mixing.mixup_alpha=0"]
    config = "--config=configs/quickstart.py"
    done = run_command(
        "-m", "vit_jax", "plan", config, *arguments, "--preemptions=30", "--start_s=5"
    )
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())
    assert "786 steps of" in printed
    assert "planned at MFU 40%. A session starts in 5 s, compiles in" in printed
