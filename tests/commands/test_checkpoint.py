import json
import shutil

import jax.numpy as jnp
import optax
import pytest
from processes import run_command, user_error

from vit_jax.__main__ import main
from vit_jax.config.run import CheckpointConfig
from vit_jax.run.checkpoints import CheckpointFolder
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


def test_arrays_config_step_and_revision_are_printed_without_the_arrays(workdir, capsys):
    assert main(["checkpoint", "inspect", str(workdir)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for line in (
        f"{workdir}/checkpoints/20",
        "step 20",
        "other steps 10",
        f"git revision {git_revision()}",
        "data examples seen 640",
        "params: 3 arrays, 12 values, 0.00 MB",
        "head/kernel 3x2 float32",
        "probe 4x1 bfloat16",
        # A count, and two moments of what the optimizer knows of.
        "optimizer: 5 arrays, 17 values, 0.00 MB",
        'model.name = "ViT-Ti/16"',
    ):
        assert line.split() in lines, line


@pytest.mark.parametrize(("below", "step"), [("", 20), ("checkpoints", 20), ("checkpoints/10", 10)])
def test_the_path_may_be_a_run_its_checkpoints_or_one_step(workdir, below, step, capsys):
    assert main(["checkpoint", "inspect", str(workdir / below), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == step
    assert found["path"] == str(workdir / "checkpoints" / str(step))
    assert found["other_steps"] == [30 - step]
    assert found["config"] == CONFIG
    assert found["data"] == DATA | {"step": step}
    assert found["arrays"]["params"]["head/kernel"] == {"shape": [3, 2], "dtype": "float32"}
    assert found["arrays"]["optimizer"]["0/count"] == {"shape": [], "dtype": "int32"}
    assert found["environment"]["git_revision"] == git_revision()
    assert found["environment"]["packages"].keys() >= {"jax", "flax", "orbax-checkpoint"}


@pytest.mark.slow
def test_no_device_is_opened(workdir, tmp_path):
    """No JAX backend is started, not even the CPU's: another process may hold the devices."""
    program = tmp_path / "inspect_only.py"
    program.write_text(
        "import os, sys; from vit_jax.__main__ import main\n"
        f"code = main(['checkpoint', 'inspect', {str(workdir)!r}])\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, xla_bridge._backends\n"
        "sys.exit(code)"
    )
    done = run_command(program)
    assert done.returncode == 0, done.stderr
    assert "step            20" in done.stdout


@pytest.mark.parametrize(
    ("path", "got"),
    [
        ("gone", "no folder {here}/gone"),
        ("one/checkpoints/40", "no folder {here}/one/checkpoints/40"),
        (".", "no checkpoint in {here}"),
        ("other", "{here}/other/7 has no about/metadata"),
        ("cut", "{here}/cut/7/about/metadata is damaged: Expecting value"),
    ],
)
def test_a_path_without_a_checkpoint_is_a_one_line_error(workdir, path, got, capsys):
    here = workdir.parent
    (here / "other" / "7").mkdir(parents=True, exist_ok=True)
    (here / "cut" / "7" / "about").mkdir(parents=True, exist_ok=True)
    (here / "cut" / "7" / "about" / "metadata").write_text("")
    for name in ("other", "cut"):
        (here / name / "7" / "_CHECKPOINT_METADATA").write_text("{}")
    line = user_error(capsys, ["checkpoint", "inspect", str(here / path)])
    assert line.startswith(f"error: {got.format(here=here)}")


@pytest.mark.parametrize("arguments", [[], ["inspect"], ["show", "x"], ["inspect", "x", "--bad"]])
def test_wrong_arguments_are_one_line_errors(arguments, capsys):
    assert user_error(capsys, ["checkpoint", *arguments])
