"""experiments/data_size: the runs of the paper, and the lead of the ResNet."""

import functools
import json
from pathlib import Path
from runpy import run_path

import pytest
from report.fake_runs import config, result, write

from vit_jax.errors import ConfigError
from vit_jax.report.frame import run_frame
from vit_jax.report.plots import plot_points
from vit_jax.report.requests import read_report
from vit_jax.report.runs import read_runs
from vit_jax.report.tables import score_table

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def plan(plan_of):
    return functools.partial(plan_of, "data_size")


def test_an_unknown_scale_is_a_one_line_error(plan):
    with pytest.raises(ConfigError, match="huge"):
        plan("huge")
    with pytest.raises(ConfigError, match=r"small with tuned.*imagenet,tuned"):
        plan("small,tuned")


@pytest.mark.parametrize("arg", ["small", "paper"])
def test_the_report_of_each_scale_finds_its_metrics(plan, tmp_path, arg):
    """Runs are made up: two models on two sizes, and what is fine-tuned from them."""
    laid = plan(arg)
    for name, job in laid.jobs.items():
        if job.job.stage == "final":
            figures = result(0.5, 400, examples=len(name)) | {
                f"eval/{split}/accuracy_top1": 0.5 for split in job.config.evaluation.all_splits
            }
            for dataset in job.config.fewshot.datasets:
                figures |= {
                    f"fewshot/{dataset}/{n}_shot/accuracy_top1": 0.4
                    for n in job.config.fewshot.shots
                }
            about = {"stage": "final", "labels": dict(job.job.labels), "command": "train"}
            write(tmp_path / name, result=figures, config=job.config.to_mapping(), job=about)
    frame = run_frame(read_runs([tmp_path]).runs)
    request = read_report(laid.sweep.report, "get_report")
    assert len(request.plots) == 1
    assert all(len(plot_points(plot, frame)[0]) for plot in request.plots)
    tables = [score_table(table, frame) for table in request.tables]
    assert [table.title for table in tables] == [plot.title for plot in request.plots]


@pytest.fixture(scope="module")
def gap():
    return run_path(str(ROOT / "experiments" / "data_size" / "gap.py"))


def write_runs(folder):
    """Writes runs of 500 and 8,000 images, in which the ViT is known points behind."""
    models = {"ViT": "ViT-Pico/4", "hybrid": "R+ViT-Pico/4", "ResNet": "BiT-R-Pico"}
    scores = {  # (family, settings) -> accuracy with 500 and with 8,000 images
        ("ViT", "chosen"): (0.30, 0.56), ("hybrid", "chosen"): (0.34, 0.58),
        ("ResNet", "chosen"): (0.40, 0.60), ("ViT", "shared"): (0.28, 0.50),
        ("ResNet", "shared"): (0.38, 0.56),
    }  # fmt: skip
    for (family, settings), both in scores.items():
        for size, score in zip((500, 8_000), both, strict=True):
            for seed in range(3):
                name = f"{settings}/{size}/{family}/{seed}"
                found = result(score + (seed - 1) * 0.002, 400, examples=size)
                labels = {"family": family, "settings": settings, "dataset": "cifar10"}
                job = {"name": name, "stage": "final", "labels": labels, "command": "train"}
                made = config(models[family], rate=6e-3, model__pooling="token")
                write(folder / name, config=made, result=found, job=job)
                # 2.0 at the start, 1.5 after three quarters, 1.4 at the end.
                rows = [{"step": 100 * k, "eval/dev/loss": loss}
                        for k, loss in ((0, 2.0), (3, 1.5), (4, 1.4))]  # fmt: skip
                (folder / name / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def test_the_lead_of_the_resnet_and_what_of_it_is_head_and_rate(gap, tmp_path):
    runs = gap["read_finals"](write_runs(tmp_path))
    cells = gap["draw_cells"](runs)
    scores, _, leads = gap["gap_tables"](cells).split("\n\n")
    tables = [
        [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
        for table in (scores, leads)
    ]
    numbers = [[[float(cell.split()[0].replace(",", "")) for cell in row] for row in rows]
               for rows in tables]  # fmt: skip
    # ViT, hybrid, ResNet, pixels.
    assert numbers[0] == [[500, 30, 34, 40, 28.4], [8_000, 56, 58, 60, 39.4]]
    # Over hybrid and ViT, over the ViT with shared settings, and how much that changes.
    assert numbers[1] == [[500, 6, 10, 10, 0], [8_000, 2, 4, 6, 2]]
    low, high = map(float, tables[1][0][2].split("[")[1].strip("]").split(", "))
    assert low < 10 < high
    assert gap["trend"](cells).startswith(
        "From 500 to 8,000 images the ResNet's lead over the ViT changes by -6.0 ["
    )
    line = "| ViT | token, 0.006; -0.10 | token, 0.006; -0.10 |"
    assert gap["settings_table"](runs).splitlines()[2] == line
