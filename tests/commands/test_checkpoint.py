import shutil

import jax.numpy as jnp
import optax
import pytest
from processes import user_error

from vit_jax.config.run import CheckpointConfig
from vit_jax.run.about import choose_checkpoint
from vit_jax.run.checkpoints import CheckpointFolder
from vit_jax.run.damage import read_about, read_item
from vit_jax.run.folder import git_revision
from vit_jax.train.state import TrainState

CONFIG = {"seed": 3, "model": {"name": "ViT-Ti/16", "depth": None}, "mesh": {"rules": []}}
DATA = {"step": 20, "seed": 3, "examples_seen": 640, "dataset": "digits"}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A run folder with checkpoints of two steps that have only JSON files, no arrays."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    params = {
        "head": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)},
        "probe": jnp.ones((4, 1), jnp.bfloat16),
    }
    optimizer = optax.adam(1e-3).init({"head": params["head"]})
    state = TrainState(jnp.zeros((), jnp.int32), params, optimizer, params)
    keep = CheckpointConfig(keep_last=2)
    with CheckpointFolder(folder / "checkpoints", keep) as checkpoints:
        for step in (10, 20):
            checkpoints.save(step, state, data=DATA | {"step": step}, config=CONFIG)
    for step in (10, 20):
        for item in ("params", "optimizer", "ema"):
            shutil.rmtree(folder / "checkpoints" / str(step) / item)
    (folder / "checkpoints" / "30.orbax-checkpoint-tmp-1").mkdir()
    return folder


@pytest.mark.parametrize(("below", "step"), [("", 20), ("checkpoints", 20), ("checkpoints/10", 10)])
def test_the_path_may_be_a_run_its_checkpoints_or_one_step(workdir, below, step):
    at = choose_checkpoint(workdir / below)
    assert at == workdir / "checkpoints" / str(step)
    about = read_about(at)
    assert read_item(at, "config", about) == CONFIG
    assert read_item(at, "data", about) == DATA | {"step": step}
    assert about["arrays"]["params"]["head/kernel"] == {"shape": [3, 2], "dtype": "float32"}
    assert about["arrays"]["params"]["probe"] == {"shape": [4, 1], "dtype": "bfloat16"}
    assert about["arrays"]["optimizer"]["0/count"] == {"shape": [], "dtype": "int32"}
    assert about["environment"]["git_revision"] == git_revision()
    assert about["environment"]["packages"].keys() >= {"jax", "flax", "orbax-checkpoint"}


@pytest.mark.parametrize(
    ("path", "got"),
    [
        ("gone", "no folder {here}/gone"),
        ("one/checkpoints/40", "no folder {here}/one/checkpoints/40"),
        (".", "no checkpoint in {here}"),
        ("other", "1 of 1 checkpoints in {here}/other are damaged: step 7"),
    ],
)
def test_a_path_without_a_checkpoint_is_a_one_line_error(workdir, path, got, capsys):
    here = workdir.parent
    (here / "other" / "7").mkdir(parents=True, exist_ok=True)
    (here / "other" / "7" / "commit_success.txt").write_text("")
    line = user_error(capsys, ["checkpoint", "verify", str(here / path)])
    assert line.startswith(f"error: {got.format(here=here)}")


@pytest.mark.parametrize("arguments", [[], ["verify"], ["show", "x"], ["verify", "x", "--bad"]])
def test_wrong_arguments_are_one_line_errors(arguments, capsys):
    assert user_error(capsys, ["checkpoint", *arguments])
