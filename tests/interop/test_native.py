"""Our own weights: run folders and folders that `convert` writes."""

import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import nnx
from interop.files import assert_same_params, params
from processes import TINY
from random_models import random_model
from short_runs import rewrite_item

from vit_jax.config.file import load_config
from vit_jax.errors import WeightsError
from vit_jax.interop.load import load
from vit_jax.interop.report import Status
from vit_jax.models.registry import model_options
from vit_jax.named_tree import named_leaves
from vit_jax.run.checkpoints import CheckpointFolder

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder with steps 10 and 20, and (step, "params" or "ema") -> parameters by name."""
    workdir = tmp_path_factory.mktemp("native") / "run"
    config = load_config(str(TINY), [])
    options = dict(config.model.to_mapping())
    saved = {}
    with CheckpointFolder(workdir / "checkpoints", config.checkpoint) as checkpoints:
        for step in (10, 20):
            trees = {}
            for offset, item in enumerate(("params", "ema")):
                model = random_model(num_classes=10, image_size=8, seed=step + offset, **options)
                trees[item] = nnx.to_pure_dict(nnx.state(model))
                saved[step, item] = jax.tree.map(np.asarray, named_leaves(trees[item]))
            state = SimpleNamespace(**trees, opt_state={"count": np.zeros(1)}, extra=None)
            checkpoints.save(step, state, data={}, config=config.to_mapping())
    (workdir / "config.json").write_text(json.dumps(config.to_mapping()))
    return workdir, saved


@pytest.fixture
def copied(run, tmp_path):
    """A copy of the run folder that a test may change."""
    shutil.copytree(run[0], tmp_path / "run")
    return tmp_path / "run"


def change_config(run, **changes):
    metadata = run / "checkpoints" / "20" / "config" / "metadata"
    rewrite_item(metadata, json.loads(metadata.read_text()) | changes)


def test_a_run_loads_the_moving_average_of_its_latest_step(run):
    workdir, saved = run
    loaded = load(workdir)
    assert loaded.report.format == "vit_jax"
    options = model_options(**load_config(str(TINY), []).model.to_mapping())
    assert (loaded.options, loaded.num_classes, loaded.image_size) == (options, 10, (8, 8))
    assert loaded.view.crop == "resize"
    assert_same_params(params(loaded.model), saved[20, "ema"])
    assert {status for status, _, _ in loaded.report.entries} == {Status.TAKEN}


def test_a_step_of_a_run_is_loaded(run):
    workdir, saved = run
    steps = workdir / "checkpoints"
    for path, step in ((steps / "10", 10), (steps / "20", 20), (steps, 20)):
        assert_same_params(params(load(path).model), saved[step, "ema"])


def test_steps_are_ordered_as_numbers(run, copied):
    (copied / "checkpoints" / "10").rename(copied / "checkpoints" / "9")
    assert_same_params(params(load(copied).model), run[1][20, "ema"])


def test_the_best_step_is_loaded_if_early_stopping_chose_one(run, copied):
    (copied / "result.json").write_text(json.dumps({"best_step": 10}))
    assert_same_params(params(load(copied).model), run[1][10, "ema"])
    (copied / "result.json").write_text(json.dumps({"best_step": 15}))
    with pytest.raises(WeightsError, match=r"no complete checkpoint of step 15 .* steps 10, 20"):
        load(copied)


def test_a_run_without_a_moving_average_is_loaded_from_its_parameters(run, copied):
    change_config(copied, ema_decay=None)
    shutil.rmtree(copied / "checkpoints" / "20" / "ema")
    assert_same_params(params(load(copied).model), run[1][20, "params"])


def test_the_head_of_a_masked_patches_run_is_left_out(copied):
    change_config(copied, task={"name": "masked_patches"})
    loaded = load(copied)
    assert loaded.num_classes == 0
    assert loaded.report.names(Status.LEFT_OUT) == ["head/linear/bias", "head/linear/kernel"]
    assert load(copied, num_classes=3).num_classes == 3


def test_an_incomplete_checkpoint_is_skipped_unless_it_is_the_latest(run, copied):
    steps = copied / "checkpoints"
    (steps / "10" / "commit_success.txt").unlink()
    assert_same_params(params(load(copied).model), run[1][20, "ema"])
    (steps / "20" / "commit_success.txt").unlink()
    (steps / "10" / "commit_success.txt").write_text("")
    with pytest.raises(WeightsError, match=r"20 is damaged: it has no commit_success\.txt"):
        load(copied)
    assert_same_params(params(load(steps / "10").model), run[1][10, "ema"])


def test_a_run_without_checkpoints_is_an_error(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"no checkpoint in .*expected a run that has saved"):
        load(tmp_path)


def test_a_damaged_checkpoint_is_a_one_line_error(copied):
    for path in (copied / "checkpoints" / "20" / "ema").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(WeightsError, match="cannot be read: ") as caught:
        load(copied)
    assert "use another step of the run" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert load(copied / "checkpoints" / "10").num_classes == 10


def test_a_changed_value_is_refused_and_named(run, copied):
    item = copied / "checkpoints" / "20" / "ema"
    shutil.rmtree(item)
    shutil.copytree(copied / "checkpoints" / "10" / "ema", item)
    with pytest.raises(WeightsError, match=r"is damaged: array '.*' differs from what was saved"):
        load(copied)
