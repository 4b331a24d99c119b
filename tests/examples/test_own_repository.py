"""`examples/own_repository`: its own tests, and its way from outside the clone."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import numpy as np
import pytest
from PIL import Image
from processes import ROOT, run_command, wait_for

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
    assert "6 passed" in out


def install_wheel(source, folder):
    """Builds the wheel of a package, from a copy of its files, and unpacks it."""
    copy = folder.parent / f"{source.name}-copy"
    left_out = shutil.ignore_patterns(".git", "build", "*.egg-info", "runs", "experiments", "tests")
    shutil.copytree(source, copy, ignore=left_out)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", copy / "dist"]
    subprocess.run([*build, copy], check=True, capture_output=True)
    (wheel,) = (copy / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    shutil.rmtree(copy)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A fresh environment with both wheels, which sees the other packages of this one."""
    environment = tmp_path_factory.mktemp("fresh") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install_wheel(ROOT, packages)
    install_wheel(EXAMPLE, packages)
    return environment / "bin" / "python"


@pytest.mark.slow
def test_the_example_goes_its_whole_way_in_a_fresh_environment(python, tmp_path):
    """Train, kill, resume, evaluate, predict, another task, sweep, report, outside the clone."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    recipe = (EXAMPLE / "recipe.py").read_text()
    (tmp_path / "recipe.py").write_text(recipe.replace('"train_steps": 200', '"train_steps": 40'))
    shutil.copy(EXAMPLE / "sweep.py", tmp_path)

    def command(*arguments):
        return subprocess.Popen(
            [python, "-m", "vit_jax", *arguments], cwd=tmp_path, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def done(*arguments, code=0):
        process = command(*arguments)
        out, err = process.communicate()
        assert process.returncode == code, err
        return out if code == 0 else err

    folder = tmp_path / "runs" / "bag"
    train = ["train", "--config=recipe.py", "--config.checkpoint.interval_steps=5"]
    process = command(*train, f"--workdir={folder}")
    wait_for(lambda: (folder / "checkpoints" / "5").is_dir(), process)
    process.kill()
    process.communicate()
    assert not (folder / "result.json").exists()
    done(*train, f"--workdir={folder}")
    done(*train, f"--workdir={tmp_path / 'whole'}")
    digests = [
        json.loads((f / "result.json").read_text())["weights_digest"]
        for f in (folder, tmp_path / "whole")
    ]
    assert digests[0] == digests[1]
    plugins = json.loads((folder / "env.json").read_text())["plugins"]
    assert plugins["mylab"]["version"] == "0.1.0"
    names = ["augmentations", "bag", "losses", "metrics", "sources"]
    assert plugins["mylab"]["modules"] == [f"mylab.{name}" for name in names]

    # Changed code of its own does not continue a run unless asked to.
    losses = next(python.parents[1].glob("lib/python*/site-packages/mylab/losses.py"))
    before = losses.read_text()
    (folder / "result.json").unlink()
    losses.write_text(before + "# changed\n")
    assert "mylab " in done(*train, f"--workdir={folder}", code=2)
    losses.write_text(before)
    done(*train, f"--workdir={folder}")

    # Other commands find the code by its entry point.
    assert re.search(r"eval/test/worst_class +│ +0\.\d+", done("eval", f"--workdir={folder}"))
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    answer = done("predict", "image.png", f"--model={folder}")
    assert re.search(r"%  (square|disc|triangle)\n", answer)
    done(*train[:2], "--workdir=runs/turns", "--config.task.name=rotation", "--config.task.turns=2")
    done("sweep", "--sweep=sweep.py", "--workdir=runs/sweep")
    report = done("report", "runs/sweep", "--table=metric=eval/test/worst_class")
    assert re.search(r"Worst class, test", report)
    assert "5 runs: 5 finished" in report


@pytest.mark.slow
def test_a_command_that_lacks_the_code_says_which_and_finds_it_with_plugin(lab):
    train = ["vit_jax", "train", "--config=recipe.py", "--workdir=runs/bag"]
    done(lab, *train, "--config.train_steps=2", "--config.logging.curves=False")
    predict = ["vit_jax", "predict", "image.png", "--model=runs/bag"]
    Image.fromarray(np.zeros((24, 24, 3), np.uint8)).save(lab / "image.png")
    lacks = done(lab, *predict, code=2).stderr
    assert "--plugin=mylab if" in lacks
    assert "%" in done(lab, *predict, "--plugin=mylab").stdout
    table = ["vit_jax", "report", "runs/bag", "--table=metric=eval/test/worst_class"]
    words = "larger values of 'worst_class' are taken to be better, because its code is not loaded"
    assert words in done(lab, *table).stderr
    assert words not in done(lab, *table, "--plugin=mylab").stderr
