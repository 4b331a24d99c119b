import json

import pytest

from vit_jax.errors import SweepError
from vit_jax.sweep import Selection
from vit_jax.sweep.board import why_failed
from vit_jax.sweep.devices import gpu_shares, shares
from vit_jax.sweep.records import Attempt, Progress, is_locked, log_end, open_lock
from vit_jax.sweep.selection import choose

METRIC = "eval/dev/accuracy_top1"


def selection(mode="max"):
    return Selection("x", [("a.py", {"seed": 0})], METRIC, mode)


def scored(*values):
    return [(f"job{n}", v if v is None else {METRIC: v}) for n, v in enumerate(values)]


def test_the_first_of_the_best_is_chosen_and_all_scores_are_told():
    made = choose(selection(), scored(0.5, 0.7, 0.7, 0.6))
    assert (made["chosen"], made["score"], made["split"]) == ("job1", 0.7, "dev")
    assert made["candidates"] == [["job0", 0.5], ["job1", 0.7], ["job2", 0.7], ["job3", 0.6]]
    assert choose(selection("min"), scored(0.5, 0.2, 0.2))["chosen"] == "job1"


def test_what_failed_or_diverged_is_never_chosen():
    made = choose(selection("min"), scored(None, float("nan"), 0.9))
    assert made["chosen"] == "job2"
    assert made["candidates"] == [["job0", None], ["job1", None], ["job2", 0.9]]
    with pytest.raises(SweepError, match=f"no candidate has a finite '{METRIC}'"):
        choose(selection(), scored(None, float("inf")))
    with pytest.raises(SweepError, match="did you mean 'eval/dev/accuracy_top5'"):
        choose(selection(), [("a", {"eval/dev/accuracy_top5": 1.0})])


@pytest.mark.parametrize(
    ("code", "why"),
    [(75, None), (76, None), (-15, None), (2, "exit code 2"), (-9, "killed by signal 9"),
     (0, "ended without a result.json"), (None, None)],
)  # fmt: skip
def test_only_an_end_of_its_own_making_is_a_failure(code, why):
    ended = None if code is None else 2.0
    attempt = Attempt(1, "local", "7", "host", 8, 0, 1.0, ended=ended, exit_code=code)
    assert why_failed(attempt) == why


def test_progress_reads_whole_lines_once_and_starts_over_when_a_resumed_run_cut_them(tmp_path):
    path, progress = tmp_path / "metrics.jsonl", Progress(tmp_path)
    progress.update()
    assert progress.step == 0
    row = json.dumps({"step": 7, "eval/test/accuracy_top1": 0.5})
    path.write_text(f"{row}\n" + '{"step": 8, "trai')
    progress.update()
    assert (progress.step, progress.scores) == (7, {"eval/test/accuracy_top1": 0.5})
    with path.open("a") as file:
        file.write('n/loss": 1.0}\n')
    progress.update()
    assert progress.step == 8
    path.write_text('{"step": 3}\n')
    progress.update()
    assert progress.step == 3


def test_a_lock_is_held_until_its_file_is_closed(tmp_path):
    path = tmp_path / "below" / "lock"
    lock = open_lock(path)
    assert is_locked(path)
    assert open_lock(path) is None
    lock.close()
    assert not is_locked(path)


def test_the_end_of_a_log_is_its_last_lines(tmp_path):
    assert log_end(tmp_path) == []
    (tmp_path / "log.txt").write_text("x" * 9000 + "\n" + "\n".join(f"line {n}" for n in range(20)))
    assert log_end(tmp_path, 2) == ["line 18", "line 19"]


def test_gpus_are_dealt_out_and_shared_where_they_are_few(monkeypatch):
    parts = gpu_shares(["0", "1", "2"], 2)
    assert [p.environment for p in parts] == [
        {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1,2"}
    ]  # fmt: skip
    assert gpu_shares(["0", "1"], 4)[3].environment == {
        "CUDA_VISIBLE_DEVICES": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.45"
    }  # fmt: skip
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    # One job at a time sees what the launcher sees, whatever submitit hides from it.
    assert shares(1)[0].environment == {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert [s.environment["CUDA_VISIBLE_DEVICES"] for s in shares(2)] == ["4", "5"]


def test_cpu_cores_are_dealt_out(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3, 6})
    assert [(s.cores, s.words) for s in shares(2)] == [
        ((0, 1), "cores 0-1"),
        ((2, 3, 6), "cores 2,3,6"),
    ]
    assert shares(1)[0].cores == ()
