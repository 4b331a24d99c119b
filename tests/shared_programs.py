"""Programs that the tests of a process share: equal programs are compiled once."""

import json

import jax
import pytest

from vit_jax.train import inputs
from vit_jax.train.program import build_program
from vit_jax.train.signals import StopSignals
from vit_jax.train.step_log import StepLog

# Sections and keys that a program does not depend on.
_SECTIONS = ("checkpoint", "logging", "profile", "early_stopping", "fewshot")
_EVALUATION_KEYS = (
    "splits", "final_splits", "interval_steps", "interval_epochs", "interval_examples",
)  # fmt: skip
_DATA_KEYS = ("data_dir", "train_split", "subset", "on_bad_example")
_programs = {}


def shared_program(config, mesh, **facts):
    """Returns `build_program(...)`, or what it returned before for a config with equal program."""
    mapping = {k: v for k, v in config.to_mapping().items() if k not in _SECTIONS}
    for section, keys in (("evaluation", _EVALUATION_KEYS), ("data", _DATA_KEYS)):
        mapping[section] = {k: v for k, v in mapping[section].items() if k not in keys}
    counts = facts.get("class_counts")
    facts_key = [facts["num_classes"], facts["num_examples"], str(counts)]
    key = json.dumps([mapping, facts_key, str(mesh)], sort_keys=True)
    if key not in _programs:
        _programs[key] = build_program(config, mesh, **facts)
    return _programs[key]


@pytest.fixture(scope="module", autouse=True)
def _share_programs():
    """Makes runs share programs; optax.adam may raise a float to an int power in them."""
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        patch.setattr(inputs, "build_program", shared_program)
        yield


def stop_after(step, monkeypatch, stop=None):
    """Returns StopSignals that are requested after a step. A later request is not affected."""
    stop = stop or StopSignals()
    add = StepLog.add

    def add_and_stop(self, number, *outputs):
        stop.requested = stop.requested or number == step
        add(self, number, *outputs)

    monkeypatch.setattr(StepLog, "add", add_and_stop)
    return stop
