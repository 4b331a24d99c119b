"""experiments/scaling: its runs."""

from runpy import run_path

import pytest


@pytest.fixture
def sweep():
    sweep = run_path("experiments/scaling/sweep.py")
    for scale in ("small", "gpu"):
        rates = {task: dict.fromkeys(sweep["FAMILIES"], 2e-3) for task in sweep["TASKS"]}
        sweep["RATES"][scale].update(rates)
    return sweep


def test_rates_are_chosen_by_the_smallest_loss(plan_of):
    jobs = plan_of("scaling", "small,rates").jobs
    assert len(jobs) == 3 * 3 * 5
    assert {j.config.train_examples for j in jobs.values()} == {12_000}
    assert {j.config.model.name for j in jobs.values()} == {
        "ViT-Nano/4",
        "R+ViT-Nano/4",
        "BiT-R-Nano",
    }
    assert all(s.mode == "min" for s in run_path("experiments/scaling/sweep.py")["get_sweep"](""))


def test_the_main_runs_are_sizes_by_budgets_by_families_by_tasks(sweep):
    jobs = [*sweep["get_sweep"]("small,main")]
    assert len(jobs) == len({job.name for job in jobs}) == 4 * 5 * 3 * 3
    assert len([*sweep["get_sweep"]("gpu,main")]) == 3 * len(jobs)
    rates = {job.labels["model"]: job.overrides["optimizer.learning_rate"] for job in jobs}
    assert (rates["ViT-Pico/4"], rates["ViT-Mini/4"]) == (4e-3, 5e-4)
    assert rates["BiT-R-Mini"] == pytest.approx(2e-3 * 6 / 32)


def test_the_check_tries_half_and_twice_the_carried_rates(sweep):
    selections = [*sweep["get_sweep"]("small,check")]
    assert len(selections) == 3 * 3 * 2
    tried = [job.overrides["optimizer.learning_rate"] for job in selections[0].candidates]
    assert tried == [2e-3, 4e-3, 8e-3]  # ViT-Pico/4
