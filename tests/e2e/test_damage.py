"""Damaged checkpoints are never used: readers refuse them, and training goes back."""

import json
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from processes import one_line
from short_runs import content, read_item, train

from vit_jax.__main__ import main
from vit_jax.interop.native import open_native

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.


def flip_a_value(checkpoint, item="ema"):
    """Changes one value in an item, whose files are then whole and can be read."""
    tree = jax.tree.map(np.array, read_item(checkpoint / item))
    largest = max(jax.tree.leaves(tree), key=lambda leaf: leaf.size)
    largest.reshape(-1)[largest.size // 2] += 1e-3
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(checkpoint / item, tree, force=True)


def same_weights(run, other):
    ours, theirs = (open_native(folder)[0] for folder in (run, other))
    assert ours.shapes == theirs.shapes
    for name in ours.shapes:
        np.testing.assert_array_equal(ours.read(name), theirs.read(name))


@pytest.mark.slow
def test_a_changed_value_is_refused_by_eval_and_named(run, capfd):
    flip_a_value(run / "checkpoints" / "30")
    assert main(["eval", f"--workdir={run}"]) == 2
    line = one_line(capfd)
    assert f"checkpoint {run}/checkpoints/30 is damaged: array 'ema/" in line
    assert "differs from what was saved" in line
    assert main(["eval", f"--workdir={run}", "--step=20", "--json"]) == 0


def test_training_goes_back_and_keeps_the_damaged_checkpoint(run, finished, digits_dir, caplog):
    flip_a_value(run / "checkpoints" / "30", "optimizer")
    damaged = content(run / "checkpoints" / "30")
    (run / "result.json").unlink()
    assert train(run, digits_dir) == 0
    assert "array 'optimizer/" in caplog.text
    assert "going back to step 20" in caplog.text
    assert content(run / "checkpoints" / "damaged-30") == damaged
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["20", "30", "damaged-30"]
    same_weights(run, finished)


@pytest.mark.slow
def test_an_empty_latest_checkpoint_is_set_aside_and_one_aside_is_not_overwritten(
    run, digits_dir, caplog, capfd
):
    (run / "checkpoints" / "damaged-30").mkdir()
    shutil.rmtree(run / "checkpoints" / "30")
    (run / "checkpoints" / "30").mkdir()
    assert main(["eval", f"--workdir={run}"]) == 2
    assert "checkpoints/30 is damaged: it has no commit_success.txt" in one_line(capfd)
    (run / "result.json").unlink()
    assert train(run, digits_dir) == 0
    assert "going back to step 20" in caplog.text
    assert (run / "checkpoints" / "damaged-30-2").is_dir()
    assert main(["checkpoint", "verify", str(run)]) == 0


def test_without_a_good_checkpoint_nothing_is_changed(run, digits_dir, capfd):
    shutil.rmtree(run / "checkpoints" / "20")
    flip_a_value(run / "checkpoints" / "30")
    (run / "result.json").unlink()
    before = content(run / "checkpoints"), (run / "metrics.jsonl").read_bytes()
    assert train(run, digits_dir) == 2
    line = one_line(capfd)
    assert "checkpoints/30 is damaged: array 'ema/" in line
    assert "the run has no other" in line
    assert (content(run / "checkpoints"), (run / "metrics.jsonl").read_bytes()) == before


def test_a_checkpoint_that_was_exchanged_is_not_that_of_the_result(run, capfd):
    result = json.loads((run / "result.json").read_text())
    assert len(result["weights_digest"]) == 16
    steps = run / "checkpoints"
    (steps / "30").rename(steps / "31")
    (steps / "20").rename(steps / "30")
    assert main(["eval", f"--workdir={run}", "--step=30"]) == 2
    assert f"its weights are not those of {run}/result.json" in one_line(capfd)
