"""Every command in the README and the documentation is run, or its page says what it needs."""

import argparse
import dataclasses
import importlib
import io
import os
import re
import shlex
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from docs.test_pages import PAGES, README, ROOT, blocks, put_stand_ins
from images import encode, noise
from report.fake_runs import write_sweep
from tfds_stand_ins import write_tfds

from vit_jax.config.file import load_config

# What a test of this machine lacks: `<!-- needs: gpu -->` before a block marks all its commands,
# and `<!-- needs: gpu: WORDS -->` those with these words.
NEEDS = {"tpu", "gpu", "cloud", "imagenet", "network", "time", "edit"}
# Names of the pages for what a reader has: `put_all_stand_ins` makes them, under these names.
STAND_INS = {"PHOTOS", "DATA", "RUN", "RUNS", "SWEEP", "NAME"}
_NAME = re.compile(r"(?<![\w$./])[A-Z][A-Z_]{2,}\b(?:\.\w+)?(?!=)")
_MARK = re.compile(r"<!-- needs: (.*?) -->\n+")
_BLOCK = re.compile(r"((?:<!-- needs: [^\n]* -->\n+)*)```bash\n(.*?)```", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Command:
    """A line of a page, and what it needs; "" if it can be run here."""

    page: str
    line: str
    needs: str


def commands(page, text):
    """Returns every line of the bash blocks of a page."""
    found, used = [], 0
    for marks, block in _BLOCK.findall(text):
        rules = [mark.partition(": ")[::2] for mark in _MARK.findall(marks)]
        used += len(rules)
        lines = [" ".join(line.split()) for line in block.replace("\\\n", " ").splitlines()]
        for need, words in rules:
            assert need in NEEDS, f"{page}: needs: {need}"
            assert any(words in line for line in lines), f"{page}: no command has {words!r}"
        for line in filter(None, lines):
            needs = next((need for need, words in rules if words in line), "")
            found.append(Command(page, line.replace(".venv/bin/", ""), needs))
    assert used == len(_MARK.findall(text)), f"{page}: a mark is not before a block"
    return found


COMMANDS = [command for page, text in PAGES.items() for command in commands(page, text)]
_OURS = re.compile(r"(?:-m vit_jax|vit-jax) ")
# Without repetitions, in the order of the pages.
OURS = list(dict.fromkeys(c.line for c in COMMANDS if _OURS.search(c.line)))


def test_every_command_is_run_or_marked():
    assert len(COMMANDS) > 80
    for command in COMMANDS:
        lacks = {*_NAME.findall(command.line)} - STAND_INS - {"PLAN.json"}
        lacks = lacks or re.search(r"(gs|s3|hf)://|gcloud", command.line)
        fix = "add a stand-in, or <!-- needs: ... --> to the page"
        assert command.needs or not lacks, f"{command}: {fix}"


def test_the_train_commands_name_configs_and_keys_that_exist():
    edits = {command.line for command in COMMANDS if command.needs == "edit"}
    trains = [line for line in OURS if "vit_jax train " in line and line not in edits]
    assert len(trains) >= 10
    for line in trains:
        words = shlex.split(line.split("; do ")[-1].split(" & ")[0])
        spec = next(w for w in words if w.startswith("--config=")).removeprefix("--config=")
        overrides = [w.removeprefix("--config.") for w in words if w.startswith("--config.")]
        if "configs/" in spec:
            load_config(str(ROOT / spec), overrides)


@pytest.mark.parametrize("line", OURS)
def test_every_command_has_only_arguments_that_exist(line):
    """Also those that are not run here."""
    line = _OURS.split(line)[1].split(" & ")[0].replace("$i", "0")
    words = shlex.split(line, comments=True)
    module = importlib.import_module(f"vit_jax.commands.{words[0]}")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    module.add_arguments(parser)
    _, rest = parser.parse_known_args(words[1:])
    assert not [
        word
        for word in rest
        if not word.startswith(("--config.", "--model.", "--slurm.", "--plugin="))
    ]


def put_all_stand_ins(folder):
    """Writes what the commands of the pages read, under the names of the pages."""
    put_stand_ins(folder)
    for name in ("S_16.npz", "B_16-imagenet2012.npz"):
        shutil.copy(folder / "B_16.npz", folder / name)
    for number in range(60):
        path = folder / "PHOTOS" / ("cat", "cow", "dog")[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(noise(60, 80, number)))
    write_dataset(folder / "DATA", "cifar10")
    write_dataset(folder / "DATA", "oxford_iiit_pet")
    (folder / "RUN").symlink_to("runs/quickstart")
    for name in ("RUNS", "SWEEP"):
        write_sweep(folder / name)
    for name in ("NAME", "mine"):
        (folder / "experiments" / name).mkdir()
    sweep, tutorial = (
        blocks("python", PAGES[f"docs/{page}.md"])[0]
        for page in ("how-to/sweeps", "tutorials/transfer-sweep")
    )
    (folder / "experiments/NAME/sweep.py").write_text(sweep)
    (folder / "transfer.py").write_text(tutorial)
    markers = "<!-- report -->\n<!-- end of report -->\n"
    (folder / "experiments/mine/README.md").write_text(markers)


def write_dataset(folder, name):
    """Writes a dataset with the name and the features of one of TFDS: 60 and 20 made-up images."""
    real = tfds.builder(name, data_dir=str(folder))
    features: Any = real.info.features

    def example(k):
        content = {
            "image": io.BytesIO(encode(noise(32, 32, k))),
            "label": k % features["label"].num_classes,
            "id": str(k),
            "file_name": f"{k}.png",
            "species": 0,
            "head_bbox": tfds.features.BBox(0.0, 0.0, 1.0, 1.0),
            "segmentation_mask": io.BytesIO(encode(np.zeros((32, 32), np.uint8))),
        }
        return {key: content[key] for key in features}

    splits = {"train": map(example, range(60)), "test": map(example, range(60, 80))}
    write_tfds(folder, name, features, splits, version=real.version)


def shortened(line):
    """Returns a command with less work: few steps, small images, jobs of a sweep only printed."""
    train = "train --config=configs/" in line and "quickstart" not in line
    if train and "--config.train_steps" not in line:
        size = " --config.data.image_size=64" if "init_from=" in line else ""
        return f"{line} --config.train_steps=2 --config.data.global_batch_size=8{size}"
    if "--sweep=experiments/" in line and "--executor" not in line:
        return f"{line} --executor=commands"
    return line.replace("-m pytest", "-m pytest --collect-only -q")


@pytest.fixture
def fresh_clone(tmp_path):
    """Returns a copy of all files that git does not ignore, with the stand-ins."""
    folder = tmp_path / "vit_jax"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, text=True, capture_output=True, check=True,
    )  # fmt: skip
    for name in filter(lambda name: (ROOT / name).is_file(), listed.stdout.splitlines()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    put_all_stand_ins(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False], ids=["README and tutorials", "other pages"])
def test_the_commands_work_in_a_fresh_clone(fresh_clone, own):
    for name in STAND_INS:
        assert any(os.path.lexists(f / name) for f in (fresh_clone, fresh_clone / "experiments"))
    home = fresh_clone.parent / "home"
    home.mkdir()
    environment = {"HOME": str(home), "XLA_FLAGS": os.environ["XLA_FLAGS"]}
    environment["PATH"] = f"{fresh_clone}/.venv/bin:{os.environ['PATH']}"
    first = blocks("bash", README)[0].strip()  # Makes the environment and trains the quickstart.
    lines = [first if own else first.replace(".venv/bin/", "").rpartition(" && ")[2]]
    for command in COMMANDS[1:]:
        # The README and the tutorials begin with an installation.
        is_own = command.page == "README.md" or "/tutorials/" in command.page
        if not command.needs and "-m venv" not in command.line and is_own == own:
            lines.append(command.line)
    for line in dict.fromkeys(lines):
        line = shortened(line).replace("/PATH/TO/vit_jax", str(fresh_clone))
        if folder := re.search(r" (?:train|sweep) .*--workdir=(\S+)", line):
            shutil.rmtree(fresh_clone / folder[1], ignore_errors=True)  # Of another page.
        done = subprocess.run(
            ["bash", "-c", line], cwd=fresh_clone, env=environment, text=True,
            capture_output=True, timeout=3600,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stderr)
    assert (fresh_clone / "runs/quickstart/result.json").exists()
    if own:
        assert (fresh_clone / "runs/quickstart/report/curves.png").stat().st_size > 10_000
