"""Runs that start from other weights: what is loaded, what is new, and how they resume."""

import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from interop.files import tiny, write_npz
from shared_programs import shared_program, stop_after
from task_runs import losses_of
from weight_files import parameters, random_loaded, random_weights

from vit_jax.config.file import load_config
from vit_jax.config.init import InitConfig
from vit_jax.config.mesh import MeshConfig
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, WeightsError
from vit_jax.interop.load import load
from vit_jax.interop.save import save
from vit_jax.named_tree import named_leaves
from vit_jax.parallel.mesh import make_mesh
from vit_jax.train.init_from import model_of_weights, start_from_weights
from vit_jax.train.loop import train
from vit_jax.train.signals import Stopped, StopSignals

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.
CLASSES = 7
BATCHES = {"global_batch_size": 8, "eval_crop": "resize"}


@pytest.fixture(scope="module")
def npz(tmp_path_factory):
    """A published ViT of 3 classes for 16 pixels, its width one that no paper has."""
    return write_npz(tmp_path_factory.mktemp("npz") / "tiny.npz", tiny())


def mapping(init_from, *, side=32, **options):
    return {
        "model": {"name": "auto", "num_heads": 2, **options.pop("model", {})},
        "data": {"name": "digits", "image_size": side, **BATCHES},
        "optimizer": {"name": "sgd", "learning_rate": 0.1, **options.pop("optimizer", {})},
        "train_steps": 4,
        "init_from": None if init_from is None else str(init_from),
        **options,
    }


def config_of(tmp_path, content):
    """The config as the train command reads it."""
    path = tmp_path / "config.py"
    path.write_text(f"def get_config():\n    return {content!r}\n")
    return load_config(str(path), auto_model=model_of_weights)


def program_of(config, num_classes=CLASSES):
    mesh = make_mesh(MeshConfig())
    return shared_program(config, mesh, num_classes=num_classes, num_examples=100)


def test_auto_reads_the_architecture_and_the_config_sets_other_options(tmp_path, npz):
    model = config_of(tmp_path, mapping(npz, model={"dropout": 0.1, "scan": False})).model
    assert (model.name, model.width, model.depth, model.mlp_dim) == ("ViT-Ti/4", 16, 2, 32)
    assert (model.num_heads, model.dropout, model.scan) == (2, 0.1, False)
    config = config_of(tmp_path, mapping(npz))
    assert config.to_mapping()["init_from"] == str(npz)
    assert Config.from_mapping(config.to_mapping()) == config


def test_auto_does_not_read_dropout_and_dtype(tmp_path):
    other = {"dropout": 0.3, "dtype": "bfloat16", "head_bias_init": -10.0}
    random_weights(tmp_path / "ours", pooling="gap", representation_size=8, **other)
    content = mapping(tmp_path / "ours")
    del content["model"]["num_heads"]
    model = config_of(tmp_path, content).model
    assert (model.pooling, model.width) == ("gap", 24)
    assert (model.dropout, model.dtype, model.head_bias_init) == (0.0, "float32", 0.0)
    assert model.representation_size is None
    content |= {"init": {"keep_head": True}}
    assert config_of(tmp_path, content).model.representation_size == 8


def test_options_of_the_blocks_that_the_weights_do_not_have_are_named(tmp_path, caplog):
    random_weights(tmp_path / "ours", mlp="quick_gelu")
    content = mapping(tmp_path / "ours")
    del content["model"]["num_heads"]
    auto = config_of(tmp_path, content)
    for mlp, is_said in {"quick_gelu": False, "gelu": True}.items():
        model = auto.model.replace(mlp=mlp, dropout=0.1)
        start_from_weights(program_of(auto.replace(model=model)))
        assert ("trained with model.mlp=quick_gelu; this run has gelu" in caplog.text) == is_said
    assert caplog.text.count("; this run has ") == 1


def test_the_first_loss_is_log_c_and_the_features_equal_those_of_the_file(tmp_path, npz):
    config = config_of(tmp_path, mapping(npz, ema_decay=0.99))
    program = program_of(config)
    state, report = start_from_weights(program)
    images = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3)).astype(np.uint8)
    model = program.task.model(state.params)
    logits, found = model(images / np.float32(127.5) - 1, return_intermediates=("pre_logits",))
    np.testing.assert_array_equal(logits, np.zeros((8, CLASSES)))
    theirs = load(npz, image_size=32, num_classes=0, num_heads=2).model
    wanted = theirs(images / np.float32(127.5) - 1)
    assert np.abs(wanted).max() > 0.5
    np.testing.assert_allclose(found["pre_logits"], wanted, atol=2e-6)

    batch = {"image": images, "label": np.arange(8, dtype=np.int32) % CLASSES}
    batch |= {"mask": np.ones(8, bool)}
    kept = jax.tree.map(np.array, state.params)
    new, metrics = program.compiled(state, batch)
    assert float(metrics["train/loss"]) == pytest.approx(np.log(CLASSES), abs=1e-6)
    # Steps give their memory away; what was read stays as it was, and so does the average's copy.
    moved = jax.tree.map(lambda old, now: bool((old != np.asarray(now)).any()), kept, new.params)
    assert moved["head"]["linear"]["bias"]
    ema = jax.tree.map(lambda old, now: old + 0.01 * (now - old), kept, jax.device_get(new.params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), ema, new.ema)

    said = report.to_mapping()
    assert said["resized"] == {"position_embedding/table": "(1, 17, 16) -> (1, 65, 16)"}
    assert said["reinitialised"] == ["head/linear/bias", "head/linear/kernel"]
    assert len(said["taken"]) + len(said["resized"]) == len(named_leaves(kept)) - 2
    assert said["left_out"] == ["head/linear/kernel", "head/linear/bias"]


def test_scanned_and_unscanned_models_load_the_same_parameters(tmp_path, npz):
    stacked, _ = start_from_weights(program_of(config_of(tmp_path, mapping(npz))))
    written_out = config_of(tmp_path, mapping(npz, model={"scan": False}))
    other, _ = start_from_weights(program_of(written_out))
    jax.tree.map(np.testing.assert_array_equal, stacked.params, other.params)


def test_a_kept_head_has_the_values_of_the_file(tmp_path, npz):
    config = config_of(tmp_path, mapping(npz, init={"keep_head": True}, model={"scan": False}))
    state, _ = start_from_weights(program_of(config, 3))
    kernel = named_leaves(state.params)["head/linear/kernel"]
    np.testing.assert_array_equal(kernel, tiny()["head/kernel"])
    with pytest.raises(WeightsError, match=r"keep_head with num_classes 7 and a head of 3"):
        start_from_weights(program_of(config, 7))


def test_the_normalisation_of_the_config_is_folded_in(tmp_path, npz):
    plain, _ = start_from_weights(program_of(config_of(tmp_path, mapping(npz))))
    config = config_of(tmp_path, mapping(npz, init={"normalization": "imagenet"}))
    folded, report = start_from_weights(program_of(config))
    ours, theirs = (named_leaves(s.params)["patch_embedding/kernel"] for s in (plain, folded))
    # Divided by twice the deviation of each channel.
    np.testing.assert_allclose(theirs[..., 0, :], ours[..., 0, :] / (2 * 0.229), rtol=1e-5)
    assert report.to_mapping()["normalization"][1] == (0.229, 0.224, 0.225)


def test_a_normalisation_that_the_file_contradicts_is_an_error(tmp_path):
    save(random_loaded(), tmp_path / "timm", "timm")
    weights = str(tmp_path / "timm")
    config = config_of(tmp_path, mapping(weights, init={"normalization": "half"}))
    start_from_weights(program_of(config))
    config = config_of(tmp_path, mapping(weights, init={"normalization": "imagenet"}))
    with pytest.raises(WeightsError, match=r"'imagenet' for weights whose config.json says"):
        start_from_weights(program_of(config))


def test_the_resampling_method_is_used(tmp_path, npz):
    tables = []
    for how in ("zoom", "bicubic"):
        config = config_of(tmp_path, mapping(npz, init={"position_resize": how}))
        state, _ = start_from_weights(program_of(config))
        tables.append(np.asarray(named_leaves(state.params)["position_embedding/table"]))
    assert np.abs(tables[0] - tables[1]).max() > 0.01


def test_allowed_missing_parameters_start_as_in_a_new_model(tmp_path):
    tensors = tiny(extra=(3, 3))
    del tensors["Transformer/encoder_norm/bias"]
    path = write_npz(tmp_path / "part.npz", tensors)
    content = mapping(path)
    allow = {"allow_missing": ["norm/bias"], "allow_unexpected": ["extra"]}
    for lacking in ({}, {"allow_missing": ["norm/bias"]}):
        with pytest.raises(WeightsError, match=r"in init\.allow_(missing|unexpected)"):
            start_from_weights(program_of(config_of(tmp_path, content | {"init": lacking})))
    program = program_of(config_of(tmp_path, content | {"init": allow}))
    state, report = start_from_weights(program)
    assert "norm/bias" in report.to_mapping()["reinitialised"]
    np.testing.assert_array_equal(named_leaves(state.params)["norm/bias"], np.zeros(16))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": {"name": "BiT-R-Mini", "num_heads": None}}, "holds a ViT-Ti/4"),
        ({"model": {"name": "R+ViT-Mini/4"}}, "holds a ViT-Ti/4"),
        ({"model": {"name": "ViT-Ti/4", "depth": 12, "width": 16, "mlp_dim": 32}}, "depth 2"),
    ],
)
def test_weights_of_another_family_or_size_are_an_error(tmp_path, npz, options, said):
    content = mapping(npz)
    content["model"] = {k: v for k, v in (content["model"] | options["model"]).items() if v}
    with pytest.raises(WeightsError, match=r"set model\.name=auto") as raised:
        start_from_weights(program_of(config_of(tmp_path, content)))
    assert said in str(raised.value)
    assert f"the {options['model']['name']} of the model section" in str(raised.value)


def test_model_auto_and_the_init_section_need_weights():
    with pytest.raises(ConfigError, match=r"add --config\.init_from=PATH, or name the model"):
        Config.from_mapping(mapping(None))
    content = mapping(None, model={"name": "ViT-Ti/4"}, init={"keep_head": True})
    with pytest.raises(ConfigError, match="'init' is set without 'init_from'"):
        Config.from_mapping(content)
    with pytest.raises(ConfigError, match="not a regular expression"):
        InitConfig(allow_missing=("(",))


def run_mapping(source, digits_dir):
    content = mapping(source, ema_decay=0.5, train_steps=6)
    content["data"] |= {"data_dir": str(digits_dir), "num_threads": 0}
    content["evaluation"] = {"splits": {"test": "test[:64]"}, "batch_size": 64}
    content["checkpoint"] = {"interval_steps": 2, "keep_last": 9}
    return content | {"logging": {"interval_steps": 1, "tensorboard": False}}


@pytest.mark.slow
def test_a_run_resumes_bit_for_bit_without_its_weights_file(tmp_path, npz, digits_dir, monkeypatch):
    source = tmp_path / "weights.npz"
    shutil.copy(npz, source)
    config = config_of(tmp_path, run_mapping(source, digits_dir))
    reference = tmp_path / "reference"
    want = train(config, reference, StopSignals())
    written = json.loads((reference / "init.json").read_text())
    assert written["path"] == str(source)
    assert list(written["resized"]) == ["position_embedding/table"]

    with monkeypatch.context() as patch, pytest.raises(Stopped, match="step 3"):
        train(config, tmp_path / "stopped", stop_after(3, patch))
    source.unlink()
    with pytest.raises(WeightsError, match="does not exist"):
        config_of(tmp_path, run_mapping(source, digits_dir))
    stopped = tmp_path / "stopped"
    path = str(tmp_path / "config.py")
    again = load_config(path, auto_model=lambda config: model_of_weights(config, stopped))
    assert again == config
    got = train(again, tmp_path / "stopped", StopSignals())
    assert got["eval/test/loss"] == want["eval/test/loss"]
    assert losses_of(stopped) == losses_of(reference)
    assert len(losses_of(stopped)) == 6
    got, want = (parameters(load(folder / "checkpoints" / "6")) for folder in (stopped, reference))
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert json.loads((tmp_path / "stopped" / "init.json").read_text()) == written


@pytest.mark.slow
def test_reading_the_model_section_initialises_no_device(tmp_path, npz):
    """It happens before processes find each other, which has to be first."""
    program = (
        "import sys, jax\n"
        "from vit_jax.interop.opening import read_options\n"
        "for path in sys.argv[1:]:\n"
        "    print(read_options(path, {'num_heads': 2})['name'])\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
    )
    random_weights(tmp_path / "ours")
    command = [sys.executable, "-c", program, str(npz), str(tmp_path / "ours")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ViT-Ti/4", "ViT-Ti/8"]


def test_a_mixer_at_another_image_size_names_the_key_and_the_size(tmp_path):
    sizes = {"width": 8, "depth": 1, "token_mlp_dim": 5, "channel_mlp_dim": 12}
    random_weights(tmp_path / "mixer", "Mixer-S/4", image_size=(8, 8), **sizes)
    content = mapping(tmp_path / "mixer", side=16) | {"model": {"name": "auto"}}
    program = program_of(config_of(tmp_path, content))
    with pytest.raises(WeightsError, match=r"with 4x4 patches;.* set data.image_size to 8$"):
        start_from_weights(program)
