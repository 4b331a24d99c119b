import json
import os
import platform
import random

import pytest
from report.fake_runs import config, curve, result, write

from vit_jax.errors import RunFolderError
from vit_jax.report.content import make_report
from vit_jax.report.frame import differing_settings, run_frame
from vit_jax.report.overview import confusion_tables, hardware_table, missing_table, runs_csv
from vit_jax.report.page_data import page_data
from vit_jax.report.requests import ReportRequest, TableRequest
from vit_jax.report.run import Run
from vit_jax.report.runs import read_runs
from vit_jax.report.tables import score_table
from vit_jax.run.time_account import TimeAccount
from vit_jax.storage.files import write_json


def test_each_run_folder_at_any_depth_is_found_once(tmp_path):
    write(tmp_path / "a" / "seed10", config=config(), env={}, result=result(0.5, 400))
    write(tmp_path / "a" / "seed9", config=config(), env={}, metrics=[])
    write(tmp_path / "a" / "seed9" / "checkpoints" / "5", config=config(), env={})
    write(tmp_path / "a" / "seed9" / "more", job={"name": "inner"})
    write(tmp_path / "hugging_face", config={"architectures": ["ViTModel"]})
    write(tmp_path / ".hidden", config=config(), env={})
    found = read_runs([tmp_path, tmp_path / "a"])
    assert [run.name for run in found.runs] == ["a/seed9", "a/seed10", "inner"]


def test_linked_runs_are_found_once_and_no_circle_is_followed(tmp_path):
    write(tmp_path / "far" / "b", config=config(), env={})
    write(tmp_path / "far" / "sweep" / "c", config=config(), env={})
    write(tmp_path / "here" / "d", config=config(), env={})
    for link, target in {"a": "here/d", "b": "far/b", "sweep": "far/sweep"}.items():
        (tmp_path / "here" / link).symlink_to(tmp_path / target)
    (tmp_path / "far" / "sweep" / "circle").symlink_to(tmp_path / "far" / "sweep")
    (tmp_path / "link").symlink_to(tmp_path / "here")
    for root in ("here", "link"):
        found = read_runs([tmp_path / root])
        assert [run.name for run in found.runs] == ["b", "d", "sweep/c"]


def test_runs_with_the_same_name_are_named_by_their_paths(tmp_path):
    for folder in ("one", "two"):
        write(tmp_path / folder / "seed0", config=config(), env={})
    found = read_runs([tmp_path / "one", tmp_path / "two"])
    assert [run.name for run in found.runs] == ["one/seed0", "two/seed0"]


def test_what_eval_has_measured_since_is_shown_beside_the_result_and_never_instead(tmp_path):
    write(tmp_path / "done", config=config(), env={}, result=result(0.5, 400))
    write(tmp_path / "open", config=config(), env={}, metrics=[])
    for name in ("done", "open"):
        later = {"eval/test/accuracy_top1": 0.9, "eval/other/accuracy_top1": 0.7}
        (tmp_path / name / "report").mkdir()
        (tmp_path / name / "report" / "evaluations.json").write_text(json.dumps(later))
    figures = {run.name: run.figures for run in read_runs([tmp_path]).runs}
    assert figures["done"]["eval/test/accuracy_top1"] == 0.5
    assert figures["done"]["eval/other/accuracy_top1"] == 0.7
    assert "eval/other/accuracy_top1" not in figures["open"]
    path = tmp_path / "done/report/evaluations.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"weights_digest": "others"}))
    assert "eval/other/accuracy_top1" not in read_runs([tmp_path / "done"]).runs[0].figures


def test_an_evaluation_with_settings_of_its_own_is_named(tmp_path):
    write(tmp_path / "done", config=config(), env={}, result=result(0.5, 400))
    settings = {"eval/test": ["data.data_dir=/b"], "eval/other": ["data.data_dir=/b"]}
    later = {"eval/test/accuracy_top1": 0.9, "eval/other/accuracy_top1": 0.7, "settings": settings}
    write_json(tmp_path / "done/report/evaluations.json", later)
    frame = run_frame(read_runs([tmp_path]).runs)
    notes = {}
    for name in ("other", "test"):
        table = score_table(TableRequest(metric=f"eval/{name}/accuracy_top1"), frame)
        notes[name] = [note for note in table.notes if "not the run's" in note]
    sentence = "Evaluated after training with settings that are not the run's"
    assert notes == {"other": [f"{sentence}: done (data.data_dir=/b)."], "test": []}


def test_each_folder_must_hold_a_run(tmp_path):
    write(tmp_path / "a", config=config(), env={})
    (tmp_path / "b").mkdir()
    with pytest.raises(RunFolderError, match=r"no run in .*b"):
        read_runs([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize(
    ("content", "state"),
    [
        ({"exit_code": 2, "ended": 1.0}, "failed"),
        ({"exit_code": 75, "ended": 1.0}, "unfinished"),
        ({"exit_code": -15, "ended": 1.0}, "unfinished"),
        # As in a sweep: success without a result.
        ({"exit_code": 0, "ended": 1.0}, "failed"),
        ({"exit_code": 75, "ended": 1.0, "failure": "did not get on"}, "failed"),
        ({"ended": None, "host": platform.node(), "pid": os.getpid()}, "running"),
        ({"ended": None, "host": platform.node(), "pid": 2**22 + 1}, "unfinished"),
        ({"ended": None, "host": "another", "pid": 1}, "running"),
        (None, "finished"),
    ],
)
def test_the_state_follows_from_the_attempt_that_the_sweep_recorded(tmp_path, content, state):
    write(tmp_path, config=config(), env={"device_kind": "cpu"}, job={"name": "a"})
    if content is None:  # A result counts, whatever the attempt says.
        write(tmp_path, result=result(0.5, 400))
    write(tmp_path / ".sweep", attempt=content or {"exit_code": 2, "ended": 1.0})
    assert run_frame(read_runs([tmp_path]).runs)["state"].item() == state


def test_an_unfinished_run_has_its_latest_metrics_and_a_finished_one_its_result(tmp_path):
    rows = curve(0.5, 400, "test", random.Random(0), until=120)
    write(tmp_path / "a", config=config(), metrics=rows)
    write(tmp_path / "b", config=config(), metrics=rows, result={"step": 400, "train/loss": 9.0})
    unfinished, finished = read_runs([tmp_path]).runs
    first, second = run_frame([unfinished, finished]).to_dict("records")
    assert first["step"] == 120
    assert unfinished.figures["train/loss"] == rows[-1]["train/loss"]
    assert first["wall_time_s"] == pytest.approx(55.0)
    assert (second["step"], finished.figures["train/loss"]) == (400, 9.0)


def test_jobs_without_a_folder_are_listed_if_their_sweep_was_searched(tmp_path):
    write(tmp_path / "jobs/a/0", job={"name": "a/0"}, config=config(), result=result(0.5, 400))
    names = [{"name": "a/0"}, {"name": "a/1"}, {"name": "b/0"}]
    write(tmp_path, sweep={"jobs": names})
    for folder, missing in ((tmp_path, ["a/1", "b/0"]), (tmp_path / "jobs/a", ["a/1"])):
        found = read_runs([folder])
        table = missing_table(found, run_frame(found.runs))
        assert [row[0].text for row in table.rows] == missing


def test_a_run_without_a_sweep_says_why_it_failed(tmp_path):
    write(tmp_path / "a", config=config(), env={})
    account = TimeAccount()
    account.open(tmp_path / "a")
    account.close("failed", RuntimeError("XLA ran out of luck\nand more"))
    found = read_runs([tmp_path])
    (row,) = missing_table(found, run_frame(found.runs)).rows
    assert [cell.text for cell in row] == ["a", "failed", "", "RuntimeError: XLA ran out of luck"]
    content = make_report(found, ReportRequest(plots=[], tables=[]), tmp_path)
    assert page_data(content, tmp_path)["runs"][0]["why"] == row[3].text


def row_of(folder, *others):
    """Returns the run in a folder and its row of the data frame."""
    runs = read_runs([folder, *others]).runs
    (run,) = [run for run in runs if run.path == folder]
    return run, run_frame(runs).loc[run]


def test_a_run_from_random_weights_counts_as_its_own_pretraining(tmp_path):
    write(tmp_path / "a", config=config(), result=result(0.5, 400, examples=700, exaflops=0.25))
    run, row = row_of(tmp_path / "a")
    assert (row["pretrain_examples"], row["pretrain_exaflops"]) == (700, 0.25)
    assert run.unknown_pretraining == ""
    assert row["examples_seen"] == 400 * 64


@pytest.mark.parametrize("origin", ["pre", "pre/checkpoints/400"])
def test_pretraining_is_summed_over_the_runs_it_was_initialised_from(tmp_path, origin):
    write(tmp_path / "pre", config=config(), result=result(0.5, 400, examples=900, exaflops=2.0))
    (tmp_path / "pre/checkpoints/400").mkdir(parents=True)
    middle = config(init_from=str(tmp_path / origin))
    write(tmp_path / "middle", config=middle, result=result(0.5, 1, examples=50, exaflops=0.5))
    last = {"command": "fewshot", "checkpoint": "middle"}
    write(tmp_path / "last", config=last, result={"step": 0, "knn/x/accuracy_top1": 0.5})
    _, row = row_of(tmp_path / "middle")  # "pre" is not in this folder, and is read all the same.
    assert (row["pretrain_examples"], row["pretrain_exaflops"]) == (900, 2.0)
    assert (row["train_examples"], row["train_exaflops"]) == (50, 0.5)
    _, row = row_of(tmp_path / "last")
    assert (row["pretrain_examples"], row["pretrain_exaflops"]) == (900, 2.5)
    assert row["train_examples"] is None


def test_an_intermediate_checkpoint_counts_with_the_steps_before_it(tmp_path):
    write(tmp_path / "pre", config=config(), result=result(0.5, 400, exaflops=2.0))
    for step, expected in ((100, 0.5), (400, 2.0)):
        made = config(init_from=str(tmp_path / f"pre/checkpoints/{step}"))
        write(tmp_path / "tuned", config=made, result=result(0.5, 1, exaflops=0.1))
        assert row_of(tmp_path / "tuned")[1]["pretrain_exaflops"] == expected


def test_a_relative_path_is_first_one_beside_the_run(tmp_path, monkeypatch):
    for folder, exaflops in (("here", 1.0), ("elsewhere", 5.0)):
        done = result(0.5, 400, exaflops=exaflops)
        write(tmp_path / folder / "runs/pre", config=config(), result=done)
    tuned = tmp_path / "here/runs/tuned"
    write(tuned, config=config(init_from="runs/pre"), result=result(0.5, 1))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert row_of(tuned)[1]["pretrain_exaflops"] == 1.0


@pytest.mark.parametrize(
    ("origin", "reason"),
    [("/no/such/run", "no longer exists"), ("hf://a/b", "is not a run folder")],
)
def test_pretraining_is_unknown_for_weights_that_are_not_a_run(tmp_path, origin, reason):
    write(tmp_path / "a", config=config(init_from=origin), result=result(0.5, 400))
    run, row = row_of(tmp_path / "a")
    assert row["pretrain_examples"] is None
    assert row["pretrain_exaflops"] is None
    assert run.unknown_pretraining.startswith(f"{origin} {reason}: ")


def test_a_moved_sweep_finds_its_own_jobs(tmp_path):
    job = {"sweep": "s.py", "name": "pre/vit", "labels": {}}
    write(
        tmp_path / "jobs/pre/vit", job=job, config=config(), result=result(0.5, 400, examples=900)
    )
    moved = config(init_from="/before/s/jobs/pre/vit/checkpoints/400")
    write(
        tmp_path / "jobs/final", job={**job, "name": "final"}, config=moved, result=result(0.5, 400)
    )
    _, row = row_of(tmp_path / "jobs/final", tmp_path)
    assert row["pretrain_examples"] == 900


def test_a_cycle_of_initialisations_is_reported(tmp_path):
    for one, other in ("ab", "ba"):
        made = config(init_from=str(tmp_path / other))
        write(tmp_path / one, config=made, result=result(0.5, 400))
    run, row = row_of(tmp_path / "a", tmp_path / "b")
    assert run.unknown_pretraining == "the run is initialised from itself"
    assert row["pretrain_examples"] is None


def test_damaged_files_are_problems_and_not_errors(tmp_path):
    write(tmp_path, config=config(), result=result(0.5, 400))
    (tmp_path / "env.json").write_text("[1]")
    (tmp_path / "classes.json").write_text("{")
    run = Run(tmp_path)
    assert [problem.split()[0] for problem in run.problems] == ["env.json", "classes.json"]
    assert run.config["seed"] == 0


def test_an_option_that_a_model_family_lacks_has_its_default(tmp_path):
    vit, resnet = config("ViT-B/16"), config("BiT-R50x1")
    del resnet["model"]["dropout"]
    few = {"command": "fewshot", "checkpoint": "vit"}
    for name, made in (("vit", vit), ("resnet", resnet), ("few", few)):
        write(tmp_path / name, config=made, result=result(0.5, 400))
    few, *trained = read_runs([tmp_path]).runs
    assert differing_settings(trained) == ["model.name"]
    assert [run.config["model.dropout"] for run in trained] == [0.0, 0.0]
    assert {*few.config} == {"command", "checkpoint"}


def test_a_label_does_not_hide_a_fact_of_the_run(tmp_path):
    """The label is a column for tables and plots; runs.csv and the hardware show the fact."""
    job = {"name": "a", "labels": {"device": "rack 3", "state": "odd"}}
    env = {"device_kind": "cpu", "device_count": 2}
    write(tmp_path, job=job, env=env, config=config(), result=result(0.5, 400))
    found = read_runs([tmp_path])
    frame = run_frame(found.runs)
    assert (frame["device"].item(), frame["state"].item()) == ("rack 3", "finished")
    assert runs_csv(found, frame)["device"].item() == "2 x cpu"
    assert hardware_table(frame).rows[0][0].text == "2 x cpu"


def test_how_data_and_programs_are_cached_is_no_setting(tmp_path):
    keys = {"compile_cache": "gs://b/c", "profile": {"steps": "1:2"}}
    data = {"cache_dir": "/a", "cache_dir_gb": 1, "cache_mb": 0}
    plain = config()
    write(tmp_path / "a", config=plain, env={})
    changed = {**plain, **keys, "data": {**plain["data"], **data}}
    write(tmp_path / "b", config=changed, env={})
    assert differing_settings(read_runs([tmp_path]).runs) == []


def test_a_report_of_few_runs_has_their_confusion_matrices(tmp_path, caplog):
    write(tmp_path, config=config(), result=result(0.5, 2), metrics=[])
    (tmp_path / "report").mkdir()
    table = tmp_path / "report" / "confusion-dev.csv"
    table.write_text("true class,cat,dog\ncat,3,1\ndog,0,0\n")
    (made,) = confusion_tables(read_runs([tmp_path]).runs)
    assert made.title == "Confusion matrix, dev"
    assert made.header == ["true class", "cat", "dog", "right"]
    rows = [[cell.text for cell in row] for row in made.rows]
    assert rows == [["cat", "3", "1", "75.0% [30.1, 95.4]"], ["dog", "", "", ""]]
    assert made.notes[0] == "3 of 4 are right: 75.0% [30.1, 95.4]."  # Wilson, by hand.
    later = "It is of a later evaluation than the result of the run."
    for accuracy, examples, differs in ((0.75, 4, False), (0.75, 8, True), (0.5, 4, True)):
        figures = {"eval/dev/accuracy_top1": accuracy, "eval/dev/examples": examples}
        write(tmp_path, result=result(0.5, 2) | figures)
        (made,) = confusion_tables(read_runs([tmp_path]).runs)
        assert (later in made.notes) == differs
    table.write_text("true class,cat,dog\ncat,3,x\n")
    assert confusion_tables(read_runs([tmp_path]).runs) == []
    assert "confusion-dev.csv is left out" in caplog.text


@pytest.mark.parametrize("names", [5, "f1", [["f1"], {}], None])
def test_wrong_names_of_metrics_do_not_end_a_report(tmp_path, names):
    settings = config()
    settings["evaluation"] = {"metrics": names}
    write(tmp_path, config=settings, result=result(0.5, 2), metrics=[])
    (run,) = read_runs([tmp_path]).runs
    assert run.more_metrics == []
