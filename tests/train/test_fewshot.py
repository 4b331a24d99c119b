"""Few-shot evaluation during training: when, with which parameters, and after a resume."""

import json

import pytest
from task_runs import digits_config, stop_in_evaluation

from vit_jax.__main__ import main
from vit_jax.config.data import DataConfig
from vit_jax.config.fewshot import FewshotConfig, FewshotDatasetConfig
from vit_jax.config.mesh import MeshConfig
from vit_jax.data.sources import open_source
from vit_jax.errors import ConfigError, DataError
from vit_jax.evaluation.frozen import FrozenEvaluator
from vit_jax.models.registry import model_options
from vit_jax.parallel.mesh import make_mesh
from vit_jax.run.metrics import read_metrics
from vit_jax.train.loop import train
from vit_jax.train.signals import StopSignals

FEWSHOT = [
    "fewshot.datasets.numbers.name=digits", "fewshot.datasets.numbers.crop=resize",
    "fewshot.datasets.numbers.train_split=train[:300]",
    "fewshot.datasets.numbers.test_split=test[:100]",
    "fewshot.shots=(1,5)", "fewshot.seeds=(0,1)", "fewshot.interval_steps=10",
    "fewshot.methods=('least_squares','knn')",
]  # fmt: skip
FIGURES = ("accuracy_top1", "accuracy_top1_std", "l2")
NAMES = {f"fewshot/numbers/{k}_shot/{name}" for k in (1, 5) for name in FIGURES}
NAMES |= {"knn/numbers/accuracy_top1", "knn/numbers/neighbours"}


def found(workdir):
    rows = read_metrics(workdir / "metrics.jsonl")
    return [{"step": row["step"], **figures(row)} for row in rows if figures(row)]


def figures(result):
    return {k: v for k, v in result.items() if k in NAMES}


@pytest.fixture(scope="module")
def reference(tmp_path_factory, digits_dir):
    """The folder of an uninterrupted run, and its result."""
    workdir = tmp_path_factory.mktemp("reference")
    return workdir, train(digits_config(digits_dir, *FEWSHOT), workdir, StopSignals())


@pytest.mark.slow
def test_figures_are_written_to_metrics_and_result(reference):
    workdir, result = reference
    rows = found(workdir)
    assert [row["step"] for row in rows] == [10, 20]
    assert rows[1] == {"step": 20, **figures(result)}
    assert rows[0].keys() == rows[1].keys() == {"step", *NAMES}
    assert result["fewshot/numbers/5_shot/accuracy_top1"] > 0.3
    assert "eval/test/accuracy_top1" in result
    assert json.loads((workdir / "result.json").read_text()) == result


@pytest.mark.slow
def test_the_fewshot_command_gives_the_same_figures(reference, digits_dir, capsys):
    workdir, result = reference
    command = ["fewshot", str(workdir), f"--config={workdir / 'config.json'}"]
    assert main([*command, "--json"]) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures(again) == pytest.approx(figures(result), abs=1 / 100)


@pytest.mark.parametrize(("call", "step"), [(1, 10), (2, 20)])
@pytest.mark.slow
def test_after_a_stop_during_an_evaluation_only_that_evaluation_is_repeated(
    reference, digits_dir, tmp_path, monkeypatch, call, step
):
    config = digits_config(digits_dir, *FEWSHOT)
    stop_in_evaluation(FrozenEvaluator, call, step, config, tmp_path, monkeypatch)
    assert len(found(tmp_path)) == call - 1
    result = train(config, tmp_path, StopSignals())
    assert found(tmp_path) == found(reference[0])
    clocked = {"wall_time_s": 0, "seconds": 0}
    assert result | clocked == reference[1] | clocked
    (tmp_path / "result.json").unlink()
    before = (tmp_path / "metrics.jsonl").read_bytes()
    train(config, tmp_path, StopSignals())
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_too_few_examples_are_an_error_before_the_first_step(digits_dir, tmp_path):
    config = digits_config(digits_dir, *FEWSHOT, "fewshot.shots=(1,500)")
    with pytest.raises(DataError, match=r"of digits/1.0.0 train\[:300\] has \d\d examples"):
        train(config, tmp_path, StopSignals())
    config = digits_config(digits_dir, *FEWSHOT, "fewshot.datasets.numbers.name=nothing")
    with pytest.raises(DataError, match="few-shot dataset 'numbers': no dataset 'nothing'"):
        train(config, tmp_path, StopSignals())
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["fewshot.datasets.numbers.test_split=train"], "shares examples with test_split"),
        (["fewshot.datasets.a/b.name=digits"], "a name without '/'"),
        (["fewshot.shots=(5,5)"], "one or more different"),
        (["fewshot.seeds=(-1,)"], "numbers of at least 0"),
        (["fewshot.probe_c=(0.0,1.0)"], "numbers above 0"),
        (["fewshot.methods=('svm',)"], "one of least_squares, knn, linear_probe"),
        (["fewshot.datasets.numbers.split=x"], "unknown config key"),
    ],
)
def test_impossible_fewshot_sections_are_config_errors(digits_dir, overrides, words):
    with pytest.raises(ConfigError, match=words):
        digits_config(digits_dir, *FEWSHOT, *overrides)


def test_the_rule_for_the_labels_of_a_run_is_not_that_of_other_data(digits_dir):
    datasets = {"numbers": FewshotDatasetConfig(name="digits", data_dir=str(digits_dir))}
    data = DataConfig(name="clevr", label_rule="clevr_count", global_batch_size=8)
    model = model_options("ViT-Mini/4")
    config, mesh = FewshotConfig(datasets=datasets), make_mesh(MeshConfig())
    FrozenEvaluator(config, data, model, (32, 32), mesh, batch_size=8)  # Opens the digits.
    with pytest.raises(DataError, match=r"objects, which data\.label_rule=clevr_count"):
        open_source(data.replace(name="digits", data_dir=str(digits_dir)), "train")
