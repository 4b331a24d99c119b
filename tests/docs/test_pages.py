"""The code and the commands in the README and the documentation work as printed."""

import argparse
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from golden import recipe as golden
from PIL import Image
from vocabularies import write_word_level
from weight_files import random_weights

from vit_jax.closed_pipes import EXIT_CLOSED_PIPE
from vit_jax.config.file import load_config
from vit_jax.errors import EXIT_INTERRUPTED, EXIT_STOPPED, HostsError, UserError
from vit_jax.interop.export import export_stablehlo
from vit_jax.sweep.scheduler import EXIT_FAILED

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
README = PAGES["README.md"]


def blocks(language, text):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(text):
    """Returns every line of a page that runs `python -m` with a module of this project."""
    lines = "\n".join(blocks("bash", text)).replace("\\\n", " ").splitlines()
    return [
        line.split(" && ")[-1].replace(".venv/bin/python", "python")
        for line in lines
        if re.search(r"-m (vit_jax|experiments\.\S+)( |$)", line)
    ]


# In the order of the pages, without repetitions.
COMMANDS = list(dict.fromkeys(line for text in PAGES.values() for line in commands(text)))


def run(command, folder, **kwargs):
    return subprocess.run(
        command, shell=True, cwd=folder, text=True, capture_output=True, timeout=1500, **kwargs
    )


def test_install_and_train_and_test_take_one_line_each():
    install_and_train, install_and_test = blocks("bash", README)[:2]
    assert len(install_and_train.strip().splitlines()) == 1
    assert "-r requirements.txt" in install_and_train
    assert "train --config=configs/quickstart.py --workdir=runs/quickstart" in install_and_train
    assert len(install_and_test.strip().splitlines()) == 1
    assert "-r requirements-dev.txt" in install_and_test
    assert "pytest" in install_and_test


def test_the_readme_can_be_read_in_one_sitting():
    assert len(README.splitlines()) <= 150


def put_stand_ins(folder):
    """Writes the files that the examples open. The weights belong to a small ViT."""
    described = json.loads((ROOT / "tests/golden/vit_ti16_224.json").read_text())
    np.savez(folder / "B_16.npz", **golden.weights(described["shapes"]))
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(folder / "photo.jpg")
    write_word_level(folder)


@pytest.fixture(scope="module")
def folder_with_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    put_stand_ins(folder)
    digits = random_weights(folder / "digits", "ViT-Mini/4", image_size=(8, 8))
    export_stablehlo(digits, folder / "quickstart.stablehlo")
    return folder


CAPTURED = {"attention_weights", "pre_logits"}
# What each Python example leaves behind: (page, number of the block) -> check.
RESULTS = {
    ("README.md", 0): lambda names: names["logits"].shape == (2, 37),
    ("docs/how-to/analyze.md", 0): lambda names: (
        names["found"].mean.shape == (12, 3) and names["found"].uniform > 0
    ),
    ("docs/how-to/dense.md", 0): lambda names: (
        [m.shape for m in names["maps"]] == [(1, 14, 14, 192)] * 4
    ),
    ("docs/how-to/image-text.md", 0): lambda names: names["logits"].shape == (1, 2),
    ("docs/how-to/models.md", 0): lambda names: (
        names["logits"].shape == (2, 10) and set(names["found"]) == CAPTURED
    ),
    ("docs/how-to/sweeps.md", 0): lambda names: len(list(names["get_sweep"]())) == 3,
    ("docs/how-to/weights.md", 0): lambda names: (
        names["model"].head.linear.kernel.shape == (192, 37)
    ),
    ("docs/how-to/weights.md", 1): lambda names: names["logits"].shape == (2, 5),
    ("docs/reference/api.md", 0): lambda names: names["model"].head.linear.kernel.shape[1] == 10,
    ("docs/tutorials/first-run.md", 0): lambda names: names["model"].grid == (4, 4),
    ("docs/tutorials/transfer-sweep.md", 0): lambda names: len(list(names["get_sweep"]())) == 4,
    ("docs/tutorials/weights.md", 0): lambda names: names["found"]["pre_logits"].shape == (2, 192),
    ("docs/tutorials/weights.md", 1): lambda names: (
        names["larger"].grid == (24, 24) and names["other"].head.linear.kernel.shape == (192, 37)
    ),
    ("docs/tutorials/weights.md", 2): lambda names: names["losses"][-1] < names["losses"][0],
}
EXAMPLES = {
    (page, index): code
    for page, text in PAGES.items()
    for index, code in enumerate(blocks("python", text))
}


def test_every_python_example_has_a_check():
    assert EXAMPLES.keys() == RESULTS.keys()


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_python_examples_run_and_give_what_they_say(example, folder_with_files, monkeypatch):
    monkeypatch.chdir(folder_with_files)
    names = {}
    code = compile(EXAMPLES[example], " block ".join(map(str, example)), "exec")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(code, names)  # As users have it.
    assert RESULTS[example](names)


def test_the_train_commands_name_configs_and_keys_that_exist():
    trains = [c for c in COMMANDS if "vit_jax train " in c]
    assert len(trains) >= 10
    for command in trains:
        words = shlex.split(command.split("; do ")[-1].split(" & ")[0])
        spec = next(w for w in words if w.startswith("--config=")).removeprefix("--config=")
        overrides = [w.removeprefix("--config.") for w in words if w.startswith("--config.")]
        if "configs/" in spec:
            load_config(str(ROOT / spec), overrides)


@pytest.mark.parametrize("line", [c for c in COMMANDS if "-m vit_jax" in c])
def test_every_command_has_only_arguments_that_exist(line):
    """Also those that are not run here, because they need data or hardware."""
    line = line.split("-m vit_jax", 1)[1].split(" & ")[0].replace("$i", "0")
    words = shlex.split(line, comments=True)
    module = importlib.import_module(f"vit_jax.commands.{words[0]}")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    module.add_arguments(parser)
    _, rest = parser.parse_known_args(words[1:])
    assert not [word for word in rest if not word.startswith(("--config.", "--model.", "--slurm."))]


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
    rows = re.findall(r"^  \| (\d+) \| ", PAGES["docs/how-to/train.md"], re.MULTILINE)
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
    first, second = (block.strip() for block in blocks("bash", README)[:2])
    done = run(first, fresh_clone, env=environment)
    assert done.returncode == 0, done.stderr
    assert (fresh_clone / "runs/quickstart/result.json").exists()
    assert (fresh_clone / "runs/quickstart/report/curves.png").stat().st_size > 10_000
    # Commands with a placeholder in capitals need data that this machine does not have.
    rest = [c for c in COMMANDS[1:] if not re.search(r"\b[A-Z]{4,}\b", c)]
    assert rest
    environment["XLA_FLAGS"] = os.environ["XLA_FLAGS"]
    environment["PATH"] = f"{fresh_clone}/.venv/bin:{environment['PATH']}"
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
