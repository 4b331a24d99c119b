import jax.numpy as jnp
import numpy as np
import pytest
import shared_programs
from processes import UNMIXED

from vit_jax.config.file import load_config
from vit_jax.config.run import Config
from vit_jax.errors import DivergenceError
from vit_jax.run.metrics import read_metrics
from vit_jax.storage.log_file import read_log
from vit_jax.tasks.classification import task as classification
from vit_jax.train.hooks.log import LogHook
from vit_jax.train.loop import train
from vit_jax.train.signals import Stopped, StopSignals


@pytest.fixture(scope="module")
def config(digits_dir):
    overrides = [
        f"data.data_dir={digits_dir}",
        "train_steps=20",
        "evaluation.splits={}",
        "checkpoint.interval_steps=5",
        "optimizer.schedule.warmup_steps=2",
        "logging.example_ids=all",
    ]
    return load_config(UNMIXED, overrides)


def indices(workdir):
    return {r["step"]: r["indices"] for r in read_log(workdir / "examples-0.jsonl")}


@pytest.fixture(scope="module")
def undisturbed(config, tmp_path_factory):
    """The examples of a run, and the labels of its step 8."""
    rows, folder = {}, tmp_path_factory.mktemp("undisturbed")
    after_step = LogHook.after_step

    def note(self, context, output):
        rows[output.step] = np.asarray(output.host_batch["label"])
        after_step(self, context, output)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogHook, "after_step", note)
        train(config, folder, StopSignals())
    return indices(folder), rows[8]


@pytest.fixture(scope="module")
def poisoned_programs():
    """The programs that only the poisoned runs share."""
    return {}


@pytest.fixture
def poisoned(undisturbed, poisoned_programs, monkeypatch):
    """Makes the batch of step 8 of an undisturbed run NaN; returns that run's examples."""
    examples, bad = undisturbed
    original = classification.make_prepare
    monkeypatch.setattr(shared_programs, "_programs", poisoned_programs)

    def make_prepare(*args):
        prepare = original(*args)

        def prepare_fn(batch, step):
            ready = prepare(batch, step)
            hit = (batch["label"] == bad).all()
            return ready | {"image": jnp.where(hit, jnp.nan, ready["image"])}

        return prepare_fn

    monkeypatch.setattr(classification, "make_prepare", make_prepare)
    return examples


def changed(config, *overrides):
    mapping = config.to_mapping()
    for key, value in overrides:
        mapping["divergence"][key] = value
    return Config.from_mapping(mapping)


@pytest.mark.slow
def test_a_diverged_run_names_the_step_and_its_last_checkpoint(config, tmp_path, poisoned):
    with pytest.raises(DivergenceError) as caught:
        train(config, tmp_path / "run", StopSignals())
    line = str(caught.value)
    assert "train/loss is nan at step 8; expected a finite number" in line
    assert "the last good checkpoint is step 5" in line


@pytest.mark.slow
def test_a_rewound_run_skips_the_batches_and_continues(config, tmp_path, poisoned, caplog):
    going_on = changed(config, ("rewinds", 1), ("skip_steps", 2))
    result = train(going_on, tmp_path / "run", StopSignals())
    assert result["step"] == 20
    # Back to step 5; batches 6 to 8 and two more are left out.
    assert "skipping 5 batches (rewind 1 of 1)" in caplog.text
    found = indices(tmp_path / "run")
    assert list(found) == list(range(1, 21))
    for step in range(1, 16):
        assert found[step] == poisoned[step if step <= 5 else step + 5]
    rows = [r for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if "train/loss" in r]
    assert [r["step"] for r in rows] == list(range(1, 21))
    assert rows[-1]["train/batches_left_out"] == 5
    assert "train/batches_left_out" not in rows[0]


@pytest.mark.slow
def test_a_rewound_run_resumes_bit_for_bit(config, tmp_path, poisoned, monkeypatch):
    going_on = changed(config, ("rewinds", 1), ("skip_steps", 2))
    train(going_on, tmp_path / "whole", StopSignals())
    stop = shared_programs.stop_after(12, monkeypatch)
    with pytest.raises(Stopped, match="step 12"):
        train(going_on, tmp_path / "run", stop)
    train(going_on, tmp_path / "run", StopSignals())
    assert indices(tmp_path / "run") == indices(tmp_path / "whole")
    losses = [
        [
            r["train/loss"]
            for r in read_metrics(tmp_path / name / "metrics.jsonl")
            if "train/loss" in r
        ]
        for name in ("run", "whole")
    ]
    assert losses[0] == losses[1]
