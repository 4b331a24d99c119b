"""Our own runs and converted folders."""

import json
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from interop.files import assert_same_params, logits, params
from processes import TINY

from vit_jax.config.file import load_config
from vit_jax.errors import WeightsError
from vit_jax.interop.load import load
from vit_jax.interop.report import Status
from vit_jax.models.registry import build_model, model_options
from vit_jax.named_tree import named_leaves
from vit_jax.train.loop import train
from vit_jax.train.signals import StopSignals

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.


@pytest.fixture(scope="module")
def run(digits_dir, tmp_path_factory):
    """A run of twenty steps that keeps the tenth and the last."""
    workdir = tmp_path_factory.mktemp("native") / "run"
    overrides = [  # The step is that of tests/train/test_loop.py, so that it is compiled once.
        f"data.data_dir={digits_dir}", "train_steps=20", "evaluation.interval_steps=100",
        "checkpoint.interval_steps=10", "logging.interval_steps=20",
        "optimizer.schedule.warmup_steps=2",
    ]  # fmt: skip
    with jax.numpy_dtype_promotion("standard"):
        train(load_config(str(TINY), overrides), workdir, StopSignals())
    return workdir


def saved(step_folder, item):
    """Returns the arrays of a checkpoint by name, and the model that they make."""
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.restore(step_folder / item)
    config = json.loads((step_folder / "config" / "metadata").read_text())["model"]
    options = model_options(**config)
    key = jax.random.key(0)
    abstract = nnx.eval_shape(lambda: build_model(options, num_classes=10, image_size=8, key=key))
    arrays = named_leaves(tree)
    return arrays, nnx.merge(nnx.graphdef(abstract), tree), options


def test_a_run_gives_the_moving_average_of_its_latest_step(run):
    images = np.random.default_rng(0).uniform(-1, 1, (4, 8, 8, 3)).astype(np.float32)
    arrays, model, options = saved(run / "checkpoints" / "20", "ema")
    loaded = load(run)
    assert loaded.report.format == "vit_jax"
    assert (loaded.options, loaded.num_classes, loaded.image_size) == (options, 10, (8, 8))
    assert_same_params(params(loaded.model), arrays)
    assert {status for status, _, _ in loaded.report.entries} == {Status.TAKEN}
    found = logits(loaded.model, images)
    np.testing.assert_array_equal(found, logits(model, images))
    _, last, _ = saved(run / "checkpoints" / "20", "params")
    assert np.abs(found - logits(last, images)).max() > 1e-3


def test_a_step_of_a_run(run):
    steps = run / "checkpoints"
    earlier, _, _ = saved(steps / "10", "ema")
    latest, _, _ = saved(steps / "20", "ema")
    name = "patch_embedding/kernel"
    assert np.abs(earlier[name] - latest[name]).max() > 1e-4
    assert_same_params(params(load(steps / "10").model), earlier)
    assert_same_params(params(load(steps / "20").model), latest)
    assert_same_params(params(load(steps).model), latest)


def test_the_latest_step_is_the_largest_number(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    steps = tmp_path / "run" / "checkpoints"
    (steps / "10").rename(steps / "9")
    want, _, _ = saved(steps / "20", "ema")
    assert_same_params(params(load(tmp_path / "run").model), want)


def test_a_run_without_a_moving_average_gives_its_parameters(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    step = tmp_path / "run" / "checkpoints" / "20"
    about = step / "config" / "metadata"
    config = json.loads(about.read_text()) | {"ema_decay": None}
    about.write_text(json.dumps(config))
    shutil.rmtree(step / "ema")
    want, _, _ = saved(step, "params")
    assert_same_params(params(load(tmp_path / "run").model), want)


def test_a_run_is_fine_tuned_at_another_size_with_another_head(run):
    loaded = load(run, image_size=12, num_classes=3)
    assert loaded.model.grid == (3, 3)
    assert loaded.report.names(Status.RESIZED) == ["position_embedding/table"]
    assert not params(loaded.model)["head/linear/kernel"].any()


def test_an_incomplete_checkpoint_is_passed_over(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "20" / "_CHECKPOINT_METADATA").unlink()
    want, _, _ = saved(run / "checkpoints" / "10", "ema")
    assert_same_params(params(load(tmp_path / "run").model), want)


def test_a_run_that_has_saved_nothing(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"no checkpoint in .*expected a run that has saved"):
        load(tmp_path)


def test_a_damaged_checkpoint_is_one_line(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints" / "20" / "ema").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(WeightsError, match="cannot be read: ") as caught:
        load(tmp_path / "run")
    assert "take another step of the run" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert load(tmp_path / "run" / "checkpoints" / "10").num_classes == 10
