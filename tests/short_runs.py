"""A finished run of seconds that tests copy and damage: fixtures of `conftest.py`."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from processes import UNMIXED

from vit_jax.__main__ import main
from vit_jax.run.digest import json_digest

SHORT = ["--config.train_steps=30", "--config.logging.interval_steps=5"]


def train(workdir, digits_dir, *overrides):
    """Trains or resumes a run in this process; returns the exit code."""
    data = f"--config.data.data_dir={digits_dir}"
    return main(["train", f"--config={UNMIXED}", f"--workdir={workdir}", data, *SHORT, *overrides])


def saved_steps(workdir):
    return sorted(int(p.name) for p in (workdir / "checkpoints").iterdir() if p.name.isdigit())


def read_item(path):
    """Returns an item of a checkpoint as NumPy arrays, whatever devices saved it."""
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.metadata(path).item_metadata.tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        return checkpointer.restore(path, restore_args=as_numpy)


def content(folder):
    """Returns relative path -> bytes of all files in a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="session")
def finished(tmp_path_factory, digits_dir, once):
    """The folder of a finished run with checkpoints of steps 20 and 30; tests only read it."""

    def make():
        folder = tmp_path_factory.mktemp("finished") / "run"
        with jax.numpy_dtype_promotion("standard"):  # optax.adam raises a float to an int power.
            assert train(folder, digits_dir) == 0
        return str(folder)

    return Path(once("finished", make))


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the finished run that a test may damage."""
    return shutil.copytree(finished, tmp_path / "run")


def rewrite_item(metadata, content):
    """Writes another content into a JSON item of a checkpoint, and the digests that fit it."""
    metadata.write_text(json.dumps(content))
    about = metadata.parents[1] / "about" / "metadata"
    saved = {k: v for k, v in json.loads(about.read_text()).items() if k != "digest"}
    saved["digests"]["json"][metadata.parent.name] = json_digest(content)
    about.write_text(json.dumps(saved | {"digest": json_digest(saved)}))
