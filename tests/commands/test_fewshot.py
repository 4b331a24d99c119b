"""The command `python -m vit_jax fewshot`, with a small random model."""

import json
import logging

import numpy as np
import pytest
from image_files import write_folder
from processes import user_error
from small_config import small_mapping
from weight_files import random_weights

from vit_jax.__main__ import main
from vit_jax.run.metrics import read_metrics


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "model"
    random_weights(path, image_size=(8, 8), num_classes=3)
    return path


@pytest.fixture(scope="module")
def base(weights, digits_dir):
    """Arguments of all runs on digits."""
    options = ["--crop=resize", "--batch_size=100", "--shots=1,5", "--seeds=0,1,2"]
    return ["fewshot", str(weights), "--dataset=digits", f"--data_dir={digits_dir}", *options]


# For tests whose facts do not need all images.
FEW = ("--train_split=train[:300]", "--test_split=test[:100]")


def run_json(arguments, capsys):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def figures(result):
    return {k: v for k, v in result.items() if "/" in k}


def test_all_methods_write_results(base, tmp_path, capsys, caplog):
    folder = tmp_path / "run"
    methods = "--method=least_squares,knn,linear_probe"
    small = "--config.fewshot.probe_c=(0.01,1.0)"
    arguments = [*base, methods, small, f"--workdir={folder}"]
    first = run_json(arguments, capsys)
    for kind, setting in (("knn", "neighbours"), ("linear_probe", "c"), ("fewshot", "5_shot/l2")):
        assert first[f"{kind}/digits/{setting}"] > 0
        about = [
            first[f"{kind}/digits/{size}"] for size in ("classes", "feature_width", "examples")
        ]
        assert about == [10, 24, 360]
    # Of ten classes, with random weights.
    one, five = (first[f"fewshot/digits/{k}_shot/accuracy_top1"] for k in (1, 5))
    assert 0.15 < one < five
    assert first["knn/digits/accuracy_top1"] > 0.6
    assert first["linear_probe/digits/accuracy_top1"] > 0.6
    assert json.loads((folder / "result.json").read_text()) == first
    (row,) = read_metrics(folder / "metrics.jsonl")
    assert figures(row) == figures(first)
    details = json.loads((folder / "report" / "fewshot.json").read_text())["digits"]
    by_seed = list(details["least_squares"]["5_shot"]["accuracy_top1_by_seed"].values())
    assert np.mean(by_seed) == pytest.approx(five)
    deviation = first["fewshot/digits/5_shot/accuracy_top1_std"]
    assert np.std(by_seed, ddof=1) == pytest.approx(deviation)
    assert details["images"] == {"train": 1437, "test": 360}
    # Again: finished. Elsewhere: the same.
    with caplog.at_level(logging.INFO, "vit_jax"):
        assert run_json(arguments, capsys) == first
    assert "has already finished" in caplog.text
    again = run_json([*arguments[:-1], f"--workdir={tmp_path / 'other'}"], capsys)
    assert figures(again) == figures(first)
    # Other arguments, or another command, do not go into the same folder.
    other = user_error(capsys, [*arguments, "--shots=1"])
    assert "holds a run of another config (fewshot.shots" in other
    train = ["train", "--config=configs/quickstart.py", f"--workdir={folder}"]
    assert "holds a run of fewshot; expected one of train" in user_error(capsys, train)


@pytest.mark.slow
def test_a_new_model_depends_on_its_seed_and_takes_options(base, capsys):
    made = ["fewshot", "untrained:ViT-Nano/4", *base[2:], "--image_size=8", *FEW]
    flattened = [*made, "--model.pooling=flatten"]
    first, again, other = (
        figures(run_json([*flattened, f"--config.load.seed={seed}"], capsys)) for seed in (0, 0, 1)
    )
    assert first == again != other
    line = user_error(capsys, [*made, "--patch_size=2"])
    assert "patch_size for untrained:ViT-Nano/4" in line


@pytest.mark.slow
def test_l2_may_be_fixed_or_chosen_on_another_split(base, capsys):
    fixed = run_json([*base, "--l2=1024", "--shots=5"], capsys)
    assert fixed["fewshot/digits/5_shot/l2"] == 1024
    split = ["--train_split=train[:300]", "--held_out_split=train[300:400]", "--shots=5"]
    chosen = run_json([*base, *split], capsys)
    assert np.log2(chosen["fewshot/digits/5_shot/l2"]) in range(-10, 21)


def test_the_printed_table_has_the_results(base, capsys):
    assert main([*base, *FEW, "--l2=4"]) == 0
    shown = capsys.readouterr().out
    for word in ("test accuracy (top-1)", "digits", "1-shot", "5-shot", "l2 4"):
        assert word in shown


def test_a_class_with_too_few_examples_is_named(weights, tmp_path, capsys):
    write_folder(tmp_path / "pets/train", {"cat": 4, "dog": 3})
    write_folder(tmp_path / "pets/test", {"cat": 2, "dog": 2})
    base = ["fewshot", str(weights), f"--dataset={tmp_path / 'pets'}"]
    line = user_error(capsys, [*base, "--shots=1,5"])
    assert "class 'dog' of pets train has 3 examples; expected at least 6: 5 for 5 shots" in line
    assert "fixed l2" not in line
    line = user_error(capsys, [*base, "--shots=3"])
    assert "expected at least 4" in line
    assert "fixed l2" in line
    found = run_json([*base, "--shots=3", "--l2=1"], capsys)
    assert 0 <= found["fewshot/pets/3_shot/accuracy_top1"] <= 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method=foo"], "'fewshot.methods' is 'foo'"),
        (["--dataset=digit"], "no dataset 'digit'"),
        (["--test_split=tset"], "; check the name of the split"),
        (["--test_split=train"], "shares examples with test_split 'train'"),
        (["--train_split=train+test"], "'train+test' and shares examples with test_split 'test'"),
        (["--held_out_split=test[:50%]"], "and shares examples with test_split 'test'"),
        (["--held_out_split=train[90%:]"], "and shares examples with train_split 'train'"),
        (["--shots=0"], "'fewshot.shots' is (0,)"),
        (["--shots=a"], "not a list of whole numbers"),
        (["--shots=200"], "class '9' of digits/1.0.0 train has 133"),
        (["--l2=0"], "'fewshot.l2' is 0"),
        (["--config.fewshot.prob_c=(1.0,)"], "did you mean 'fewshot.probe_c'"),
        (["--nonsense=1"], "unknown argument '--nonsense=1'"),
        (["--config.seed=1"], "unknown config key 'seed'"),
        (["--dataset=digits"], "two datasets are named 'digits'"),
    ],
)
def test_wrong_arguments_are_one_line_errors(base, arguments, words, capsys):
    own = base if arguments != ["--dataset=digit"] else [*base[:2], *base[3:]]
    assert words in user_error(capsys, [*own, *arguments])


def test_unreadable_checkpoints_are_one_line_errors(base, tmp_path, capsys):
    (tmp_path / "bad.npz").write_bytes(b"not an archive")
    rest = base[2:]
    assert "none does not exist" in user_error(capsys, ["fewshot", str(tmp_path / "none"), *rest])
    assert "cannot be read" in user_error(capsys, ["fewshot", str(tmp_path / "bad.npz"), *rest])
    assert "no CHECKPOINT" in user_error(capsys, ["fewshot", *rest])
    assert "no dataset" in user_error(capsys, ["fewshot", "x.npz"])


def test_the_fewshot_section_of_a_recipe_is_used(weights, digits_dir, tmp_path, capsys):
    config = tmp_path / "config.json"
    numbers = {"name": "digits", "crop": "resize", "train_split": "train[:300]",
               "test_split": "test[:100]"}  # fmt: skip
    section = {"datasets": {"numbers": numbers}, "shots": [2], "seeds": [5], "l2": 8.0}
    mapping = small_mapping(fewshot=section, data__data_dir=str(digits_dir))
    config.write_text(json.dumps(mapping))
    found = run_json(["fewshot", f"--config={config}", f"--config.checkpoint={weights}"], capsys)
    assert found["fewshot/numbers/2_shot/l2"] == 8
    assert found["fewshot/numbers/2_shot/accuracy_top1_std"] == 0
