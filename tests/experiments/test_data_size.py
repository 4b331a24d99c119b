"""experiments/data_size: the runs of the paper, and where curves cross."""

import functools
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
from report.fake_runs import config, result, write

from vit_jax.config.data import SUBSET_PRESETS
from vit_jax.errors import ConfigError
from vit_jax.models.flops import forward_macs
from vit_jax.report.frame import run_frame
from vit_jax.report.labels import title_of
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


@pytest.mark.parametrize("scale", ["small", pytest.param("imagenet", marks=pytest.mark.slow)])
def test_models_of_equal_cost_see_nested_subsets_and_equally_many_images(plan, scale):
    jobs = plan(scale).jobs
    pretrained = [job for name, job in jobs.items() if name.startswith("pretrain/")]
    seeds = {"small": 2, "imagenet": 3}[scale]
    assert len(pretrained) == 5 * 3 * seeds
    presets = {job.config.data.subset.preset for job in pretrained}
    assert presets == {f"{p}_percent" for p in (1, 3, 10, 30, 100)}
    assert {job.config.data.subset.seed for job in pretrained} == {0}  # Nested.
    side = {"small": 32, "imagenet": 224}[scale]
    macs = [
        forward_macs(job.config.model, num_classes=10, image_size=(side, side))
        for job in pretrained
    ]
    assert max(macs) < {"small": 1.1, "imagenet": 1.3}[scale] * min(macs)
    for job in pretrained:
        config = job.config
        assert {config.train_steps or config.train_examples} == {
            "small": {76_800},
            "imagenet": {300 * 1_281_167},
        }[scale]
        assert "dev" in config.evaluation.splits
        assert config.early_stopping.patience_evaluations is not None
        assert config.fewshot.datasets


def test_each_pretrained_model_is_fine_tuned(plan):
    jobs = plan("small").jobs
    tuned = jobs["transfer/10_percent/BiT-R-Micro/seed1"]
    assert tuned.needs == ("pretrain/10_percent/BiT-R-Micro/seed1",)
    assert len(jobs) == 2 * 5 * 3 * 2


def test_tuned_regularisation_is_selected_on_held_out_examples(plan):
    jobs = plan("small,tuned").jobs
    search = [name for name in jobs if name.startswith("search/pretrain/1_percent/")]
    assert len(search) == 12 + 12 + 6  # A ResNet has no dropout.
    final = jobs["final/pretrain/1_percent/ViT-Micro-4/seed0"]
    assert final.awaited_selection
    assert jobs["transfer/1_percent/ViT-Micro-4/seed0"].needs == (final.name,)


def test_an_unknown_scale_is_a_one_line_error(plan):
    with pytest.raises(ConfigError, match="huge"):
        plan("huge")


def test_a_crossing_is_found_on_the_logarithm_of_the_size_for_each_seed():
    crossing = run_path(str(ROOT / "experiments" / "data_size" / "crossing.py"))
    vit = {0: {100: 0.2, 10_000: 0.8}, 1: {100: 0.3, 10_000: 0.7}}
    resnet = {0: {100: 0.4, 10_000: 0.6}, 1: {100: 0.4, 10_000: 0.6}}
    cells, at = crossing["compare"](vit, resnet)
    assert at == "1k; 1k"
    # -20 and -10 points, +20 and +10: mean 15, standard deviation sqrt(50).
    assert cells == {100: "-15.0 ± 7.1", 10_000: "+15.0 ± 7.1"}
    up, down = crossing["crossings"]({1: 0.1, 2: 0.3, 4: 0.1}, {1: 0.2, 2: 0.2, 4: 0.2})
    assert (up[1], down[1]) == (True, False)
    assert (up[0], down[0]) == pytest.approx((2**0.5, 2 * 2**0.5))
    # Equal at 10: the crossing is between its neighbours.
    ((at, ahead),) = crossing["crossings"](
        {1: 0.1, 10: 0.2, 100: 0.3}, dict.fromkeys((1, 10, 100), 0.2)
    )
    assert (round(at, 6), ahead) == (10.0, True)


def test_curves_are_read_from_run_folders(tmp_path):
    crossing = run_path(str(ROOT / "experiments" / "data_size" / "crossing.py"))
    fewshot = "fewshot/sign_language_digits/5_shot/accuracy_top1"
    ahead = {480: -0.1, 48_000: 0.1}
    for model, sign in (("ViT-Micro/4", 1), ("BiT-R-Micro", 0)):
        for examples, by in ahead.items():
            for seed, shift in ((0, 0.0), (1, 0.02)):
                name = f"{examples}/{model.replace('/', '-')}/{seed}"
                job = {"stage": "final", "labels": {"model": model}, "command": "train"}
                score = 0.5 + sign * (by + shift)
                figures = result(score, 400, examples=examples) | {fewshot: 0.3}
                write(
                    tmp_path / "pretrain" / name,
                    job=job,
                    result=figures,
                    config=config(model, seed=seed),
                )
                tuned = config(
                    model, "signs", seed=seed, init_from=str(tmp_path / "pretrain" / name)
                )
                write(
                    tmp_path / "transfer" / name,
                    job=job,
                    config=tuned,
                    result=result(score - 0.2, 40, examples=100),
                )
    lines = crossing["table"](tmp_path).splitlines()
    assert lines[0] == "| points ahead of the ResNet | model | 480 | 48,000 | gets ahead at |"
    # Linear from -10 (-8) points at 480 to +10 (+12): at half and at two fifths of the way.
    cells = "ViT-Micro/4 | -9.0 ± 1.4 | +11.0 ± 1.4 | 4.8k; 3.03k |"
    few = "ViT-Micro/4 | +0.0 ± 0.0 | +0.0 ± 0.0 | none; none |"
    wanted = {
        f"| on cifar10 itself | {cells}",
        f"| {title_of(fewshot)} | {few}",
        f"| fine-tuned on signs | {cells}",
    }
    assert set(lines[2:]) == wanted


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
    assert len(request.plots) == {"small": 3, "imagenet": 3}.get(arg, 1)
    assert all(len(plot_points(plot, frame)[0]) for plot in request.plots)
    tables = [score_table(table, frame) for table in request.tables]
    assert [table.title for table in tables] == [plot.title for plot in request.plots]


def test_a_folder_without_such_runs_is_a_one_line_error(tmp_path, capsys):
    crossing = run_path(str(ROOT / "experiments" / "data_size" / "crossing.py"))
    with pytest.raises(SystemExit) as ended:
        crossing["main"]([str(tmp_path / "nothing")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: no folder ")


@pytest.fixture(scope="module")
def gap():
    return run_path(str(ROOT / "experiments" / "data_size" / "gap.py"))


def test_study_1_tunes_each_head_and_repeats_those_of_the_divided_families_at_one_rate(plan_of):
    jobs = plan_of("data_size", file="heads.py").jobs
    counts = {}
    for name, job in jobs.items():
        key = (job.job.stage, job.job.labels["rate"], name.split("/")[1])
        counts[key] = counts.get(key, 0) + 1
    percents = ("1_percent", "10_percent", "100_percent")
    # Seven heads of three families; five of them are those of ViT and ResNet.
    assert counts == {
        **{("search", "own", p): 7 * 5 for p in percents},
        **{("final", "own", p): 7 * 2 for p in percents},
        **{("final", "shared", p): 5 for p in percents},
    }
    lengths = {}
    for name, job in jobs.items():  # Rates are chosen at the length at which they are used.
        lengths.setdefault(name.split("/")[1], set()).add(job.config.train_examples)
        assert job.config.evaluation.all_splits == {"dev": "train[96%:]", "test": "test"}
        assert job.config.early_stopping.patience_evaluations is None
    assert all(len(found) == 1 for found in lengths.values())
    assert {*plan_of("data_size", "10", file="heads.py").jobs} < {*jobs}


def test_a_crossing_is_ahead_at_all_sizes_or_at_none(gap):
    half, more, less = (np.array([x, x]) for x in (0.5, 0.6, 0.4))
    crossing = gap["crossing"]
    assert crossing({1: more, 9: more}, {1: half, 9: half}).tolist() == [0, 0]
    assert crossing({1: less, 9: less}, {1: half, 9: half}).tolist() == [np.inf] * 2
    assert crossing({1: more, 9: less}, {1: half, 9: half}).tolist() == [np.inf] * 2
    at = crossing({1: less, 9: more}, {1: half, 9: half})
    assert at == pytest.approx([3, 3])  # Half of the way from 1 to 9, in logarithms.


def write_gap(folder):
    """Writes runs in which rate, head and family each cost the ViT a known number of points."""
    scores = {  # At the shared rate, 2e-3, and at the chosen one.
        ("ViT", "token"): (0.40, 0.46), ("ViT", "flatten"): (0.45, 0.50),
        ("ResNet", "gap"): (0.50, 0.53), ("ResNet", "flatten"): (0.48, 0.52),
    }  # fmt: skip
    models = {"ViT": "ViT-Micro/4", "ResNet": "BiT-R-Micro"}

    def add(name, run, size, shift, rate, stage, about, **more):
        family, head = run
        score = scores[run][rate != 2e-3] + shift
        score += 0.05 if (family, size) == ("ViT", 4_800) else 0.0
        found = result(score, 100, examples=size) | {"best_step": 100 if shift else 50}
        found |= {"eval/dev/accuracy_top1": score - 0.02, "eval/dev/examples": 2_000}
        labels = {"family": family, "head": head, "rate": about, "dataset": "cifar10"}
        write(
            folder / name,
            config=config(models[family], seed=more.pop("seed"), rate=rate),
            result=found,
            job={"name": name, "stage": stage, "labels": labels, "command": "train", **more},
        )

    for run in scores:
        for size in (480, 4_800):
            at = f"{size}/{'-'.join(run)}"
            for rate in (2e-3, 1.6e-2):
                add(f"search/{at}/{rate}", run, size, -0.002, rate, "search", "own", seed=0)
            chosen = {"selection": {"chosen": f"search/{at}/0.016"}}
            for seed, shift in ((1, 0.0), (2, 0.002)):
                add(
                    f"final/{at}/{seed}",
                    run,
                    size,
                    shift,
                    1.6e-2,
                    "final",
                    "own",
                    seed=seed,
                    **chosen,
                )
            add(f"shared/{at}", run, size, 0.002, 2e-3, "final", "shared", seed=1)
    return folder


def test_the_gap_is_divided_into_rate_head_and_family_in_both_orders(gap, tmp_path):
    study = gap["read_study"](write_gap(tmp_path))
    assert {at: len(draws) for at, draws in study.test.items()} == dict.fromkeys(study.test, 4001)
    rows = [line.split(" | ") for line in gap["gap_table"](study).splitlines()[2:]]
    assert [row[0] for row in rows] == ["| 480", "| 4,800"]
    # The chosen rate is the largest that was tried.
    assert rows[0][1] == "ResNet gap at 0.016 (edge), ViT flatten at 0.016 (edge)"
    # 50 - 40 points. Own rates leave 53 - 46, then own heads 53 - 50; own heads at the shared rate
    # leave 50 - 45.
    assert [float(cell.split()[0]) for cell in rows[0][2:8]] == [10, 3, 4, 5, 2, 3]
    for cell in rows[0][2:8]:
        value, low, high = (float(x.strip("[],|")) for x in cell.split()[:3])
        assert low < value < high
    assert rows[0][8].startswith("70 % [")
    vit, _ = gap["crossing_table"](study).splitlines()[2:]
    # From 3 points behind to 2 ahead: after 3 / 5 of the way.
    assert "| 1.91k images [" in vit  # 480 * 10**0.6
    # 2 heads, 2 sizes, 3 seeds; seed 1 has shift 0, whose best weights are in the middle.
    assert "| 8 of 12 |" in vit


def test_the_own_head_is_chosen_again_in_each_draw(gap):
    dev = {
        (1, "ViT", "token", "own"): np.array([0.4, 0.4, 0.6]),
        (1, "ViT", "gap", "own"): np.array([0.5, 0.5, 0.5]),
    }
    test = {
        (1, "ViT", "token", "own"): np.array([0.1, 0.2, 0.3]),
        (1, "ViT", "gap", "own"): np.array([0.7, 0.8, 0.9]),
    }
    study = gap["Study"](test, dev, {}, {})
    assert gap["with_own_head"](study, 1, "ViT", "own").tolist() == [0.7, 0.8, 0.3]
    assert gap["with_own_head"](study, 1, "ViT", "shared") is None


def test_no_share_is_given_where_there_may_be_no_distance(gap):
    usual = np.concatenate([[1.0], np.linspace(-1, 3, 100)])
    assert gap["_share"](usual, usual - 1) == "– (no distance is told apart)"
    assert gap["_share"](usual + 10, (usual + 10) / 2) == "50 % [50, 50]"


def test_gap_without_such_runs_is_a_one_line_error(gap, tmp_path, capsys):
    write(tmp_path / "run", config=config(), result=result(0.5, 100))
    with pytest.raises(SystemExit) as ended:
        gap["main"]([str(tmp_path)])
    assert ended.value.code == 2
    assert "expected the --workdir of the sweep data_size/heads.py" in capsys.readouterr().err
