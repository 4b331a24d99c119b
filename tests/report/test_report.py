"""The whole command on a made-up sweep."""

import csv
import json
import re
import statistics

import pytest
from report.fake_runs import config, result, write, write_sweep
from report.page_runs import without_pictures

from vit_jax.__main__ import main
from vit_jax.commands.report import replace_between_markers


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return write_sweep(tmp_path_factory.mktemp("secret") / "transfer")


@pytest.fixture(scope="module")
def report(sweep):
    with pytest.MonkeyPatch.context() as patch:
        without_pictures(patch)
        assert main(["report", str(sweep)]) == 0
    return sweep / "report"


def scores(sweep, dataset, model, seeds=(0, 1, 2)):
    folder = sweep / "jobs" / "final" / dataset / model
    return [
        json.loads((folder / f"seed{s}" / "result.json").read_text())["eval/test/accuracy_top1"]
        for s in seeds
    ]


def table(page, title):
    """Returns the cells of a Markdown table below a heading."""
    block = re.search(rf"## {re.escape(title)}\n\n(.*?)\n\n", page, re.DOTALL)
    assert block is not None
    lines = block[1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_means_and_intervals_are_computed_over_the_runs(sweep, report):
    values = scores(sweep, "sign_language_digits", "R+ViT-Mini-4-100")
    mean, std = statistics.fmean(values), statistics.stdev(values)
    rows = {
        row[0]: row[1:] for row in table((report / "report.md").read_text(), "Top-1 accuracy, test")
    }
    with (report / "tables.csv").open() as file:
        found = [
            row
            for row in csv.DictReader(file)
            if (row["row"], row["column"]) == ("R+ViT-Mini/4 · 100 %", "sign_language_digits")
            and row["metric"] == "eval/test/accuracy_top1"
        ]
    assert [(float(f["mean"]), float(f["std"]), f["n"]) for f in found] == [(mean, std, "3")]
    low, high = (100 * float(found[0][end]) for end in ("low", "high"))
    cell = f"{100 * mean:.2f} [{low:.2f}, {high:.2f}]"
    assert rows["R+ViT-Mini/4 · 100 %"][1] == f"**{cell}**"
    assert f"{cell}</td>" in (report / "report.html").read_text()
    assert low < 100 * mean < high


def test_runs_without_a_result_are_listed_and_left_out_of_means(sweep, report):
    text = (report / "report.md").read_text()
    assert "85 runs: 81 finished, 2 unfinished, 1 failed, 1 not started." in text
    values = scores(sweep, "clothing_small", "ViT-Mini-4-100", (0, 1))
    rows = {row[0]: row[1:] for row in table(text, "Top-1 accuracy, test")}
    cell = rows["ViT-Mini/4 · 100 %"][0]
    assert cell.strip("*").startswith(f"{100 * statistics.fmean(values):.2f} [")
    assert cell.strip("*").endswith("] (n=2) [1 failed]")
    assert rows["BiT-R-Mini · 100 %"][0].strip("*").endswith("(n=2) [1 unfinished]")
    missing = {row[0]: row[1:] for row in table(text, "Runs without a result")}
    assert missing["final/clothing_small/BiT-R-Mini-100/seed1"][:2] == ["unfinished", "170 of 400"]
    assert "no space left on device" in missing["final/clothing_small/ViT-Mini-4-100/seed2"][2]
    assert "final/sign_language_digits/ViT-Mini-4-100/seed3" in missing
    page = (report / "report.html").read_text()
    assert all(name in page for name in missing if name not in ("run", "---"))


def test_every_run_has_a_row_with_its_labels_settings_and_figures(sweep, report):
    with (report / "runs.csv").open() as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert len(rows) == 84
    row = rows["final/clothing_small/BiT-R-Mini-10/seed2"]
    assert (row["label.model"], row["stage"], row["seed"]) == ("BiT-R-Mini", "final", "2")
    assert (row["device"], row["step"]) == ("1 x cpu", "400")
    assert (row["pretrain_examples"], row["train_examples"]) == ("5000", "5000")
    assert float(row["pretrain_exaflops"]) == 0.06
    assert row["git_revision"].startswith("a53388d")
    assert (
        rows["search/clothing_small/BiT-R-Mini-10/learning_rate=0.03"]["optimizer.learning_rate"]
        == "0.03"
    )


def test_selections_show_their_split_candidates_and_seeds(report):
    rows = table((report / "report.md").read_text(), "Selected settings")
    first = dict(zip(rows[0], rows[2], strict=True))
    assert first["final runs"] == "BiT-R-Mini, 10 %, clothing_small"
    assert first["selection split"] == "dev"
    assert first["seeds"] == "0, 1, 2"
    assert first["candidates"].count("learning_rate=") == 3


def test_the_report_is_written_into_a_page_between_two_markers(sweep, tmp_path):
    page = tmp_path / "README.md"
    page.write_text("# Mine\n\n<!-- report -->\nold\n<!-- end of report -->\nmore\n")
    out = tmp_path / "results"
    assert (
        main(["report", str(sweep / "jobs" / "pretrain"), f"--output={out}", f"--into={page}"]) == 0
    )
    text = page.read_text()
    assert text.startswith("# Mine\n\n<!-- report -->\n\n6 runs: 6 finished.")
    assert text.endswith("\n<!-- end of report -->\nmore\n")
    assert "\nold\n" not in text
    assert "](results/plot-1.svg)" in text
    replace_between_markers(page, text.split("report -->\n\n")[1].split("\n<!-- end")[0])
    assert page.read_text() == text
    page.write_bytes(b"caf\xe9\n" + page.read_bytes())
    replace_between_markers(page, "new")
    assert page.read_bytes().startswith(b"caf\xe9\n# Mine\n\n<!-- report -->\n\nnew\n<!-- end of")


def test_a_page_can_have_single_tables(sweep, tmp_path, capsys):
    page, out = tmp_path / "README.md", tmp_path / "results"
    place = "<!-- report: {} -->\n<!-- end of report -->\n"
    page.write_text("# Mine\n\n" + place.format("Models") + "text\n" + place.format("Hardware"))
    arguments = ["report", str(sweep / "jobs" / "pretrain"), f"--output={out}", f"--into={page}"]
    assert main(arguments) == 0
    models, hardware = page.read_text().split("text\n")
    assert models.startswith("# Mine\n\n<!-- report: Models -->\n\n| model | runs |")
    assert hardware.startswith("<!-- report: Hardware -->\n\n| device |")
    page.write_text(place.format("Nothing"))
    assert main(arguments) == 2
    assert "<!-- report: Nothing -->; expected one of " in capsys.readouterr().err


def test_tables_and_plots_follow_the_command_line(sweep, tmp_path):
    table_text = "rows=pretrain,columns=model,metric=eval/test/loss,where.stage=final,title=Mine"
    plot = "x=train_exaflops,y=eval/test/loss,series=family,log_x"
    asked = ["--table", table_text, "--plot", plot, f"--output={tmp_path}"]
    assert main(["report", str(sweep / "jobs" / "final"), *asked]) == 0
    text = (tmp_path / "report.md").read_text()
    rows = table(text, "Mine")
    assert rows[0] == ["Pretrain", "BiT-R-Mini", "R+ViT-Mini/4", "ViT-Mini/4"]
    assert len(list(tmp_path.glob("plot-*.svg"))) == 1
    assert re.search(r"differ in more than the seed: .*\bdataset\b", text)


def small_sweep(folder, report, reported="test", other=0.25):
    candidates = [["search/a/lr=1", 0.5], ["search/a/lr=2", other]]
    selection = {
        "metric": "eval/dev/accuracy_top1",
        "mode": "max",
        "chosen": "search/a/lr=1",
        "score": 0.5,
        "candidates": candidates,
    }
    for seed in (0, 1):
        job = {"name": f"final/{seed}", "stage": "final", "selection": selection,
               "labels": {"model": "A", "dataset": "x"}}  # fmt: skip
        write(
            folder / "jobs" / "final" / str(seed),
            job=job,
            config=config(seed=seed),
            result=result(0.5 + 0.1 * seed, 400, split=reported),
        )
    write(folder, sweep={"report": report, "jobs": []})


def test_a_sweep_file_chooses_what_its_report_shows(tmp_path):
    asked = {
        "title": "Mine", "question": "Why?", "plots": [],
        "tables": [{"metric": "eval/test/loss", "rows": "dataset", "columns": "model",
                    "where": {"stage": "final"}, "title": "Losses"}],
    }  # fmt: skip
    small_sweep(tmp_path, asked)
    assert main(["report", str(tmp_path)]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert text.startswith("# Mine\n\nWhy?\n\n2 runs: 2 finished.")
    # 12.706, the quantile of t with one degree of freedom, times 0.0707 / sqrt(2) is 0.6353; the
    # 4,000 draws give 0.6353 +- 0.001.
    assert table(text, "Losses")[2] == ["x", "0.7500 [0.1147, 1.3853]"]
    assert not list((tmp_path / "report").glob("plot-*"))
    assert main(["report", str(tmp_path), "--title=Other"]) == 0
    assert (tmp_path / "report" / "report.md").read_text().startswith("# Other\n")


def test_a_metric_of_the_sweep_file_may_be_missing_while_jobs_are_unfinished(
    tmp_path, capsys, caplog
):
    first, second = (tmp_path / "jobs" / name for name in ("first", "second"))
    report = {"tables": [{"metric": "eval/test/accuracy_top1"}, {"metric": "eval/dev/loss"}]}
    write(tmp_path, sweep={"jobs": ["first", "second"], "report": report})
    write(first, job={"name": "first"}, config=config(), result=result(0.5, 400))
    write(second, job={"name": "second"}, config=config())
    assert main(["report", str(tmp_path)]) == 0
    assert "left out while runs are missing: metric=eval/dev/loss" in caplog.text
    assert "50.00" in (tmp_path / "report" / "report.md").read_text()
    write(second, result=result(0.5, 400))
    capsys.readouterr()
    assert main(["report", str(tmp_path)]) == 2
    assert "metric=eval/dev/loss: no run has such a metric" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("report", "word"),
    [
        ({"tabels": []}, "did you mean 'tables'?"),
        ({"tables": [{"rows": "model"}]}, "tables[0]: no 'metric'"),
        ({"plots": [3]}, "plots[0] is 3"),
        ({"plots": 3}, "'plots' is 3"),
        ([], ""),
    ],
)
def test_a_wrong_report_in_a_sweep_file_is_a_one_line_error(tmp_path, capsys, report, word):
    small_sweep(tmp_path, report)
    assert main(["report", str(tmp_path)]) == (2 if report else 0)
    err = capsys.readouterr().err
    assert word in err
    assert len(err.splitlines()) == bool(report)


@pytest.mark.parametrize(("reported", "warned"), [("test", 0), ("dev", 1)])
def test_selecting_on_the_reported_split_is_marked(tmp_path, reported, warned):
    small_sweep(tmp_path, {}, reported)
    assert main(["report", str(tmp_path)]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert text.count("(also reported!)") == warned
    rows = table(text, "Selected settings")
    assert dict(zip(rows[0], rows[2], strict=True))["selected"] == (
        "lr=1 (edge of the grid: lr=1 is the smallest of 2)"
    )


def test_a_choice_among_equal_scores_is_marked_in_place_of_the_edge(tmp_path):
    small_sweep(tmp_path, {}, other=0.5)
    assert main(["report", str(tmp_path)]) == 0
    rows = table((tmp_path / "report" / "report.md").read_text(), "Selected settings")
    selected = dict(zip(rows[0], rows[2], strict=True))["selected"]
    assert selected == "lr=1 (the first of 2 with this score)"


def test_runs_that_measured_another_split_only_are_named(tmp_path):
    write(tmp_path / "a", config=config(), result=result(0.9, 400))
    write(tmp_path / "b", config=config(seed=1), result=result(0.8, 400, split="val"))
    assert main(["report", str(tmp_path)]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert "Not in the table, because they were not evaluated on test: b." in text


def test_runs_beside_the_final_ones_of_a_sweep_are_named(tmp_path):
    small_sweep(tmp_path / "sweep", {})
    put_candidate(tmp_path / "sweep", 1, 0.5)
    write(tmp_path / "alone", config=config(model="ViT-B/16"), result=result(0.9, 400))
    assert main(["report", str(tmp_path)]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    sentence = "Not in the table, because they are not final runs of a sweep: alone."
    assert text.count(sentence) == 1
    # Nothing is missing from the table of a sweep alone, or from one that was asked for.
    assert main(["report", str(tmp_path / "sweep")]) == 0
    assert "Not in the table" not in (tmp_path / "sweep" / "report" / "report.md").read_text()
    asked = "--table=metric=eval/test/accuracy_top1,where.stage=final"
    assert main(["report", str(tmp_path), asked]) == 0
    assert "Not in the table" not in (tmp_path / "report" / "report.md").read_text()


def test_a_table_keeps_its_first_column_of_data_on_a_narrow_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for letter in "ab":
        name = letter * 74
        write(tmp_path / letter, job={"name": name}, config=config(), result=result(0.5, 400))
    assert main(["report", str(tmp_path), "--table=rows=name,metric=eval/test/loss"]) == 0
    assert "cifar10" in capsys.readouterr().out


def put_candidate(folder, rate, score):
    job = {"name": f"search/a/lr={rate}", "stage": "search"}
    figures = {"step": 1, "eval/dev/accuracy_top1": score}
    write(folder / "jobs" / job["name"], job=job, config=config(rate=rate), result=figures)


def test_better_candidates_in_several_folders_are_found(tmp_path):
    """The selection a; a/b, another one, has a better candidate, which is not one of a's."""
    names = ["search/a/x/lr=1", "search/a/y/lr=2", "search/a/b/lr=4"]
    selection = {"metric": "eval/dev/accuracy_top1", "mode": "max", "chosen": names[0],
                 "score": 0.5, "candidates": [[names[0], 0.5], [names[1], 0.25]]}  # fmt: skip
    final = {"name": "final/a/seed0", "stage": "final", "selection": selection}
    write(tmp_path / "jobs" / final["name"], job=final, config=config(), result=result(0.5, 400))
    for name, score in zip(names, (0.5, 0.75, 0.9), strict=True):
        figures = {"step": 1, "eval/dev/accuracy_top1": score}
        job = {"name": name, "stage": "search"}
        write(tmp_path / "jobs" / name, job=job, config=config(), result=figures)
    jobs = [{"name": name} for name in names] + [{"name": "final/a/seed0", "needs": names[:2]}]
    write(tmp_path, sweep={"jobs": jobs})
    assert main(["report", str(tmp_path)]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert "older than its candidates: y/lr=2 has 0.75" in text


def test_a_selection_that_is_older_than_its_candidates_is_named(tmp_path, caplog):
    small_sweep(tmp_path, {})
    for rate, score in ((1, 0.5), (2, 0.25), (4, 0.75)):
        put_candidate(tmp_path, rate, score)
    assert main(["report", str(tmp_path)]) == 0
    rows = table((tmp_path / "report" / "report.md").read_text(), "Selected settings")
    selected = dict(zip(rows[0], rows[2], strict=True))["selected"]
    edge = "edge of the grid: lr=1 is the smallest of 2"
    assert selected == f"lr=1 (older than its candidates: lr=4 has 0.75; {edge})"
    assert "lr=4 has 0.75; run the sweep again" in caplog.text
    # Not once it is removed from the sweep.
    names = ["search/a/lr=1", "search/a/lr=2", "final/0", "final/1"]
    write(tmp_path, sweep={"jobs": names})
    assert main(["report", str(tmp_path)]) == 0
    rows = table((tmp_path / "report" / "report.md").read_text(), "Selected settings")
    assert dict(zip(rows[0], rows[2], strict=True))["selected"] == (
        "lr=1 (edge of the grid: lr=1 is the smallest of 2)"
    )
    # A table of a metric that only the candidates have shows them.
    asked = "--table=rows=optimizer.learning_rate,columns=dataset,metric=eval/dev/accuracy_top1"
    assert main(["report", str(tmp_path), asked]) == 0
    rows = table((tmp_path / "report" / "report.md").read_text(), "Top-1 accuracy, dev")
    assert [row[0] for row in rows[2:5]] == ["1", "2", "4"]
    # So does a plot, and a table of the candidates where the final runs have the metric, too.
    assert main(["report", str(tmp_path), "--plot=x=name,y=eval/dev/accuracy_top1"]) == 0
    figures = result(0.5, 400) | {"eval/dev/accuracy_top1": 0.9}
    write(tmp_path / "jobs" / "final" / "0", result=figures)
    assert main(["report", str(tmp_path), f"{asked},where.stage=search"]) == 0
    rows = table((tmp_path / "report" / "report.md").read_text(), "Top-1 accuracy, dev")
    assert [row[:2] for row in rows[2:5]] == [["1", "50.00"], ["2", "25.00"], ["4", "**75.00**"]]


WRONG = {
    ("--table", "metric=eval/test/acuracy_top1"): "did you mean 'eval/test/accuracy_top1'?",
    ("--table", "metric=accuracy"): "did you mean 'eval/test/accuracy_top1'?",
    ("--table", "metric=eval/test/loss,rows=modle"): "did you mean 'model'?",
    ("--table", "metric=eval/test/loss,row=model"): "did you mean 'rows'?",
    ("--table", "rows=model"): "no 'metric'",
    ("--plot", "x=shot,y=fewshot/{dataset}/{shots}_shot/l2"): "did you mean 'shots'?",
    ("--plot", "x=seed,y=eval/test/loss,panel=daataset"): "did you mean 'dataset'?",
    ("--plot", "y=eval/test/loss"): "no 'x'",
    ("--table", "metric=eval/test/loss,where.model=ViT"): "did you mean 'ViT-Mini/4'?",
    ("--into", "no_such_page.md"): "is not a file",
    ("--config.seed=1", "--title=x"): "no --config arguments",
}


@pytest.mark.parametrize("wrong", WRONG, ids=" ".join)
def test_wrong_arguments_are_one_line_errors(sweep, tmp_path, capsys, wrong):
    runs = [str(sweep / "jobs" / "fewshot"), str(sweep / "jobs" / "final")]
    assert main(["report", *runs, *wrong, f"--output={tmp_path / 'out'}"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert WRONG[wrong] in lines[0]
    assert not (tmp_path / "out").exists()


def test_a_single_run_gets_a_report(tmp_path):
    run = tmp_path / "alone"
    write(run, config=config(), result=result(0.5, 400), env={})
    assert main(["report", str(run)]) == 0
    text = (run / "report" / "report.md").read_text()
    assert "1 run: 1 finished." in text
    assert table(text, "Top-1 accuracy, test")[2] == ["ViT-Mini/4", "50.00 [45.63, 54.37]"]


@pytest.mark.parametrize("content", ["{}", "[]", "3", "", "[1]", "null", "[" * 100_000])
def test_a_damaged_result_counts_as_unfinished_with_a_warning(tmp_path, content, caplog, capsys):
    for seed in (0, 1):
        write(tmp_path / f"{seed}", config=config(seed=seed), result=result(0.5, 400))
    (tmp_path / "1" / "result.json").write_text(content)
    assert main(["report", str(tmp_path)]) == 0
    assert f"{tmp_path / '1'}: result.json " in caplog.text
    assert "2 runs: 1 finished, 1 not started." in capsys.readouterr().out


@pytest.mark.parametrize(
    "damaged",
    [
        {"result.json": {"step": 400, "seconds": 3}},
        {"result.json": {"step": "many"}},
        {"job.json": {"labels": [1]}},
        {"classes.json": {"names": 7}},
        {"env.json": {"device_kind": "cpu", "host_count": "two"}},
        {".sweep/attempt.json": {"pid": "x", "started": []}},
        {"config.json": {"model": 3, "data": [], "seed": {}}},
    ],
)
def test_one_run_with_wrong_values_does_not_end_a_report(tmp_path, damaged, capsys):
    for seed in (0, 1):
        write(tmp_path / f"{seed}", config=config(seed=seed), result=result(0.5, 400))
    ((name, content),) = damaged.items()
    (tmp_path / "1" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "1" / name).write_text(json.dumps(content))
    assert main(["report", str(tmp_path)]) == 0
    assert "finished" in capsys.readouterr().out


def test_a_column_that_only_damaged_files_may_have_is_not_called_unknown(tmp_path, capsys, caplog):
    write(tmp_path / "run", config=config(), result=result(0.5, 400))
    (tmp_path / "run" / "config.json").write_text("{")
    rows = "rows=optimizer.learning_rate,metric=eval/test/accuracy_top1"
    assert main(["report", str(tmp_path / "run"), f"--table={rows}"]) == 2
    assert "config.json is damaged" in caplog.text
    line = "error: rows=optimizer.learning_rate: only runs with damaged files may have it (run);"
    assert line in capsys.readouterr().err


def test_runs_that_are_left_out_are_counted(tmp_path, capsys, caplog):
    for seed in (0, 1):
        write(tmp_path / f"{seed}", config=config(seed=seed), result=result(0.5, 400))
    (tmp_path / "1" / "result.json").write_text('{"step": [400]}')
    assert main(["report", str(tmp_path)]) == 0
    assert "1 run: 1 finished, 1 left out because of damaged files." in capsys.readouterr().out
    assert f"{tmp_path / '1'} is left out: its files have wrong values" in caplog.text
    assert main(["report", str(tmp_path / "1")]) == 2
    assert "error: no run can be read: there are damaged files in " in capsys.readouterr().err


def test_a_report_loads_nothing_and_does_not_show_where_its_runs_were_stored(report):
    page = (report / "report.html").read_text()
    assert not re.search(r"https?:|@import|<link|src=|url\((?!#)", page)
    assert '"hostname"' not in page
    for name in ("runs.csv", "tables.csv", "tables.tex", "report.md", "report.html"):
        assert "secret" not in (report / name).read_text(), name
    rows = csv.DictReader((report / "runs.csv").read_text().splitlines())
    assert all(row["folder"].startswith(("transfer/jobs/", "jobs/")) for row in rows)
