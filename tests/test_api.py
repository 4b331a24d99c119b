"""The Python API: its help, and what models tell about themselves."""

import copy
import inspect
import logging
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from interop.files import tiny, to_transformers, write_npz, write_transformers
from processes import ROOT

import vit_jax
from vit_jax.errors import ConfigError, ModelError, RunFolderError, UserError, WeightsError
from vit_jax.interop.load import load
from vit_jax.named_tree import leaf_names


def test_the_help_describes_every_argument_and_the_package_is_typed():
    text = inspect.getdoc(vit_jax.load_pretrained)
    for name in inspect.signature(vit_jax.load_pretrained).parameters:
        assert f"\n    {name}: " in text or f"\n    **{name}: " in text
    assert (ROOT / "vit_jax" / "py.typed").exists()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same weights as an npz and as a folder of transformers with the names of classes."""
    folder = tmp_path_factory.mktemp("weights")
    tensors = tiny()
    names = {"id2label": dict(enumerate(["cat", "dog", "bird"]))}
    there = write_transformers(folder / "model", to_transformers(tensors), **names)
    return write_npz(folder / "w.npz", tensors), there


def test_a_model_tells_its_config_and_classes(files):
    new = vit_jax.create_model("ViT-Nano/4", num_classes=3, image_size=8, pooling="gap")
    assert (new.config.name, new.config.pooling, new.config.mlp) == ("ViT-Nano/4", "gap", "gelu")
    assert new.class_names is None
    assert vit_jax.preprocess(new).size == (8, 8)
    assert vit_jax.load_pretrained(files[0]).class_names is None
    loaded = vit_jax.load_pretrained(files[1], stochastic_depth=0.1)
    assert loaded.class_names == ("cat", "dog", "bird")
    assert loaded.config == load(files[0], stochastic_depth=0.1).options
    again = vit_jax.create_model(**loaded.config.to_mapping(), num_classes=3, image_size=16)
    assert again.config == loaded.config
    assert vit_jax.load_pretrained(files[1], num_classes=5).class_names is None
    pair = vit_jax.create_model("CLIP-ViT-Nano/4", image_size=8, text={"width": 32, "depth": 1})
    assert pair.config.text.depth == 1
    assert pair.image.config.name == "ViT-Nano/4"


def test_equal_models_have_equal_graphs_so_that_jit_compiles_once(files):
    models = [vit_jax.load_pretrained(files[1]) for _ in range(2)]
    assert nnx.graphdef(models[0]) != nnx.graphdef(
        vit_jax.load_pretrained(files[1], stochastic_depth=0.1)
    )
    compiled = []

    @nnx.jit
    def apply(model, images):
        compiled.append(None)
        return model(images)

    images = jnp.zeros((1, *models[0].image_size, 3))
    np.testing.assert_array_equal(apply(models[0], images), apply(models[1], images))
    assert len(compiled) == 1


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, nnx.clone, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_a_copy_of_a_model_keeps_them(files, copied):
    model = vit_jax.load_pretrained(files[1])
    back = copied(model)
    assert (back.config, back.class_names) == (model.config, model.class_names)
    images = jnp.ones((1, *model.image_size, 3))
    np.testing.assert_array_equal(jax.jit(back)(images), jax.jit(model)(images))
    split = nnx.merge(*nnx.split(model))
    assert (split.config, split.class_names) == (model.config, model.class_names)
    # They are no arrays, so checkpoints are as before.
    names = leaf_names(nnx.to_pure_dict(nnx.state(model)))
    assert not [name for name in names if "config" in name or "class_names" in name]


def _loaded_alone(path, arguments=""):
    code = (
        f"import sys, vit_jax; print(vit_jax.load_pretrained(sys.argv[1]{arguments}).config.name)"
    )
    environment = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", code, path]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.slow
def test_loading_prints_nothing_unless_it_is_asked_to(files, caplog, capfd):
    with caplog.at_level(logging.INFO, "vit_jax"):
        vit_jax.load_pretrained(files[0], num_classes=7)
    (record,) = caplog.records
    assert (record.levelname, record.name) == ("INFO", "vit_jax.interop.load")
    assert "18 taken" in record.getMessage()
    assert "2 re-initialised" in record.getMessage()
    assert capfd.readouterr() == ("", "")
    for path in files:
        silent = _loaded_alone(path)
        assert (silent.stderr, silent.stdout.count("\n")) == ("", 1)
    shown = _loaded_alone(files[0], ", verbose=True, num_classes=7")
    assert "re-initialised" in shown.stderr
    assert "head/linear/kernel" in shown.stderr
    failed = _loaded_alone(files[0], ", num_registers=1")
    assert failed.stderr.splitlines()[-1].startswith("vit_jax.errors.WeightsError: ")


@pytest.mark.slow
def test_loading_a_run_prints_nothing(finished):
    silent = _loaded_alone(finished)
    assert (silent.stderr, silent.stdout.count("\n")) == ("", 1)
    model = vit_jax.load_run(finished).load_model()
    assert len(model.class_names) == model(np.zeros((1, *model.image_size, 3), np.float32)).shape[1]
    assert model.config == vit_jax.load_run(finished).config.model


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda path: vit_jax.create_model("ViT-Q/16"), ModelError),
        (lambda path: vit_jax.create_model("ViT-B/16", image_size=7), ModelError),
        (lambda path: vit_jax.create_model("ViT-B/16", poling="gap"), ConfigError),
        (lambda path: vit_jax.load_pretrained("nothing.npz"), WeightsError),
        (lambda path: vit_jax.load_pretrained(path, keep_head=True, num_classes=7), WeightsError),
        (lambda path: vit_jax.load_run("nothing"), RunFolderError),
        (lambda path: vit_jax.fit("quickstart", path.parent / "r", {"sed": 1}), ConfigError),
        (lambda path: vit_jax.fit("quikstart", path.parent / "r"), ConfigError),
    ],
)
def test_an_error_is_an_exception_with_one_line(files, call, kind, capfd):
    with pytest.raises(kind) as caught:
        call(files[0])
    error = caught.value
    assert isinstance(error, UserError)
    assert str(error) == f"{error.got}; expected {error.expected}; {error.fix}"
    assert all((error.got, error.expected, error.fix))
    assert "\n" not in str(error)
    assert capfd.readouterr() == ("", "")
