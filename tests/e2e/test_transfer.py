"""Fine-tuning as a user does it: configs/transfer.py from a file, and what may be wrong with it."""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from processes import ROOT, one_line

from vit_jax.__main__ import main

RECIPE = ROOT / "configs" / "transfer.py"
pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """27 dark images of one class and 9 bright ones of another; half that number for testing."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for split, times in (("train", 3), ("test", 1)):
        for name, low, count in (("dark", 0, 9), ("bright", 100, 3)):
            (folder / split / name).mkdir(parents=True)
            for i in range(count * times):
                pixels = rng.integers(low, low + 156, (40, 50, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{i}.png")
    return folder


def run(workdir, arg, weights, *overrides):
    short = [
        "--config.data.global_batch_size=8", "--config.train_steps=4",
        "--config.optimizer.schedule.warmup_steps=1", "--config.logging.interval_steps=1",
        "--config.logging.tensorboard=false", "--config.logging.curves=false",
    ]  # fmt: skip
    command = ["train", f"--config={RECIPE}:{arg}", f"--workdir={workdir}"]
    return main([*command, f"--config.init_from={weights}", *short, *overrides])


@pytest.mark.slow
def test_fine_tuning_on_an_imbalanced_folder_reports_accuracy_by_class(
    tmp_path, ours_path, photos, capfd
):
    folder = [f"--config.data.data_dir={photos}", "--config.data.image_size=48"]
    workdir = tmp_path / "run"
    assert run(workdir, "folder,test,weighted,head", ours_path, *folder) == 0
    said = capfd.readouterr().err
    assert "re-initialised" in said
    init = json.loads((workdir / "init.json").read_text())
    assert init["resized"] == {"position_embedding/table": "(1, 17, 24) -> (1, 37, 24)"}
    result = json.loads((workdir / "result.json").read_text())
    with (workdir / "report" / "confusion-test.csv").open(newline="") as file:
        header, *rows = list(csv.reader(file))
    assert header == ["true class", "bright", "dark"]
    counts = np.array([row[1:] for row in rows], int)
    assert counts.sum(axis=1).tolist() == [3, 9]
    assert result["eval/test/accuracy_class/bright"] == counts[0, 0] / 3
    assert result["eval/test/accuracy_class/dark"] == counts[1, 1] / 9
    mean = (counts[0, 0] / 3 + counts[1, 1] / 9) / 2
    assert result["eval/test/accuracy_per_class_mean"] == pytest.approx(mean)
    assert result["eval/test/accuracy_top1"] == pytest.approx(np.trace(counts) / 12)
    assert 0 <= result["eval/test/roc_auc"] <= 1
    assert (workdir / "report" / "confusion-test.png").stat().st_size > 10_000
    # eval reads the run, which no longer needs the weights' model section.
    capfd.readouterr()
    assert main(["eval", f"--workdir={workdir}", "--json"]) == 0
    figures = json.loads(capfd.readouterr().out)
    assert figures["eval/test/roc_auc"] == pytest.approx(result["eval/test/roc_auc"])


@pytest.mark.parametrize(
    ("arg", "overrides", "said"),
    [
        ("tfds", ["init_from=/gone.npz"], "/gone.npz does not exist; expected a file or folder"),
        ("tfds", ["init.keep_head=true"], "keep_head with num_classes 10 and a head of 5"),
        ("tfds", ["model.name=BiT-R-Mini"], "holds a ViT-Ti/8; expected the BiT-R-Mini of"),
        ("tfds", ["evaluation.splits.dev=train[100%:]"], "is empty; expected at least one"),
        ("tfds", ["data.num_classes=3"], "data.num_classes is 3; digits/1.0.0"),
        ("vtab_clevr_count", ["data.name=digits"], "which data.label_rule=clevr_count reads"),
        ("pets,linear", [], "config argument 'linear'; expected words from dataset: pets,"),
    ],
)
def test_user_errors_of_fine_tuning_are_one_line(
    tmp_path, ours_path, digits_dir, capfd, arg, overrides, said
):
    data = [f"--config.data.data_dir={digits_dir}", "--config.data.image_size=32"]
    if arg == "tfds":
        data += ["--config.data.name=digits"]
    extra = [f"--config.{override}" for override in overrides]
    assert run(tmp_path / "run", arg, ours_path, *data, *extra) == 2
    assert said in one_line(capfd)
    assert not (tmp_path / "run" / "result.json").exists()
