"""Sweep files: expansion to jobs, checks, and printed commands."""

import contextlib
import json
from pathlib import Path

import pytest

from vit_jax.__main__ import main
from vit_jax.errors import ConfigError, SweepError
from vit_jax.sweep import Job, Selection, product, vary
from vit_jax.sweep.plan import Plan
from vit_jax.sweep.selection import select_best
from vit_jax.sweep.state import changed_settings
from vit_jax.sweep.sweep_file import Sweep, read_sweep

TINY = str(Path(__file__).parents[1] / "e2e" / "tiny.py")
DEV = {"data.train_split": "train[:80%]", "evaluation.splits": {"dev": "train[80%:]"}}
TEST = {"evaluation.splits": {"test": "test"}}


def plan(*entries, folder="/sweep"):
    return Plan(Sweep("s.py", entries), Path(folder))


def selection(settings, **options):
    return Selection("x", [(TINY, settings)], "eval/dev/loss", "min", **options)


def test_product_of_nothing_is_one_run_and_a_key_must_be_in_one_list():
    rates = vary("optimizer.learning_rate", [0.1, 0.2])
    assert product() == [{}]
    assert len(product(rates, vary("seed", [1, 2]), [{"model.width": 8}])) == 4
    with pytest.raises(SweepError, match=r"two lists set 'optimizer\.learning_rate'"):
        product(rates, rates)


def test_derived_names_show_the_overrides_that_differ():
    runs = product(vary("optimizer.learning_rate", [1e-3, 3e-3]), vary("seed", [0, 1]))
    jobs = plan(*(Job(TINY, {**o, "train_steps": 5}) for o in runs)).jobs
    assert list(jobs) == [f"learning_rate={r},seed={s}" for r in (0.001, 0.003) for s in (0, 1)]
    # Two keys have the same last part: longer parts tell them apart.
    pairs = [{"optimizer.name": "adam", "data.name": "digits"},
             {"optimizer.name": "sgd", "data.name": "mnist"}]  # fmt: skip
    assert list(plan(*(Job(TINY, o) for o in pairs)).jobs) == [
        "optimizer.name=adam,data.name=digits",
        "optimizer.name=sgd,data.name=mnist",
    ]
    assert list(plan(Job(TINY)).jobs) == ["tiny"]


def test_jobs_as_command_lines():
    jobs = plan(
        Job(TINY, name="a"),
        Job(
            TINY,
            {"init_from": "job:a", "seed": 3, "ema_decay": None},
            name="b=1",
            arguments=["--deterministic", "--model=job:a", "job:a"],
        ),
        Job(None, command="fewshot", arguments=["job:b=1", "--dataset=digits"], name="shots"),
    ).jobs
    assert [job.needs for job in jobs.values()] == [(), ("a",), ("b=1",)]
    assert " ".join(jobs["b=1"].command("python")) == (
        f"python -m vit_jax train --config={TINY} --workdir=/sweep/jobs/b=1"
        " --config.init_from=/sweep/jobs/a --config.seed=3 --config.ema_decay=none"
        " --deterministic --model=/sweep/jobs/a /sweep/jobs/a"
    )
    assert " ".join(jobs["shots"].command("python")[3:]) == (
        "fewshot --workdir=/sweep/jobs/shots /sweep/jobs/b=1 --dataset=digits"
    )


def test_jobs_come_after_the_jobs_that_they_need():
    entries = [
        Job(TINY, {"init_from": "job:final/x/seed0"}, name="last"),
        selection({**DEV, "init_from": "job:first"}, seeds=[0], final_overrides=TEST),
        Job(TINY, name="first"),
    ]
    jobs = plan(*entries).jobs
    assert list(jobs) == ["first", "search/x/tiny", "final/x/seed0", "last"]
    assert jobs["final/x/seed0"].needs == ("first", "search/x/tiny")
    assert jobs["final/x/seed0"].awaited_selection is entries[1]
    assert [job.job.stage for job in jobs.values()] == [None, "search", "final", None]


def test_final_overrides_replace_the_selected_settings():
    candidates = [(TINY, {**DEV, "train_steps": 50, **o}) for o in vary("seed", [8, 9])]
    changes = {**TEST, "train_epochs": 2.0}
    laid = plan(
        Selection("x", candidates, "eval/dev/loss", "min", seeds=[1], final_overrides=changes)
    )
    jobs = laid.jobs_of_choice(laid.selections["x"], {"chosen": "search/x/seed=9"}, [1])
    job = jobs["final/x/seed1"]
    assert job.awaited_selection is None
    assert job.config.seed == 1
    assert (job.config.train_epochs, job.config.train_steps) == (2.0, None)
    assert "train_steps" not in job.job.overrides  # On a command line both would be an error.
    assert job.config.evaluation.splits == {"test": "test"}
    assert job.config.data.train_split == "train[:80%]"


def test_final_overrides_come_after_all_of_the_candidate():
    own = {"optimizer.schedule.decay": "linear", "optimizer.schedule": {"decay": "cosine"}}
    changes = {**TEST, "optimizer.schedule.decay": "constant"}
    laid = plan(selection({**DEV, **own}, seeds=[1], final_overrides=changes))
    jobs = laid.jobs_of_choice(laid.selections["x"], {"chosen": "search/x/tiny"}, [1])
    assert jobs["final/x/seed1"].config.optimizer.schedule.decay == "constant"


def test_a_final_run_can_start_from_weights_of_its_own_seed():
    first = [Job(TINY, {"seed": seed}, name=f"first/seed{seed}") for seed in (1, 2)]
    finals = {**TEST, "init_from": "job:first/seed{seed}"}
    tried = [(TINY, {**DEV, "init_from": "job:first/seed1"})]
    laid = plan(
        *first, Selection("x", tried, "eval/dev/loss", "min", seeds=[1, 2], final_overrides=finals)
    )
    for seed in (1, 2):
        job = laid.jobs[f"final/x/seed{seed}"]
        assert job.config.init_from == f"/sweep/jobs/first/seed{seed}"
        assert f"first/seed{seed}" in job.needs


@pytest.mark.parametrize(("key", "is_noted"), [("data.name", True), ("seed", False)])
def test_candidates_that_are_scored_on_different_data_are_named(key, is_noted, caplog):
    values = {"data.name": ("digits", "cifar10"), "seed": (1, 2)}[key]
    tried = [(TINY, {**DEV, **one}) for one in vary(key, values)]
    plan(Selection("x", tried, "eval/dev/loss", seeds=[]))
    words = "selection 'x' are scored on 'dev' of different data: cifar10 and digits"
    assert (words in caplog.text) == is_noted


@pytest.mark.parametrize(
    ("key", "values", "differs"),
    [
        ("loss.name", ("softmax_cross_entropy", "sigmoid_cross_entropy"), True),
        ("loss.label_smoothing", (0.0, 0.1), False),  # Evaluations have none.
        ("loss.mean_over_classes", (False, True), True),
    ],
)
def test_a_loss_selects_only_among_candidates_with_its_formula(key, values, differs):
    sigmoid = {"loss.name": "sigmoid_cross_entropy"} if "mean" in key else {}
    tried = [(TINY, {**DEV, **sigmoid, **one}) for one in vary(key, values)]
    plan(Selection("x", tried, "eval/dev/accuracy_top1", seeds=[]))
    expected = pytest.raises(SweepError, match=r"losses of several formulas: .*sigmoid.* and .*")
    with expected if differs else contextlib.nullcontext():
        plan(Selection("x", tried, "eval/dev/loss", seeds=[]))


def test_a_final_run_may_stop_early_on_the_split_of_the_selection():
    stopping = {"early_stopping.metric": "eval/dev/loss", "evaluation.interval_steps": 10}
    both = {**DEV, **stopping, "evaluation.final_splits": {"test": "test"}}
    laid = plan(selection(both, seeds=[0]))
    assert laid.jobs["final/x/seed0"].needs == ("search/x/tiny",)
    half = {"evaluation.splits": {"dev": "test[:50%]", "test": "test"},
            "evaluation.interval_steps": 10}  # fmt: skip
    with pytest.raises(SweepError, match="final runs report"):
        plan(selection(half, final_overrides={"early_stopping.metric": "eval/test/loss"}))
    with pytest.raises(SweepError, match="report 'dev'"):
        plan(selection(both, final_overrides={"early_stopping.metric": None}))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([(TINY, {"optimizer.lerning_rate": 1.0})], "unknown config key 'optimizer.lerning_rate'"),
        ([(TINY, {"seed": "one"})], "job 'tiny': 'seed' is 'one'"),
        ([("gone.py", {})], "job 'gone': no config file at gone.py"),
        ([(TINY, {"init_from": "job:pretrian"})], "no job has this name"),
        ([(TINY, {"seed": 1}), (TINY, {"seed": 1})], "two equal jobs are named 'tiny'"),
        ([Job(TINY, name="a"), Job(TINY, {"seed": 1}, name="a")], "two different jobs are named"),
        ([Job(TINY, name="a"), Job(TINY, {"seed": 1}, name="a/b")], "the folder of job 'a'"),
        ([Job(TINY, {"init_from": "job:b"}, name="a"), Job(TINY, {"init_from": "job:a"}, name="b")],
         "jobs need each other: 'a' -> 'b' -> 'a'"),
        ([selection({})], "a candidate does not evaluate 'dev'"),
        ([Selection("x", [(TINY, TEST)], "eval/test/loss", "min")], "selects on 'test' (test)"),
        ([Selection("x", [(TINY, DEV)], "eval/dev/loss", "max")],
         "selects the largest 'eval/dev/loss'; expected the smallest, which is the best"),
        ([Selection("x", [(TINY, DEV)], "eval/dev/accuracy_top1", "min")],
         "selects the smallest 'eval/dev/accuracy_top1'; expected the largest"),
        ([Selection("x", [(TINY, DEV)], "eval/dev/acuracy_top1")],
         "eval/dev/roc_auc, or eval/dev/loss; did you mean 'eval/dev/accuracy_top1'?"),
        ([Job(TINY, name="a"), Job(TINY, {"init_from": "job:a", "model.width": 32}, name="b")],
         "job 'b': its init_from job:a holds a"),
        ([selection({"evaluation.splits": {"dev": "test[:50%]"}}, final_overrides=TEST)],
         "report 'test' (test)"),
        ([selection(DEV)], "report 'dev'"),
        # Whether the last 20 % are among the first 90 examples is not known.
        ([selection(DEV, final_overrides={"evaluation.splits": {"mine": "train[:90]"}})],
         "report 'mine' (train[:90])"),
        ([selection({**DEV, "data.train_split": "train"}, final_overrides=TEST)],
         "and a candidate trains on 'train'"),
        ([selection({**DEV, "evaluation.splits": {"dev": "train[1000:]"}}, final_overrides=TEST)],
         "'train[:80%]': whether they share examples depends on the dataset's size; expected"),
        ([selection({**TEST, "evaluation.splits": {"dev": "all"}}, final_overrides=TEST)],
         "(all), and a candidate trains on"),
        ([selection(DEV, final_overrides={"sed": 1})],
         "job 'final/x/seed0': unknown config key 'sed'"),
        ([Selection("x", [(TINY, DEV)], "knn/pets/accuracy_top1", final_overrides=TEST)],
         "names no split"),
        ([Job(TINY), Job(TINY, {f"evaluation.splits.{name}": name * 40 for name in "abcdef"})],
         "characters"),
    ],
)  # fmt: skip
def test_a_wrong_sweep_is_refused_before_any_job_starts(entries, message):
    jobs = [Job(*entry) if isinstance(entry, tuple) else entry for entry in entries]
    with pytest.raises((SweepError, ConfigError)) as caught:
        plan(*jobs)
    assert message in str(caught.value)


def test_choose_on_test_allows_a_test_metric():
    laid = plan(Selection("x", [(TINY, TEST)], "eval/test/loss", "min", choose_on_test=True))
    assert [job.job.stage for job in laid.jobs.values()] == ["search", "final", "final", "final"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Selection("x", [], "eval/dev/loss"), "selection 'x' has no candidates"),
        (lambda: Selection("x", [(TINY, {})], "m", seeds=[1, 1]), "the seeds [1, 1]"),
        (lambda: Selection("x", ["a.py"], "m"), "has an entry of type str: 'a.py'"),
        (
            lambda: Selection("x", [(TINY, {}), (TINY, {})], "m"),
            "two candidates with the same name",
        ),
        (lambda: Selection("x", [Job(None, command="fewshot")], "m"), "that do not train"),
        (lambda: Job(TINY, {"init_from": Path("a")}), "JSON cannot hold (Object of type PosixPath"),
        (lambda: Job(None), "has the config None"),
        (lambda: Job(TINY, command="tran"), "did you mean 'train'?"),
        (lambda: Job(TINY, name="../a"), "is named '../a'"),
        (lambda: Job(TINY, name="a" * 400), "has a name of 400 characters; expected at most 200"),
    ],
)
def test_a_wrong_job_or_selection_is_refused_when_it_is_created(make, message):
    with pytest.raises(SweepError) as caught:
        make()
    assert message in str(caught.value)


GET = "def get_sweep():\n    "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "has no get_sweep"),
        (f"{GET}return []", "returned no jobs"),
        (f"{GET}return 3", "returned int"),
        (f"{GET}return ['a.py']", "has an entry of type str: 'a.py'"),
        (f"{GET}return [('a.py', ['seed=1'])]", "overrides ['seed=1']; expected a dict"),
        ("def get_sweep(arg):\n    return []", "needs an argument"),
        (f"{GET}yield 1 / 0", "line 2: ZeroDivisionError"),
        (f"{GET}yield 'a.py', {{}}\nREPORT = {{'titel': 'x'}}", "unknown config key 'titel'"),
        (f"{GET}yield 'a.py', {{}}\nREPORT = {{}}\ndef get_report():\n    return {{}}",
         "has REPORT and get_report; expected one of them"),
        (f"{GET}yield 'a.py', {{}}\ndef get_report():\n    return 'x'", "get_report of "),
    ],
)  # fmt: skip
def test_a_wrong_sweep_file_is_a_one_line_error(tmp_path, capsys, text, message):
    path = tmp_path / "s.py"
    path.write_text(text)
    assert main(["sweep", f"--sweep={path}", f"--workdir={tmp_path / 'w'}"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert message in line
    assert not (tmp_path / "w").exists()


def test_get_sweep_returns_a_list_or_yields(tmp_path):
    path = tmp_path / "s.py"
    path.write_text(
        "SLURM = {'nodes': 2}\nREPORT = {'title': 'T'}\n"
        "def get_sweep(arg='3'):\n    return [('a.py', {'seed': int(arg)})]\n"
    )
    sweep = read_sweep(f"{path}:7")
    assert sweep.entries == (Job("a.py", {"seed": 7}),)
    assert sweep.slurm == {"nodes": 2}
    assert sweep.report == {"title": "T"}
    path.write_text("def get_sweep():\n    yield 'a.py', {'seed': 3}\n")
    assert read_sweep(str(path)).entries == (Job("a.py", {"seed": 3}),)
    # get_report receives the argument too.
    path.write_text(
        "def get_sweep(arg='small'):\n    return [('a.py', {})]\n"
        "def get_report(arg='small'):\n    return {'title': arg, 'tables': [{'metric': arg}]}\n"
    )
    assert read_sweep(str(path)).report == {"title": "small", "tables": [{"metric": "small"}]}
    assert read_sweep(f"{path}:paper").report["title"] == "paper"


@pytest.fixture
def sweep_file(tmp_path):
    path = tmp_path / "s.py"
    path.write_text(
        "from vit_jax.sweep import Job, Selection\n"
        "def get_sweep(seed='1'):\n"
        f"    yield Job({TINY!r}, {{'seed': int(seed)}}, name='pre train'.replace(' ', '-'))\n"
        f"    yield Selection('x', [({TINY!r}, {{**{DEV!r}, 'init_from': 'job:pre-train'}})],\n"
        f"                    'eval/dev/loss', 'min', seeds=[4], final_overrides={TEST!r})\n"
    )
    return path


def run(capsys, *arguments):
    code = main(["sweep", *arguments])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err.splitlines()


def test_commands_are_printed_in_order_and_final_runs_after_the_selection(
    tmp_path, capsys, sweep_file
):
    workdir = tmp_path / "w"
    arguments = [f"--sweep={sweep_file}", f"--workdir={workdir}", "--executor=commands"]
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, [])
    python = f"python -m vit_jax train --config={TINY}"
    assert out == [
        "# pre-train",
        f"{python} --workdir={workdir}/jobs/pre-train --config.seed=1",
        "# search/x/tiny, after pre-train",
        f"{python} --workdir={workdir}/jobs/search/x/tiny '--config.data.train_split=train[:80%]'"
        """ '--config.evaluation.splits={'"'"'dev'"'"': '"'"'train[80%:]'"'"'}'"""
        f" --config.init_from={workdir}/jobs/pre-train",
        "# 1 final runs of 'x': run this command again when the 1 candidates are finished",
    ]
    assert json.loads((workdir / "jobs/search/x/tiny/job.json").read_text())["stage"] == "search"
    results = [workdir / "jobs" / name / "result.json" for name in ("pre-train", "search/x/tiny")]
    for path in results:
        path.write_text(json.dumps({"step": 400}))
    code, out, err = run(capsys, *arguments)
    assert (code, len(out), err) == (0, 1, [])
    assert out[0].startswith("# selection 'x': no candidate has a finite 'eval/dev/loss'; ")
    results[1].write_text(json.dumps({"step": 400, "eval/dev/loss": 0.25}))
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, [])
    assert out[:2] == [
        "# x: selected search/x/tiny of 1 by eval/dev/loss 0.2500",
        "# final/x/seed4",
    ]
    assert out[2].endswith("--config.seed=4")
    assert len(out) == 3


def test_a_finished_job_whose_settings_changed_is_an_error_in_one_line(
    tmp_path, capsys, sweep_file
):
    workdir = tmp_path / "w"
    more = [f"--workdir={workdir}", "--executor=commands"]
    assert run(capsys, f"--sweep={sweep_file}:1", *more)[0] == 0
    (workdir / "jobs/pre-train/result.json").write_text('{"step": 400}')
    assert run(capsys, f"--sweep={sweep_file}:1", *more)[0] == 0
    code, out, err = run(capsys, f"--sweep={sweep_file}:2", *more)
    assert (code, out, len(err)) == (2, [], 1)
    assert "job 'pre-train' is finished with other settings" in err[0]
    assert "(seed: 1 before, 2 now)" in err[0]


def begin(job):
    """Writes what a job that has begun leaves."""
    job.folder.mkdir(parents=True)
    (job.folder / "job.json").write_text(json.dumps(job.record("s.py")))
    (job.folder / "metrics.jsonl").touch()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"seed": 5}, "seed: 0 before, 5 now"), ({"data.data_dir": "/elsewhere"}, None)],
)
def test_settings_that_affect_the_result_must_not_change(tmp_path, changes, message):
    settings = {"data.name": "digits", "seed": 0}
    changed = plan(Job(TINY, {**settings, **changes}, name="a"), folder=tmp_path).jobs["a"]
    assert changed_settings(changed) is None  # It has not begun.
    begin(plan(Job(TINY, settings, name="a"), folder=tmp_path).jobs["a"])
    assert changed_settings(changed) == message


def test_editing_the_config_file_counts_as_changing_a_setting(tmp_path):
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "import runpy\n\n\ndef get_config():\n"
        f"    return {{**runpy.run_path({TINY!r})['get_config'](), 'train_steps': 5}}\n"
    )
    begin(plan(Job(str(recipe), name="a"), folder=tmp_path).jobs["a"])
    recipe.write_text(recipe.read_text().replace(": 5", ": 6"))
    changed = plan(Job(str(recipe), name="a"), folder=tmp_path).jobs["a"]
    assert changed_settings(changed) == "train_steps: 5 before, 6 now"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--executor=slrm"], "unknown executor 'slrm'; expected one of local, slurm, commands; "
                              "did you mean 'slurm'?"),
        (["--executor=slurm"], "--executor=slurm, but sbatch, srun, squeue, scontrol not found"),
        (["--executor=slurm", "--slurm.partition"], "'--slurm.partition'; expected --slurm.KEY="),
        (["--slurm.partition=a"], "--slurm.partition=a with --executor=local"),
        (["--at_once=0"], "'0' is not a positive whole number"),
        (["--config.seed=1"], "unknown argument '--config.seed=1'"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line_errors(
    tmp_path, capsys, monkeypatch, sweep_file, extra, message
):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, err = run(capsys, f"--sweep={sweep_file}", f"--workdir={tmp_path / 'w'}", *extra)
    assert (code, out, len(err)) == (2, [], 1)
    assert message in err[0]


@pytest.mark.parametrize(("metric", "chosen"), [("loss", "b"), ("accuracy_top1", "a")])
def test_a_selection_takes_the_better_direction_of_its_metric(metric, chosen):
    metric = f"eval/dev/{metric}"
    selection = Selection("x", [(TINY, DEV)], metric)
    results = [("a", {metric: 2.0}), ("b", {metric: 1.0})]
    assert select_best(selection, results)["chosen"] == chosen
