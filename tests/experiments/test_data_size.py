"""experiments/data_size: the runs of the paper, and the lead of the ResNet."""

import functools
import json
from pathlib import Path
from runpy import run_path

import pytest
from report.fake_runs import config, result, write

from vit_jax.config.data import SUBSET_PRESETS
from vit_jax.errors import ConfigError
from vit_jax.models.flops import forward_macs
from vit_jax.report.frame import run_frame
from vit_jax.report.plots import plot_points
from vit_jax.report.requests import read_report
from vit_jax.report.runs import read_runs
from vit_jax.report.tables import score_table

ROOT = Path(__file__).resolve().parents[2]


# Scales whose reports have the parts of those of the other scales.
REPEATED = ("imagenet", "paper,tuned")


@pytest.fixture
def plan(plan_of):
    return functools.partial(plan_of, "data_size")


def test_figure_4_has_six_models_on_four_subsets_of_jft(plan):
    """Section 4.3: 9M, 30M, 90M and 303M images, the same hyper-parameters for all."""
    jobs = plan("paper").jobs
    assert len(jobs) == 6 * 4
    for size, examples in {"9m": 9e6, "30m": 30e6, "90m": 90e6, "303m": 303e6}.items():
        assert SUBSET_PRESETS[f"jft_{size}"] == ("examples", examples)
        config = jobs[f"pretrain/jft_{size}/ViT-B-32"].config
        assert config.data.subset.preset == f"jft_{size}"
        # Seven epochs of all of JFT (Table 3), whatever the size: 517,822 steps of 4,096.
        assert config.train_examples == 7 * 303_000_000
        assert round(config.train_examples / config.data.global_batch_size) == 517_822
    large = jobs["pretrain/jft_9m/ViT-L-16"].config
    assert (large.optimizer.learning_rate, large.optimizer.weight_decay) == (4e-4, 0.1)
    resnet = jobs["pretrain/jft_303m/BiT-R152x2"].config
    assert (resnet.model.name, resnet.optimizer.learning_rate) == ("BiT-R152x2", 6e-4)
    half = jobs["pretrain/jft_30m/ViT-b-32"].config.model
    assert (half.name, half.width, half.mlp_dim, half.depth) == ("ViT-B/32", 384, 1536, None)
    for job in jobs.values():  # Early stopping by held-out examples, linear 5-shot ImageNet.
        config = job.config
        assert config.early_stopping.metric == "eval/dev/accuracy_top1"
        assert config.evaluation.splits == {"dev": "validation"}
        assert config.fewshot.shots == (5,)
        assert config.fewshot.datasets["imagenet"].name == "imagenet2012"


def test_figure_3_tunes_regularisation_only_on_the_small_datasets(plan):
    jobs = plan("paper,tuned").jobs
    by_dataset = {}
    for name, job in jobs.items():
        if "/pretrain/" in f"/{name}":  # pretrain/..., search/pretrain/..., final/pretrain/...
            by_dataset.setdefault((job.job.labels["dataset"], job.job.stage), []).append(name)
    counts = {key: len(names) for key, names in by_dataset.items()}
    # Three weight decays, two dropouts, two smoothings.
    assert counts == {
        ("imagenet2012", "search"): 4 * 12,
        ("imagenet2012", "final"): 4,
        ("imagenet21k", "search"): 4 * 12,
        ("imagenet21k", "final"): 4,
        ("jft", "final"): 7,
    }
    fine_tuned = [job for name, job in jobs.items() if name.startswith("final/imagenet2012/")]
    assert len(fine_tuned) == 3 * (4 + 4 + 7)
    rates = {
        job.config.optimizer.learning_rate
        for name, job in jobs.items()
        if name.startswith("search/imagenet2012/jft/ViT-B-32/")
    }
    assert rates == {0.003, 0.01, 0.03, 0.06}  # Table 4.


@pytest.mark.slow
def test_models_of_equal_cost_see_nested_subsets_of_imagenet_and_equally_many_images(plan):
    jobs = plan("imagenet").jobs
    pretrained = [job for name, job in jobs.items() if name.startswith("pretrain/")]
    assert len(pretrained) == 5 * 3 * 3
    presets = {job.config.data.subset.preset for job in pretrained}
    assert presets == {f"{p}_percent" for p in (1, 3, 10, 30, 100)}
    assert {job.config.data.subset.seed for job in pretrained} == {0}  # Nested.
    macs = [
        forward_macs(job.config.model, num_classes=1000, image_size=(224, 224))
        for job in pretrained
    ]
    assert max(macs) < 1.3 * min(macs)
    for job in pretrained:
        config = job.config
        assert {config.train_steps or config.train_examples} == {300 * 1_281_167}
        assert "dev" in config.evaluation.splits
        assert config.early_stopping.patience_evaluations is not None
        assert config.fewshot.datasets


def test_small_chooses_head_and_rate_at_a_quarter_of_the_length(plan):
    jobs = plan("small").jobs
    by_stage = {}
    for name, job in jobs.items():
        by_stage.setdefault((name.split("/")[0], job.config.train_examples), []).append(job)
    # Seven heads of three families, four rates; then three seeds; ViT and ResNet at one rate.
    assert {at: len(found) for at, found in by_stage.items()} == {
        ("search", 64_000): 4 * 7 * 4,
        ("final", 256_000): 4 * 3 * 3,
        ("shared", 256_000): 4 * 2 * 3,
    }
    macs = set()
    for job in jobs.values():
        data = job.config.data
        assert data.train_split == "train[:96%]"
        assert job.config.evaluation.all_splits == {"dev": "train[96%:]", "test": "test"}
        assert (data.subset.examples, data.subset.seed) in [
            (n, 0) for n in (500, 2_000, 8_000, 48_000)
        ]
        if job.job.stage == "search":
            macs.add(forward_macs(job.config.model, num_classes=10, image_size=(32, 32)))
    assert max(macs) < 1.25 * min(macs)


def test_an_unknown_scale_is_a_one_line_error(plan):
    with pytest.raises(ConfigError, match="huge"):
        plan("huge")
    with pytest.raises(ConfigError, match=r"small with tuned.*imagenet,tuned"):
        plan("small,tuned")


@pytest.mark.parametrize(
    "arg", ["small", "paper", *(pytest.param(a, marks=pytest.mark.slow) for a in REPEATED)]
)
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
    assert len(request.plots) == {"imagenet": 3}.get(arg, 1)
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
    rows = [line.strip("| ").split(" | ") for line in gap["gap_table"](cells).splitlines()[2:]]
    assert [row[0] for row in rows] == ["500", "8,000"]
    numbers = [[float(cell.split()[0]) for cell in row[1:]] for row in rows]
    # ViT, hybrid, ResNet, pixels; leads over ViT and hybrid; with shared settings; of it settings.
    assert numbers[0] == [30, 34, 40, 28.4, 10, 6, 10, 0]
    assert numbers[1] == [56, 58, 60, 39.4, 4, 2, 6, 2]
    low, high = map(float, rows[0][5].split("[")[1].strip("]").split(", "))
    assert low < 10 < high
    assert gap["trend"](cells).startswith(
        "From 500 to 8,000 images the lead of the ResNet over the ViT changes by -6.0 ["
    )
    assert gap["still_falling"](runs).splitlines()[2] == "| ViT | -0.10 | -0.10 |"
    assert "| hybrid | token, 0.006 |" in gap["settings_table"](runs)


def test_gap_without_such_runs_is_a_one_line_error(gap, tmp_path, capsys):
    write(tmp_path / "run", config=config(), result=result(0.5, 100))
    with pytest.raises(SystemExit) as ended:
        gap["main"]([str(tmp_path)])
    assert ended.value.code == 2
    assert "expected the --workdir of the sweep data_size/sweep.py" in capsys.readouterr().err
