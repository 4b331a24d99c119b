"""Few-shot evaluation by two processes, each with a device, finds what one with two finds."""

import json

import pytest
from many_processes import ROOT, Run

TINY = ROOT / "tests" / "e2e" / "tiny.py"
FEWSHOT = [
    "--config.train_steps=6", "--config.optimizer.schedule.warmup_steps=2",
    "--config.evaluation.splits.test=test", "--config.fewshot.datasets.numbers.name=digits",
    "--config.fewshot.datasets.numbers.crop=resize", "--config.fewshot.shots=(1,5)",
    "--config.fewshot.interval_steps=3", "--config.fewshot.batch_size=50",
    "--config.fewshot.datasets.larger.name=digits",
    "--config.fewshot.datasets.larger.image_size=12",
]  # fmt: skip


@pytest.mark.slow
def test_two_processes_get_the_results_of_one(tmp_path, digits_dir):
    results = []
    for count in (1, 2):
        run = Run(
            tmp_path / str(count), TINY, digits_dir, *FEWSHOT, count=count, devices=2 // count
        ).succeeds()
        results.append(json.loads((run.workdir / "result.json").read_text()))
    one, two = results
    names = [name for name in one if name.startswith("fewshot/")]
    assert sum(name.endswith("/accuracy_top1") for name in names) == 2 * 2
    for name in names:
        # Sums over devices are rounded otherwise: an example more or less, of 360.
        slack = 2 / 360 if "accuracy" in name else 0
        assert two[name] == pytest.approx(one[name], abs=slack), name
