import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared_programs
from processes import UNMIXED

from vit_jax.config.file import load_config
from vit_jax.config.run import Config
from vit_jax.errors import DivergenceError
from vit_jax.parallel.mesh import make_mesh, to_devices
from vit_jax.run.metrics import read_metrics
from vit_jax.storage.log_file import read_log
from vit_jax.tasks.classification import task as classification
from vit_jax.train.divergence import examine_step, first_bad
from vit_jax.train.hooks.log import LogHook
from vit_jax.train.loop import train
from vit_jax.train.signals import Stopped, StopSignals

MODEL = {"name": "ViT-Ti/4", "width": 16, "depth": 3, "mlp_dim": 32, "num_heads": 2}
BATCH = {
    "image": np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3)).astype(np.uint8),
    "label": np.arange(4, dtype=np.int32),
    "mask": np.ones(4, bool),
}


def facts(change=lambda params: None, **sections):
    mapping = {
        "model": MODEL,
        "data": {"name": "digits", "image_size": 8, "global_batch_size": 4},
        "optimizer": {"learning_rate": 1e-3},
        "train_steps": 2,
    }
    config = Config.from_mapping(mapping | sections)
    mesh = make_mesh(config.mesh)
    built = shared_programs.shared_program(config, mesh, num_classes=10, num_examples=100)
    state = built.init()
    change(state.params)
    return examine_step(built, state, to_devices(BATCH, built.mesh))


@pytest.mark.slow
def test_a_finite_step_has_no_bad_tensor_and_names_every_layer():
    found = facts()
    assert first_bad(found) is None
    names = [row.name for row in found]
    assert len(names) == len(set(names))
    layers = [n for n in names if n.startswith("block_output")]
    assert layers == [f"block_output of layer {i}" for i in range(3)]
    (images,) = (row for row in found if row.name == "batch image")
    assert images.size == 4 * 8 * 8 * 3
    assert images.largest == pytest.approx(np.abs(BATCH["image"] / 127.5 - 1).max(), rel=1e-6)
    # Gradients are computed from the head down.
    gradients = [n for n in names if n.startswith("gradient")]
    assert gradients.index("gradient head/linear/bias") < gradients.index(
        "gradient encoder/blocks/mlp/expand/kernel"
    )


@pytest.mark.parametrize("scan", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_layer_that_overflows_is_named(scan):
    def change(params):
        layer = params["encoder"]["blocks"]["mlp"]["contract"]
        layer["kernel"] = layer["kernel"].at[1].set(3e38)

    bad = first_bad(facts(change, model=MODEL | {"scan": scan}))
    assert bad is not None
    assert bad.name == "mlp_output of layer 1"


@pytest.mark.slow
def test_an_overflowing_norm_is_named_if_every_tensor_is_finite():
    optimizer = {"name": "sgd", "learning_rate": 1e30}
    bad = first_bad(facts(model=MODEL | {"depth": 1}, optimizer=optimizer))
    assert str(bad) == "metric train/update_norm (1 of 1 values not finite)"


@pytest.mark.slow
def test_a_nan_parameter_is_reported_first():
    def change(params):
        params["head"]["linear"]["bias"] = params["head"]["linear"]["bias"].at[3].set(jnp.nan)

    bad = first_bad(facts(change))
    assert str(bad) == "parameter head/linear/bias (1 of 10 values not finite)"


@pytest.mark.slow
def test_microbatches_and_resnets_are_examined():
    found = facts(
        lambda params: params["trunk"]["stage2"].update(
            jax.tree.map(lambda x: jnp.full_like(x, 3e38), params["trunk"]["stage2"])
        ),
        model={"name": "BiT-R-Mini"},
        accumulation_steps=2,
    )
    bad = first_bad(found)
    assert bad is not None
    assert bad.name == "stage2 of microbatch 0"


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
def test_a_diverged_run_names_the_tensor_and_keeps_its_checkpoint(config, tmp_path, poisoned):
    with pytest.raises(DivergenceError) as caught:
        train(config, tmp_path / "run", StopSignals())
    report = tmp_path / "run" / "report" / "divergence-8.txt"
    line = str(caught.value)
    assert (
        "train/loss is nan at step 8 (when run again: batch image (6,144 of 6,144 values not"
        in line
    )
    assert str(report) in line
    assert "the last good checkpoint is step 5" in line
    text = report.read_text().splitlines()
    assert text[0].startswith("step 8, first bad tensor: batch image")
    assert any(row.endswith("   loss") for row in text)
    with pytest.raises(DivergenceError, match=r"nan at step 8; expected"):
        train(changed(config, ("report", False)), tmp_path / "run", StopSignals())


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
