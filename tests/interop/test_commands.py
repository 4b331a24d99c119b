"""The commands convert, export and predict."""

import copy
import json
import os

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from interop.files import logits, params
from PIL import Image
from weight_files import TINY, random_loaded

from vit_jax.__main__ import main
from vit_jax.interop.load import load
from vit_jax.interop.save import save


@pytest.fixture
def picture(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


def test_convert_reports_what_it_read_and_wrote(ours_path, tmp_path, capsys):
    there = tmp_path / "there.npz"
    assert main(["convert", str(ours_path), str(there), "--format=vision_transformer"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"ViT-Ti/8 written to {there} as vision_transformer\n"
    assert captured.err.startswith(f"ViT-Ti/8 from {ours_path}: 20 tensors, vit_jax, ")
    assert "missing" not in captured.err
    assert load(there).options.width == TINY["width"]


def test_convert_takes_options_of_the_model_and_another_size(ours_path, tmp_path):
    there = tmp_path / "there"
    options = ["--image_size=48", "--num_classes=3", "--model.norm_epsilon=1e-12"]
    assert main(["convert", str(ours_path), str(there), "--format=transformers", *options]) == 0
    config = json.loads((there / "config.json").read_text())
    assert (config["image_size"], config["layer_norm_eps"]) == (48, 1e-12)
    back = load(there)
    assert back.num_classes == 3
    assert not params(back.model)["head/linear/kernel"].any()


def test_predict_prints_the_names_and_scores_of_the_best_classes(ours_path, tmp_path, capsys):
    picture = tmp_path / "small.png"  # Of the model's size: nothing to crop or resize.
    pixels = np.random.default_rng(1).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(picture)
    arguments = ["predict", str(picture), f"--model={ours_path}", "--top=2", "--crop=resize"]
    assert main([*arguments, "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["image"] == str(picture)
    assert len(found["classes"]) == 2
    scores = logits(random_loaded().model, pixels.astype(np.float32)[None] / 127.5 - 1)[0]
    best = int(np.argmax(scores))
    name, score = found["classes"][0]
    assert name == f"thing {best}"
    assert score == pytest.approx(1 / np.sum(np.exp(scores - scores[best])), abs=1e-5)
    assert main(arguments) == 0
    assert f"{score:6.1%}  thing {best}" in capsys.readouterr().out


def test_predict_crops_images_as_in_the_models_evaluation(ours_path, picture, capsys):
    def scores(*options):
        arguments = ["predict", str(picture), f"--model={ours_path}", "--format=json", *options]
        assert main(arguments) == 0
        return sorted(json.loads(capsys.readouterr().out)["classes"])

    assert scores() == scores("--crop=central") != scores("--crop=resize")


def test_predict_with_names_from_a_file(ours_path, picture, tmp_path, capsys):
    (tmp_path / "names.txt").write_text("a\nb\nc\nd\ne\n")
    names = f"--classes={tmp_path / 'names.txt'}"
    assert main(["predict", str(picture), f"--model={ours_path}", names, "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)["classes"]
    assert sorted(name for name, _ in found) == list("abcde")
    (tmp_path / "names.txt").write_text("a\n")
    assert main(["predict", str(picture), f"--model={ours_path}", names]) == 2
    assert "has 1 lines; expected a name for each of 5 classes" in capsys.readouterr().err


def test_predict_with_outputs_that_overflow_is_an_error(tmp_path, picture, capsys):
    path = tmp_path / "large"
    model = copy.deepcopy(random_loaded())
    kernel = model.model.head.linear.kernel
    signs = np.resize(np.float32([1, -1]), kernel.shape[0])[:, None]
    kernel[...] = jnp.broadcast_to(np.float32(3e38) * signs, kernel.shape)
    save(model, path, "orbax")
    assert main(["predict", str(picture), f"--model={path}", "--format=json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"error: {picture}: the model's output is NaN or infinite" in captured.err


def test_convert_to_orbax_on_a_full_disk_is_one_line_and_leaves_nothing(
    ours_path, tmp_path, capsys, monkeypatch
):
    reason = "Disk quota exceeded"

    def full(*args, **kwargs):
        raise ValueError(f"RESOURCE_EXHAUSTED: Error writing 'kernel/0.0': {reason}")

    monkeypatch.setattr(ocp.Checkpointer, "save", full)
    there = tmp_path / "new" / "there"
    assert main(["convert", str(ours_path), str(there), "--format=orbax"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: cannot write {there}: {reason}; expected a writable folder")
    assert list(there.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "none.png", "--model=WEIGHTS"], "none.png cannot be read"),
        (["predict", "PICTURE", "--model=none"], "none does not exist"),
        (["predict", "/dev/zero", "--model=WEIGHTS"], "/dev/zero is a device; expected a"),
        (["predict", "PICTURE", "--model=WEIGHTS", "--classes=/dev/zero"], "zero is a device"),
        (["predict", "PICTURE", "--model=PIPE"], "is a pipe; expected a file or folder of"),
        (["predict", "WEIGHTS/model.json", "--model=WEIGHTS"], "unreadable image"),
        (
            ["convert", "WEIGHTS", "OUT", "--format=caffe"],
            "format 'caffe'; expected one of",
        ),
        (["convert", "WEIGHTS", "OUT", "--format=timm", "--model.widht=3"], "widht"),
        (["convert", "WEIGHTS", "OUT", "--format=timm", "--config.seed=3"], "--config.seed=3"),
        (["convert", "WEIGHTS", "OUT", "--format=timm", "--image_size=0"], "--image_size"),
    ],
)
def test_wrong_input_is_a_one_line_error(ours_path, picture, tmp_path, capsys, arguments, message):
    places = {"WEIGHTS": str(ours_path), "PICTURE": str(picture), "OUT": str(tmp_path / "out"),
              "PIPE": str(tmp_path / "pipe.npz")}  # fmt: skip
    os.mkfifo(places["PIPE"])
    for word, place in places.items():
        arguments = [a.replace(word, place) for a in arguments]
    assert main(arguments) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error
    assert not (tmp_path / "out").exists()
