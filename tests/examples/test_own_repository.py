"""`examples/own_repository`: its own tests, and a run from outside the clone."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from processes import ROOT, run_command

EXAMPLE = ROOT / "examples" / "own_repository"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A copy of the example outside the clone."""
    return shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("outside") / "lab")


def done(lab, *arguments, code=0):
    found = run_command("-m", *arguments, cwd=lab)
    assert found.returncode == code, found.stderr
    return found


def test_the_tests_of_the_example_pass(lab):
    out = done(lab, "pytest", "-q", "-p", "no:cacheprovider", "tests").stdout
    assert "3 passed" in out


@pytest.mark.slow
def test_the_example_trains_resumes_evaluates_and_predicts(lab, digits_dir):
    run = ["--workdir=runs/bag"]
    train = ["vit_jax", "train", "--config=recipe.py", *run, f"--config.data.data_dir={digits_dir}"]
    train += ["--config.train_steps=6", "--config.checkpoint.interval_steps=2"]
    train += ["--config.logging.curves=False", "--config.logging.tensorboard=False"]
    done(lab, *train)
    folder = lab / "runs" / "bag"
    config = json.loads((folder / "config.json").read_text())
    assert config["loss"]["gamma"] == 2.0
    assert config["data"]["augment"]["noise"] == {"deviation": 0.05}
    environment = json.loads((folder / "env.json").read_text())["plugins"]
    assert environment["mylab"]["modules"] == ["mylab.augmentations", "mylab.bag", "mylab.losses"]

    # A run that was killed after step 4 continues; with changed code of ours only if asked to.
    shutil.rmtree(folder / "checkpoints" / "6")
    (folder / "result.json").unlink()
    losses = lab / "mylab" / "losses.py"
    before = losses.read_text()
    losses.write_text(before + "# changed\n")
    assert "mylab " in done(lab, *train, code=2).stderr
    losses.write_text(before)
    done(lab, *train)
    assert json.loads((folder / "result.json").read_text())["step"] == 6

    # A command that lacks the code says which, and finds it with --plugin.
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    Image.fromarray(image).save(lab / "digit.png")
    predict = ["vit_jax", "predict", "digit.png", "--model=runs/bag"]
    lacks = done(lab, *predict, code=2).stderr
    assert "mylab.bag" in lacks
    assert "--plugin=mylab.losses" in lacks
    assert "%" in done(lab, *predict, "--plugin=mylab").stdout
    done(lab, "vit_jax", "eval", "--plugin=mylab", *run)
