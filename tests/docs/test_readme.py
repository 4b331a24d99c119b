"""The code and the commands in the README work as printed."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from golden import recipe as golden
from PIL import Image
from weight_files import random_weights

from vit_jax.closed_pipes import EXIT_CLOSED_PIPE
from vit_jax.config.file import load_config
from vit_jax.errors import EXIT_INTERRUPTED, EXIT_STOPPED, HostsError, UserError
from vit_jax.interop.export import export_stablehlo
from vit_jax.sweep.scheduler import EXIT_FAILED

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands():
    """Returns every line of the README that runs `python -m` with a module of this project."""
    lines = "\n".join(blocks("bash")).replace("\\\n", " ").splitlines()
    return [
        line.split(" && ")[-1]
        for line in lines
        if re.search(r"-m (vit_jax|experiments\.\S+)( |$)", line)
    ]


def run(command, folder, **kwargs):
    return subprocess.run(
        command, shell=True, cwd=folder, text=True, capture_output=True, timeout=1500, **kwargs
    )


def test_install_and_train_and_test_take_one_line_each():
    install_and_train, install_and_test = blocks("bash")[:2]
    assert len(install_and_train.strip().splitlines()) == 1
    assert "-r requirements.txt" in install_and_train
    assert "train --config=configs/quickstart.py --workdir=runs/quickstart" in install_and_train
    assert len(install_and_test.strip().splitlines()) == 1
    assert "-r requirements-dev.txt" in install_and_test
    assert "pytest" in install_and_test


def put_stand_ins(folder):
    """Writes the files that the README's examples open. The weights belong to a small ViT."""
    described = json.loads((ROOT / "tests/golden/vit_ti16_224.json").read_text())
    np.savez(folder / "B_16.npz", **golden.weights(described["shapes"]))
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(folder / "photo.jpg")


@pytest.fixture(scope="module")
def folder_with_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    put_stand_ins(folder)
    digits = random_weights(folder / "digits", "ViT-Mini/4", image_size=(8, 8))
    export_stablehlo(digits, folder / "quickstart.stablehlo")
    return folder


# What each Python example leaves behind, in the order of the README.
RESULTS = (
    lambda names: [m.shape for m in names["maps"]] == [(1, 14, 14, 192)] * 4,
    lambda names: len(list(names["get_sweep"]())) == 3,
    lambda names: names["logits"].shape == (2, 10) and set(names["found"]) == CAPTURED,
    lambda names: names["model"].head.linear.kernel.shape == (192, 37),
    lambda names: names["logits"].shape == (2, 5),
    lambda names: names["found"].mean.shape == (12, 3) and names["found"].uniform > 0,
)
CAPTURED = {"attention_weights", "pre_logits"}


@pytest.mark.parametrize("index", range(len(blocks("python"))))
def test_the_python_examples_run_and_give_what_they_say(index, folder_with_files, monkeypatch):
    monkeypatch.chdir(folder_with_files)
    names = {}
    exec(compile(blocks("python")[index], f"README.md, Python block {index}", "exec"), names)
    assert RESULTS[index](names)


def test_the_train_commands_name_configs_and_keys_that_exist():
    trains = [c for c in commands() if " train " in c]
    assert len(trains) >= 4
    for command in trains:
        words = command.split()
        spec = next(w for w in words if w.startswith("--config=")).removeprefix("--config=")
        overrides = [w.removeprefix("--config.") for w in words if w.startswith("--config.")]
        load_config(str(ROOT / spec), overrides)


@pytest.fixture(scope="module")
def fresh_clone(tmp_path_factory):
    """Returns a copy of all files that git does not ignore."""
    folder = tmp_path_factory.mktemp("clone") / "vit_jax"
    listed = run("git ls-files --cached --others --exclude-standard", ROOT).stdout.splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def test_the_table_of_exit_codes_has_all_that_the_program_uses():
    rows = re.findall(r"^  \| (\d+) \| ", README, re.MULTILINE)
    signals = [128 + number for number in (signal.SIGINT, signal.SIGKILL, signal.SIGPIPE)]
    own = [0, EXIT_FAILED, UserError.exit_code, EXIT_STOPPED, HostsError.exit_code]
    assert list(map(int, rows)) == [*own, *signals, 128 + signal.SIGTERM]
    assert (signals[0], signals[2]) == (EXIT_INTERRUPTED, EXIT_CLOSED_PIPE)


@pytest.mark.slow
def test_the_commands_work_in_a_fresh_clone(fresh_clone):
    home = fresh_clone.parent / "home"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    put_stand_ins(fresh_clone)
    first, second = (block.strip() for block in blocks("bash")[:2])
    done = run(first, fresh_clone, env=environment)
    assert done.returncode == 0, done.stderr
    assert (fresh_clone / "runs/quickstart/result.json").exists()
    assert (fresh_clone / "runs/quickstart/report/curves.png").stat().st_size > 10_000
    # Commands with a placeholder in capitals need data that this machine does not have.
    rest = [c for c in commands()[1:] if not re.search(r"\b[A-Z]{4,}\b", c)]
    assert rest
    environment["XLA_FLAGS"] = os.environ["XLA_FLAGS"]
    for command in rest:
        done = run(command, fresh_clone, env=environment)
        if re.search(r"--topology='?(\d\*)?[abhl]\d+:", command):
            # JAX's CUDA plugin, some gigabytes, is not among the requirements.
            assert done.returncode == 2, (command, done.stdout)
            assert "run pip install 'vit_jax[cuda]'" in done.stderr
        else:
            assert done.returncode == 0, (command, done.stderr)
    done = run(
        second.replace("-m pytest", "-m pytest --collect-only -q"), fresh_clone, env=environment
    )
    assert done.returncode == 0, done.stdout
