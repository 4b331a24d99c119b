"""Scheduling, decided against an executor that runs nothing."""

import dataclasses
import json
from pathlib import Path

import pytest
from rich.console import Console

from vit_jax.errors import RunFolderError, SweepError
from vit_jax.run import environment
from vit_jax.run.find import find_runs
from vit_jax.run.folder import RunFolder
from vit_jax.run.job_folder import (
    Attempt,
    is_running,
    job_lock,
    read_attempt,
    read_progress,
    run_lock,
    write_attempt,
)
from vit_jax.run.status import RunStatus
from vit_jax.storage.lock import locked
from vit_jax.sweep import Job, Selection, vary
from vit_jax.sweep.executor import Executor
from vit_jax.sweep.plan import Plan
from vit_jax.sweep.scheduler import Scheduler
from vit_jax.sweep.selection import select_best
from vit_jax.sweep.state import JobStatus, open_sweep, read_state
from vit_jax.sweep.sweep_file import Sweep
from vit_jax.sweep.table import job_table, read_jobs, summary, sweep_eta_s

TINY = str(Path(__file__).parents[1] / "e2e" / "tiny.py")
DEV = {"data.train_split": "train[:80%]", "evaluation.splits": {"dev": "train[80%:]"}}
TEST = {"data.train_split": "train", "evaluation.splits": {"test": "test"}}
METRIC = "eval/dev/accuracy_top1"
SEARCH = [f"search/pets/learning_rate={rate}" for rate in ("0.001", "0.02", "0.03")]
FINAL = ["final/pets/seed0", "final/pets/seed2"]
ALL = ["pretrain", *SEARCH, *FINAL]


def selection(**options):
    candidates = [
        Job(TINY, {**DEV, **rate, "init_from": "job:pretrain"})
        for rate in vary("optimizer.learning_rate", [0.001, 0.02, 0.03])
    ]
    options = {"metric": METRIC, "seeds": (0, 2), "final_overrides": TEST, **options}
    return Selection("pets", candidates, **options)


class FakeExecutor(Executor):
    """Ends a job at the second poll after its start.

    An outcome is an exit code, "cancelled", "out of memory", "bad data", or None for a result.
    """

    poll_s = 0.0

    def __init__(self, at_once=None, outcomes=None):
        super().__init__(Path(), at_once, {})
        self.outcomes = outcomes or {}
        self.submitted, self.most, self.alive, self.ends = [], 0, {}, {}

    def submit(self, job):
        self.submitted.append(job.name)
        self.alive[job.name] = 0
        self.most = max(self.most, len(self.alive))

    def running(self, jobs):
        found = {}
        for job in jobs:
            if job.name not in self.alive:
                continue
            self.alive[job.name] += 1
            if self.alive[job.name] > 1 and self.end(job):
                del self.alive[job.name]
            else:
                found[job.name] = "running"
        return found

    def end(self, job):
        outcomes = self.outcomes.get(job.name, [])
        outcome = self.ends[job.name] = outcomes.pop(0) if outcomes else None
        if outcome == "hold":
            return False
        before = read_attempt(job.folder)
        number = before.number + 1 if before else 1
        code = outcome if isinstance(outcome, int) else 0 if outcome is None else 75
        error = "no folder PHOTOS" if outcome == "bad data" else None
        attempt = Attempt(number, "fake", "7", "host", 8, 0, 1.0, 2.0, 2 if error else code)
        write_attempt(job.folder, dataclasses.replace(attempt, data_error=error))
        if outcome is None:
            rate = job.job.overrides.get("optimizer.learning_rate", 0)
            figures = {METRIC: 1 - abs(rate - 0.01), "eval/test/accuracy_top1": 0.5}
            figures["eval/test/accuracy_top1"] += 0.1 * job.job.overrides.get("seed", 0)
            job.result.write_text(json.dumps({"step": 5, "wall_time_s": 1.0, **figures}))
        return True

    def stop(self, jobs):
        for job in jobs:
            self.outcomes[job.name] = [75]

    def final_state(self, job):
        states = {"cancelled": "CANCELLED by 0", "out of memory": "OUT_OF_MEMORY"}
        return states.get(self.ends[job.name])


class Run:
    """One launch of a sweep."""

    def __init__(
        self, folder, executor=None, *, entries=None, retry_failed=False, stop=None, new_code=False
    ):
        entries = entries or (Job(TINY, name="pretrain"), selection())
        self.said, self.executor = [], executor or FakeExecutor()
        self.plan = Plan(Sweep("s.py", entries), folder, new_code=new_code)
        open_sweep(self.plan, self.said.append)
        shown = []
        scheduler = Scheduler(
            self.plan,
            self.executor,
            self.said.append,
            lambda jobs: shown.append(0),
            lambda: stop is not None and len(shown) >= stop,
        )
        self.code = scheduler.run(retry_failed=retry_failed)
        self.jobs = list(scheduler.jobs.values())

    @property
    def states(self):
        return {job.name: job.state for job in self.jobs}

    @property
    def notes(self):
        return {job.name: job.note for job in self.jobs}


def test_jobs_run_in_order_and_once_and_the_best_candidate_is_repeated(tmp_path):
    run = Run(tmp_path, FakeExecutor(at_once=2))
    assert (run.code, run.executor.submitted, run.executor.most) == (0, ALL, 2)
    edge = "learning_rate=0.001 is the smallest of 3 values that were tried; try one beyond it"
    assert run.said == [f"pets: selected {SEARCH[0]} of 3 by {METRIC} 0.9910", f"pets: {edge}"]
    assert summary(run.jobs) == "6 finished"
    record = json.loads((tmp_path / "jobs" / FINAL[1] / "job.json").read_text())
    assert (record["stage"], record["needs"]) == ("final", ["pretrain", *SEARCH])
    assert record["overrides"] == {
        "optimizer.learning_rate": 0.001,
        "init_from": f"{tmp_path}/jobs/pretrain",
        **TEST,
        "seed": 2,
    }
    scores = [0.991, 0.99, 0.98]
    assert record["selection"] == {
        "metric": METRIC,
        "mode": "max",
        "split": "dev",
        "chosen": SEARCH[0],
        "score": 0.991,
        "candidates": [list(pair) for pair in zip(SEARCH, scores, strict=True)],
    }
    sweep = json.loads((tmp_path / "sweep.json").read_text())
    assert [job["name"] for job in sweep["jobs"]] == ALL
    assert Run(tmp_path).executor.submitted == []


def test_a_choice_among_equal_scores_is_said_in_place_of_the_edge_of_the_grid(tmp_path):
    candidates = [Job(TINY, {**DEV, **one}) for one in vary("optimizer.weight_decay", [0.1, 0.2])]
    run = Run(tmp_path, entries=(Selection("pets", candidates, METRIC, final_overrides=TEST),))
    chosen = "search/pets/weight_decay=0.1"
    equal = f"by {METRIC} 0.9900, the first of 2 with this score"
    assert run.said == [f"pets: selected {chosen} of 2 {equal}"]


def test_an_error_of_the_data_stops_the_jobs_that_share_its_data_section(tmp_path):
    alike = [Job(TINY, {"seed": seed}, name=f"a{seed}") for seed in range(3)]
    other = Job(TINY, {"data.train_split": "train[:50%]"}, name="other")
    executor = FakeExecutor(at_once=2, outcomes={"a0": ["bad data"], "a1": ["hold"] * 99})
    run = Run(tmp_path, executor, entries=(*alike, other))
    assert (run.code, executor.submitted) == (1, ["a0", "a1", "other"])
    assert run.states == {"a0": "failed", "a1": "blocked", "a2": "blocked", "other": "finished"}
    assert run.notes["a2"] == "has the data that ended 'a0'"
    said = "a0: jobs with the same data are stopped: no folder PHOTOS"
    assert run.said.count(said) == 1
    assert Run(tmp_path, entries=(*alike, other)).executor.submitted == []
    again = Run(tmp_path, entries=(*alike, other), retry_failed=True)
    assert (again.code, again.executor.submitted) == (0, ["a0", "a1", "a2"])


def test_new_labels_are_recorded_for_finished_jobs(tmp_path):
    assert Run(tmp_path).executor.most == 3  # Without a limit, all ready jobs run at once.
    named = {"model": "tiny"}
    entries = (Job(TINY, name="pretrain", labels=named), selection(labels=named))
    assert Run(tmp_path, entries=entries).executor.submitted == []
    for name in ALL:
        record = json.loads((tmp_path / "jobs" / name / "job.json").read_text())
        assert record["labels"] == named
        assert (record["selection"] is not None) == (name in FINAL)


def test_a_job_keeps_its_devices_until_its_process_has_ended(tmp_path):
    class Lingering(FakeExecutor):
        def end(self, job):
            has_result = job.result.exists()
            super().end(job)
            return has_result

    run = Run(tmp_path, Lingering(at_once=1))
    assert (run.code, run.executor.submitted, run.executor.most) == (0, ALL, 1)


def test_a_failed_job_blocks_its_dependents_and_runs_again_only_with_retry_failed(tmp_path):
    run = Run(tmp_path, FakeExecutor(outcomes={SEARCH[1]: [2]}))
    assert (run.code, run.executor.submitted) == (1, ALL[:4])
    assert run.notes[SEARCH[1]] == "exit code 2"
    assert {run.notes[name] for name in FINAL} == {f"needs failed '{SEARCH[1]}'"}
    assert run.states[FINAL[0]] == "blocked"
    again = Run(tmp_path)
    assert (again.code, again.executor.submitted) == (1, [])
    failing = FakeExecutor(outcomes={SEARCH[1]: [2]})
    assert Run(tmp_path, failing, retry_failed=True).executor.submitted == [SEARCH[1]]  # Once.
    retry = Run(tmp_path, retry_failed=True)
    assert (retry.code, retry.executor.submitted) == (0, [SEARCH[1], *FINAL])


def test_failed_candidates_can_be_left_out(tmp_path):
    entries = (Job(TINY, name="pretrain"), selection(on_failed="skip"))
    run = Run(tmp_path, FakeExecutor(outcomes={SEARCH[0]: [1]}), entries=entries)
    assert run.states[FINAL[0]] == "finished"
    assert run.said == [f"pets: selected {SEARCH[1]} of 3 by {METRIC} 0.9900"]
    assert run.code == 1


def test_a_selection_without_a_score_fails_its_final_runs(tmp_path):
    chosen = selection(metric="eval/dev/loss", mode="min")
    run = Run(tmp_path, entries=(Job(TINY, name="pretrain"), chosen))
    assert (run.code, run.states[FINAL[0]]) == (1, "failed")
    assert "no candidate has a finite 'eval/dev/loss'" in run.notes[FINAL[0]]
    assert len(run.said) == 1


@pytest.mark.parametrize("code", [75, 76, -15])
def test_an_interrupted_job_is_restarted(tmp_path, code):
    run = Run(tmp_path, FakeExecutor(outcomes={"pretrain": [code]}))
    assert (run.code, run.executor.submitted) == (0, ["pretrain", *ALL])
    assert run.said[0] == "pretrain: stopped, resumes"


def test_a_job_that_ends_four_times_without_progress_fails(tmp_path):
    run = Run(tmp_path, FakeExecutor(outcomes={"pretrain": [75] * 9}))
    assert (run.code, run.executor.submitted) == (1, ["pretrain"] * 4)
    assert run.notes["pretrain"] == "ended 4 times without progress"
    assert Run(tmp_path).executor.submitted == []


def test_a_job_that_makes_progress_is_restarted_any_number_of_times(tmp_path):
    class Progressing(FakeExecutor):
        def submit(self, job):
            super().submit(job)
            with (job.folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": len(self.submitted)}) + "\n")

    run = Run(tmp_path, Progressing(outcomes={"pretrain": [75] * 9}))
    assert (run.code, run.executor.submitted) == (0, ["pretrain"] * 9 + ALL)


def test_a_job_cancelled_on_the_cluster_waits_for_the_next_launch(tmp_path):
    run = Run(tmp_path, FakeExecutor(outcomes={SEARCH[0]: ["cancelled"]}))
    assert (run.code, run.executor.submitted) == (75, ALL[:4])
    assert run.said == [f"{SEARCH[0]}: cancelled on the cluster; run the same command to resume"]
    assert Run(tmp_path).executor.submitted == [SEARCH[0], *FINAL]


@pytest.mark.parametrize(
    ("outcome", "note"),
    [("out of memory", "out of memory"), (-9, "killed by signal 9"),
     (0, "ended without a result.json")],
)  # fmt: skip
def test_a_failed_job_has_its_reason(tmp_path, outcome, note):
    run = Run(tmp_path, FakeExecutor(outcomes={"pretrain": [outcome]}))
    assert (run.code, run.notes["pretrain"]) == (1, note)


def test_a_stopped_sweep_lets_jobs_save_and_resumes(tmp_path):
    executor = FakeExecutor(outcomes={SEARCH[0]: ["hold"] * 99})
    run = Run(tmp_path, executor, stop=5)
    assert (run.code, executor.alive) == (75, {})
    assert run.states[SEARCH[0]] == "stopped"
    assert FINAL[0] not in executor.submitted
    again = Run(tmp_path)
    assert again.code == 0
    assert again.executor.submitted[0] == SEARCH[0]


def test_jobs_of_an_earlier_launcher_are_watched_and_not_started(tmp_path):
    executor = FakeExecutor(at_once=1)
    executor.alive["pretrain"] = 0
    (tmp_path / "jobs/pretrain").mkdir(parents=True)
    run = Run(tmp_path, executor)
    assert (run.code, executor.submitted) == (0, ALL[1:])
    assert run.said[0] == "pretrain: started by an earlier launcher"


def test_a_new_candidate_that_loses_is_recorded_in_the_final_runs(tmp_path):
    """In the same launch: reports tell the edge of the grid by this record."""
    few = selection()
    few = dataclasses.replace(few, candidates=few.candidates[:2])
    assert Run(tmp_path, entries=(Job(TINY, name="pretrain"), few)).code == 0
    again = Run(tmp_path)
    assert (again.code, again.executor.submitted) == (0, [SEARCH[2]])
    for name in FINAL:
        record = json.loads((tmp_path / "jobs" / name / "job.json").read_text())
        assert [candidate for candidate, _ in record["selection"]["candidates"]] == SEARCH


def test_final_runs_of_an_earlier_selection_are_kept_aside_and_run_again(tmp_path):
    """With the job that used one of them. So the sweep goes on by itself."""
    shots = Job(None, command="fewshot", arguments=[f"job:{FINAL[0]}"], name="shots")
    entries = (Job(TINY, name="pretrain"), selection(), shots)
    assert Run(tmp_path, entries=entries).code == 0
    result = tmp_path / "jobs" / SEARCH[2] / "result.json"
    result.write_text(json.dumps({METRIC: 0.999}))
    old = (tmp_path / "jobs" / FINAL[0] / "job.json").read_bytes()
    again = Run(tmp_path, entries=entries)
    assert (again.code, again.executor.submitted) == (0, [*FINAL, "shots"])
    aside = tmp_path / "superseded"
    assert (aside / FINAL[0] / "job.json").read_bytes() == old
    assert (aside / "shots" / "result.json").is_file()
    reason = f"{FINAL[0]}: was of an earlier selection (optimizer.learning_rate: 0.001"
    assert any(line.startswith(reason) for line in again.said)
    assert f"shots: used {FINAL[0]}; it is kept as superseded/shots and run again" in again.said
    assert not [path for path in find_runs(tmp_path)[0] if "superseded" in path.parts]
    chosen = json.loads((tmp_path / "jobs" / FINAL[0] / "job.json").read_text())["selection"]
    assert chosen["chosen"] == SEARCH[2]
    assert Run(tmp_path, entries=entries).executor.submitted == []


def test_final_runs_of_seeds_that_were_removed_are_kept_aside_when_another_setting_wins(tmp_path):
    """Their pretraining may have been removed, too. With the same setting they stay."""
    own = {**TEST, "init_from": "job:start/seed{seed}"}
    starts = [Job(TINY, name=f"start/seed{seed}") for seed in (0, 2)]
    pretrain = Job(TINY, name="pretrain")
    all_of = (pretrain, *starts, selection(final_overrides=own))
    assert Run(tmp_path, entries=all_of).code == 0
    fewer = (pretrain, starts[0], selection(final_overrides=own, seeds=[0]))
    assert Run(tmp_path, entries=fewer).executor.submitted == []
    assert (tmp_path / "jobs" / FINAL[1] / "result.json").is_file()
    (tmp_path / "jobs" / SEARCH[2] / "result.json").write_text(json.dumps({METRIC: 0.999}))
    again = Run(tmp_path, entries=fewer)
    assert again.executor.submitted == FINAL[:1]
    assert again.said[-1].endswith(f"it is kept as superseded/{FINAL[1]}")
    assert not (tmp_path / "jobs" / FINAL[1]).exists()


def test_final_runs_with_other_overrides_are_kept_aside_unless_they_run(tmp_path):
    assert Run(tmp_path).code == 0
    pretrain = Job(TINY, name="pretrain")
    entries = (pretrain, selection(final_overrides={**TEST, "train_steps": 7}))
    with locked(run_lock(tmp_path / "jobs" / FINAL[0])):
        assert Run(tmp_path, entries=entries, stop=1).executor.submitted == []
    again = Run(tmp_path, entries=entries)
    assert again.executor.submitted == FINAL
    reason = f"{FINAL[0]}: was started with other settings (train_steps: "
    assert any(line.startswith(reason) for line in again.said)


def test_a_final_run_of_an_earlier_selection_that_still_runs_is_not_moved(tmp_path):
    assert Run(tmp_path).code == 0
    (tmp_path / "jobs" / SEARCH[2] / "result.json").write_text(json.dumps({METRIC: 0.999}))
    with locked(run_lock(tmp_path / "jobs" / FINAL[0])):
        waiting = Run(tmp_path, stop=1)
    assert waiting.executor.submitted == []
    assert (tmp_path / "jobs" / FINAL[0] / "result.json").is_file()
    assert Run(tmp_path).executor.submitted == FINAL


def test_the_folder_of_another_sweep_is_not_changed(tmp_path):
    Run(tmp_path)
    before = (tmp_path / "sweep.json").read_bytes()
    with pytest.raises(SweepError, match=r"belongs to s\.py, which shares no job with t\.py"):
        open_sweep(Plan(Sweep("t.py", (Job(TINY, name="other"),)), tmp_path), print)
    assert (tmp_path / "sweep.json").read_bytes() == before
    # A sweep that gains jobs is the same sweep.
    more = (Job(TINY, name="other"), Job(TINY, name="pretrain"))
    assert Run(tmp_path, entries=more).executor.submitted == ["other"]


def test_a_sweep_compares_its_code_once_before_its_first_job(tmp_path, monkeypatch):
    pretrain = Job(TINY, name="pretrain")
    other = Job(None, command="fewshot", arguments=["job:pretrain"], name="other")
    Run(tmp_path, entries=[pretrain])
    monkeypatch.setattr(environment, "hash_of_sources", lambda: "edited")
    before = (tmp_path / "sweep.json").read_bytes()
    with pytest.raises(RunFolderError, match="was last run with other code"):
        Run(tmp_path, entries=[pretrain, other])
    assert (tmp_path / "sweep.json").read_bytes() == before
    assert Run(tmp_path, entries=[pretrain]).executor.submitted == []  # All jobs are finished.
    more = Run(tmp_path, entries=[pretrain, other, Job(TINY, name="more")], new_code=True)
    assert sorted(more.executor.submitted) == ["more", "other"]
    assert "--new_code" in more.plan.jobs["more"].command()
    assert "--new_code" not in more.plan.jobs["other"].command()
    # A later launch passes it on as well: a job may have been stopped by the old code.
    later = Plan(Sweep("s.py", [pretrain]), tmp_path)
    assert "--new_code" in later.jobs["pretrain"].command()
    elsewhere = Plan(Sweep("s.py", [pretrain]), tmp_path / "other")
    assert "--new_code" not in elsewhere.jobs["pretrain"].command()


def scored(*values):
    return [(f"job{n}", v if v is None else {METRIC: v}) for n, v in enumerate(values)]


def test_the_first_of_the_best_is_selected_and_all_scores_are_recorded():
    made = select_best(selection(), scored(0.5, 0.7, 0.7, 0.6))
    assert (made["chosen"], made["score"], made["split"]) == ("job1", 0.7, "dev")
    assert made["candidates"] == [["job0", 0.5], ["job1", 0.7], ["job2", 0.7], ["job3", 0.6]]
    assert select_best(selection(mode="min"), scored(0.5, 0.2, 0.2))["chosen"] == "job1"


def test_failed_and_diverged_candidates_are_never_selected():
    made = select_best(selection(mode="min"), scored(None, float("nan"), 0.9))
    assert made["chosen"] == "job2"
    assert made["candidates"] == [["job0", None], ["job1", None], ["job2", 0.9]]
    with pytest.raises(SweepError, match=f"no candidate has a finite '{METRIC}'"):
        select_best(selection(), scored(None, float("inf")))
    with pytest.raises(SweepError, match="did you mean 'eval/dev/accuracy_top5'"):
        select_best(selection(), [("a", {"eval/dev/accuracy_top5": 1.0})])


def test_progress_is_read_from_the_ends_of_metrics_and_log(tmp_path):
    assert read_progress(tmp_path) == (0, None, {})
    rows = [json.dumps({"step": step, "train/loss": 0.5}) for step in range(1, 3000)]
    rows.insert(2990, json.dumps({"step": 2990, METRIC: 0.5}))
    rows.insert(2991, '{"step": "x"}')
    rows.insert(2992, "[" * 2000)
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows) + '\n{"step": 9999, "trai')
    (tmp_path / "log.txt").write_text("begins\nstep 2,999/4,000: loss 0.5\nlast words\n")
    assert read_progress(tmp_path) == (2999, 4000, {METRIC: 0.5})


def test_a_long_table_shows_failed_jobs_first(tmp_path):
    run = Run(tmp_path, FakeExecutor(outcomes={SEARCH[1]: [2]}))

    def rows(count):
        console = Console(width=140)
        with console.capture() as capture:
            console.print(job_table(run.jobs, count, read_jobs(run.jobs)))
        return [line.split() for line in capture.get().splitlines()[3:]]

    failed, blocked, more, *_ = rows(2)
    assert failed == [SEARCH[1], "0/240", "0:00:01", "failed:", "exit", "code", "2"]
    assert blocked[:3] == [FINAL[0], "0/240", "blocked:"]
    assert more == ["and", "4", "more"]
    assert rows(6)[0] == ["pretrain", "5/5", "dev", "0.9900", "0:00:01", "finished"]


def test_the_eta_of_a_sweep_by_hand(tmp_path):
    plan = Plan(Sweep("s.py", tuple(Job(TINY, name=name) for name in "abcd")), tmp_path)
    states = ("finished", "running", "ready", "failed")
    jobs = [JobStatus(plan.jobs[name], state) for name, state in zip("abcd", states, strict=True)]
    progress = {
        "a": RunStatus("finished", seconds=60.0),
        "b": RunStatus("running", eta_s=30.0),
        **{name: RunStatus("not started") for name in "cd"},
    }
    assert sweep_eta_s(jobs, progress, 1) == 90
    assert sweep_eta_s(jobs, progress, 2) == 45
    assert sweep_eta_s(jobs[1:3], progress, 1) is None  # Nothing says how long "c" will take.
    assert sweep_eta_s(jobs[:1], progress, 1) is None


def test_a_job_runs_while_its_process_or_its_run_holds_a_lock(tmp_path):
    job = Plan(Sweep("s.py", (Job(TINY),)), tmp_path).jobs["tiny"]
    assert not is_running(job.folder)
    for held in (lambda: locked(job_lock(job.folder)), lambda: RunFolder(job.folder, job.config)):
        with held():
            assert is_running(job.folder)
        assert not is_running(job.folder)


@pytest.mark.parametrize("content", ["{}", "[]", "3", ""])
def test_a_job_with_a_damaged_result_is_not_finished(tmp_path, caplog, content):
    plan = Plan(Sweep("s.py", (Job(TINY, name="one"),)), tmp_path)
    result = plan.jobs["one"].result
    result.parent.mkdir(parents=True)
    result.write_text(content)
    assert read_state(plan, {}, {}, print)["one"].state == "ready"
    assert f"{result} " in caplog.text
    assert "the job counts as unfinished; remove it" in caplog.text
    result.write_text('{"step": 4}')
    assert read_state(plan, {}, {}, print)["one"].state == "finished"
