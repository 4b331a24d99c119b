"""Errors that tell users what to do: done as they say, the next call works."""

import re
import tomllib

import pytest
from processes import ROOT, UNMIXED, user_error
from short_runs import SHORT

import vit_jax
from vit_jax.__main__ import main
from vit_jax.errors import UserError

pytestmark = pytest.mark.usefixtures("optax_promotes")
_HINT = re.compile(r"did you mean '?([^'?]+?)'?\?")


def hint(text):
    """Returns what an error proposes."""
    found = _HINT.search(text)
    assert found, text
    return found[1]


# Words of other codebases, and slips of the keyboard.
@pytest.mark.parametrize(
    "wrong",
    [
        *("optimizer.lr=0.01", "lr=0.01", "wd=0.1", "bs=64", "batch_size=64", "epochs=3"),
        *("num_epochs=3", "img_size=16", "drop_path=0.1", "optimizer.schedule.warmup=10"),
        *("model.patch_dropout=0.1", "data.augment.randaug=true", "checkpoint.keep=2", "sede=1"),
    ],
)
def test_the_proposed_config_key_is_accepted(capsys, wrong):
    call = ["config", f"--config={UNMIXED}", f"--config.{wrong}"]
    key = hint(user_error(capsys, call))
    assert main([*call[:2], f"--config.{key}={wrong.split('=')[1]}"]) == 0


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        (["modles", "ViT-Ti/16"], "modles"),
        (["models", "ViT-Ty/16"], "ViT-Ty/16"),
        (["models", "ViT-Ti/16", "--model.poling=gap"], "poling"),
        (["config", "--config=quickstar"], "--config=quickstar"),
        (["config", "--config=deit3:S/61"], "S/61"),
        (["config", "optimizr"], "optimizr"),
    ],
)
def test_the_proposed_word_is_accepted(capsys, call, wrong):
    line = user_error(capsys, call)
    right = [word.replace(wrong, hint(line)) for word in call]
    assert main(right) == 0, right


def test_an_argument_of_train_becomes_a_config_key(capsys, tmp_path, digits_dir):
    call = ["train", f"--config={UNMIXED}", f"--workdir={tmp_path / 'run'}", SHORT[0]]
    data = f"--config.data.data_dir={digits_dir}"
    flag = hint(user_error(capsys, [*call, "--image_size=8", data]))
    assert flag.startswith("--config.data.image_size")
    assert main(["config", call[1], flag if "=" in flag else f"{flag}=8"]) == 0


@pytest.mark.slow
def test_the_proposed_image_sizes_fit(tmp_path):
    with pytest.raises(UserError) as error:
        vit_jax.create_model("ViT-Pico/4", image_size=30, num_classes=2)
    sizes = re.findall(r"(\d+)x\1", error.value.fix)
    assert sizes == ["28", "32"]
    for size in sizes:
        vit_jax.create_model("ViT-Pico/4", image_size=int(size), num_classes=2)


@pytest.mark.parametrize(
    ("wrong", "value"),
    [("imagesize", 32), ("numclasses", 3), ("drop_path_rate", 0.1), ("global_pool", "gap")],
)
def test_the_proposed_argument_of_create_model_is_accepted(wrong, value):
    with pytest.raises(UserError) as error:
        vit_jax.create_model("ViT-Pico/4", **{wrong: value})
    vit_jax.create_model("ViT-Pico/4", **{hint(str(error.value)): value})


@pytest.mark.slow
def test_the_proposed_mesh_and_split_train(capsys, tmp_path, digits_dir):
    call = ["train", f"--config={UNMIXED}", f"--config.data.data_dir={digits_dir}",
            "--config.train_steps=1", f"--workdir={tmp_path / 'run'}"]  # fmt: skip
    assert "-1 gets the remaining devices" in user_error(capsys, [*call, "--config.mesh.data=3"])
    line = user_error(capsys, [*call, "--config.evaluation.splits.test=tset"])
    split = re.findall(r"expected one of \w+, (\w+)", line)[0]
    right = ["--config.mesh.data=-1", f"--config.evaluation.splits.test={split}"]
    assert main([*call, *right]) == 0


@pytest.mark.parametrize("name", ["transformers", "timm"])
def test_a_format_that_cannot_hold_a_model_names_one_that_can(capsys, tmp_path, name):
    model = ["untrained:ViT-Pico/4", "--model.pooling=flatten"]
    line = user_error(capsys, ["convert", *model, str(tmp_path / "weights"), f"--format={name}"])
    other = re.findall(r"use format (\w+)", line)[0]
    assert main(["convert", *model, str(tmp_path / "other"), f"--format={other}"]) == 0
    vit_jax.load_pretrained(tmp_path / "other")


def test_eval_of_a_run_without_workdir(capsys, finished):
    line = user_error(capsys, ["eval", str(finished)])
    command = re.findall(r"use eval (--workdir=\S+) for a run", line)[0]
    assert main(["eval", command]) == 0


@pytest.mark.parametrize(
    ("command", "option", "wrong"),
    [
        ("report", "--table=metric=eval/tset/accuracy_top1,rows=model", "eval/tset/accuracy_top1"),
        ("report", "--table=metric=eval/test/accuracy_top1,rows=modle", "modle"),
        ("analyze", "--what=position", "position"),
    ],
)
def test_the_proposed_word_makes_a_report(capsys, finished, tmp_path, command, option, wrong):
    call = [command, str(finished), f"--output={tmp_path}"]
    line = user_error(capsys, [*call, option])
    assert main([*call, option.replace(wrong, hint(line))]) == 0


def test_what_is_to_be_installed_is_a_package_that_pip_finds():
    """An extra of vit_jax would need the clone or wheel from which the user has installed it."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    lines += [line for extra in metadata["optional-dependencies"].values() for line in extra]
    known = {re.split(r"[>=; ]", line)[0] for line in lines} | {"huggingface_hub", "pillow-heif"}
    for path in (ROOT / "vit_jax").rglob("*.py"):
        text = path.read_text()
        assert "vit_jax[" not in text, path
        named = re.findall(r"pip install ['\"]?([\w-]+(?:\[\w+\])?)", text)
        assert set(named) <= known, path
