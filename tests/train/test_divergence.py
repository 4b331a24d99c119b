import jax.numpy as jnp
import pytest
import shared_programs
from task_runs import digits_config

from vit_jax.errors import DivergenceError
from vit_jax.tasks.classification.task import Classification
from vit_jax.train.loop import train
from vit_jax.train.signals import StopSignals


@pytest.mark.slow
def test_a_diverged_run_names_the_step_and_its_last_checkpoint(
    digits_dir, tmp_path, monkeypatch, caplog
):
    """Step 8 of a run that saves every five steps."""
    prepare = Classification.prepare

    def poisoned(task, batch, step):
        ready = prepare(task, batch, step)
        return ready | {"image": jnp.where(step == 7, jnp.nan, ready["image"])}

    monkeypatch.setattr(shared_programs, "_programs", {})  # Other tests do not get this one.
    monkeypatch.setattr(Classification, "prepare", poisoned)
    with pytest.raises(DivergenceError) as caught:
        train(digits_config(digits_dir, "evaluation.splits={}"), tmp_path, StopSignals())
    assert "evaluation.interval_* has no effect" in caplog.text
    assert caught.value.got == "train/loss is nan at step 8"
    assert caught.value.fix.endswith("the last good checkpoint is step 5")
