import json
import os
import platform

import pytest
from report.fake_runs import config, curve, result, write

from vit_jax.errors import RunFolderError
from vit_jax.report.facts import missing
from vit_jax.report.runs import find_runs


def test_runs_are_found_at_any_depth_and_nothing_else_is_taken_for_one(tmp_path):
    write(tmp_path / "a" / "seed10", config=config(), env={}, result=result(0.5, 400))
    write(tmp_path / "a" / "seed9", config=config(), env={}, metrics=[])
    write(tmp_path / "a" / "seed9" / "checkpoints" / "5", config=config(), env={})
    write(tmp_path / "a" / "seed9" / "more", job={"name": "inner"})
    write(tmp_path / "hugging_face", config={"architectures": ["ViTModel"]})
    write(tmp_path / ".hidden", config=config(), env={})
    assert [run.name for run in find_runs([tmp_path]).runs] == ["a/seed9", "a/seed10", "inner"]


def test_a_folder_named_twice_is_one_run(tmp_path):
    write(tmp_path / "a", config=config(), env={})
    found = find_runs([tmp_path / "a", tmp_path])
    assert [run.name for run in found.runs] == ["a"]


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path):
    for folder in ("one", "two"):
        write(tmp_path / folder / "seed0", config=config(), env={})
    found = find_runs([tmp_path / "one", tmp_path / "two"])
    assert [run.name for run in found.runs] == ["one/seed0", "two/seed0"]


def test_a_folder_without_runs_is_an_error_even_beside_one_with_some(tmp_path):
    write(tmp_path / "a", config=config(), env={})
    (tmp_path / "b").mkdir()
    with pytest.raises(RunFolderError, match=r"no run in .*b"):
        find_runs([tmp_path / "a", tmp_path / "b"])


def attempt(folder, **content):
    (folder / ".sweep").mkdir()
    (folder / ".sweep" / "attempt.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("content", "state"),
    [
        ({"exit_code": 2, "ended": 1.0}, "failed"),
        ({"exit_code": 75, "ended": 1.0}, "unfinished"),
        ({"exit_code": -15, "ended": 1.0}, "unfinished"),
        ({"exit_code": 75, "ended": 1.0, "failure": "did not get on"}, "failed"),
        ({"ended": None, "host": platform.node(), "pid": os.getpid()}, "running"),
        ({"ended": None, "host": platform.node(), "pid": 2**22 + 1}, "unfinished"),
        ({"ended": None, "host": "another", "pid": 1}, "running"),
    ],
)
def test_the_state_is_what_the_sweep_has_noted(tmp_path, content, state):
    write(tmp_path, config=config(), env={"device_kind": "cpu"}, job={"name": "a"})
    attempt(tmp_path, **content)
    assert find_runs([tmp_path]).runs[0].state == state


def test_a_result_counts_whatever_else_there_is(tmp_path):
    write(tmp_path, config=config(), result=result(0.5, 400))
    attempt(tmp_path, exit_code=2, ended=1.0)
    assert find_runs([tmp_path]).runs[0].state == "finished"


def test_latest_figures_of_an_unfinished_run_and_final_ones_of_a_finished_one(tmp_path):
    import random

    rows = curve(0.5, 400, "test", random.Random(0), until=120)
    write(tmp_path / "a", config=config(), metrics=rows)
    write(tmp_path / "b", config=config(), metrics=rows, result={"step": 400, "train/loss": 9.0})
    unfinished, finished = find_runs([tmp_path]).runs
    assert unfinished.step == 120
    assert unfinished.figures["train/loss"] == rows[-1]["train/loss"]
    assert unfinished.wall_time_s == pytest.approx(55.0)
    assert (finished.step, finished.figures["train/loss"]) == (400, 9.0)


def test_jobs_without_a_folder_are_missing_where_they_were_asked_for(tmp_path):
    write(tmp_path / "jobs/a/0", job={"name": "a/0"}, config=config(), result=result(0.5, 400))
    names = [{"name": "a/0"}, {"name": "a/1"}, {"name": "b/0"}]
    write(tmp_path, sweep={"jobs": names})
    assert [m.name for m in missing(find_runs([tmp_path]))] == ["a/1", "b/0"]
    assert [m.name for m in missing(find_runs([tmp_path / "jobs/a"]))] == ["a/1"]
