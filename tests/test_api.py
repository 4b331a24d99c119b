"""The Python API: what editors and type checkers see, and what models tell about themselves."""

import copy
import inspect
import json
import logging
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from interop.files import tiny, to_transformers, write_npz, write_transformers

import vit_jax
from vit_jax.errors import ConfigError, ModelError, RunFolderError, UserError, WeightsError
from vit_jax.interop.load import LoadArguments, load
from vit_jax.models.make_option_types import option_types
from vit_jax.models.registry import FAMILIES
from vit_jax.named_tree import leaf_names

ROOT = Path(__file__).resolve().parents[1]

# Each line says what pyright must say about it: nothing, an error, or a type.
_EXAMPLE = """\
import vit_jax
model = vit_jax.create_model("ViT-B/16", num_classes=10, pooling="gap", dropout=0, scan=True)
pair = vit_jax.create_model("CLIP-ViT-B/32", text={"depth": 2}, image={"name": "ViT-S/16"})
loaded = vit_jax.load_pretrained("B_16.npz", image_size=(224, 384), layer_scale=1e-5, verbose=True)
again = vit_jax.load_run("runs/a").load_model(num_classes=3, qk_norm=True)
vit_jax.create_model("ViT-B/16", imagesize=32)  # error: No parameter named "imagesize"
vit_jax.create_model("ViT-B/16", pooling="mean")  # error: Literal['mean']
vit_jax.create_model("CLIP-ViT-B/32", text={"dept": 2})  # error: "dept"
vit_jax.load_pretrained("B_16.npz", num_clases=3)  # error: No parameter named "num_clases"
vit_jax.load_pretrained("B_16.npz", num_classes="3")  # error: "num_classes"
vit_jax.load_run("runs/a").load_model(num_clases=3)  # error: No parameter named "num_clases"
reveal_type(model)  # information: Type of "model" is "ImageModel"
reveal_type(loaded.class_names)  # information: is "tuple[str, ...] | None"
reveal_type(loaded.config.name)  # information: is "str"
reveal_type(vit_jax.preprocess(loaded))  # information: is "Preprocess"
reveal_type(vit_jax.load_run("runs/a").metrics)  # information: is "DataFrame"
"""


@pytest.mark.slow
def test_an_editor_sees_every_option_with_its_type(tmp_path):
    pyright = Path(sys.executable).with_name("pyright")
    if not pyright.exists():
        pytest.skip("needs pyright")
    (tmp_path / "example.py").write_text(_EXAMPLE)
    settings = {"extraPaths": [str(ROOT)], "include": ["."], "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [pyright, "--outputjson", "--pythonpath", sys.executable, "-p", tmp_path]
    found = json.loads(subprocess.run(command, capture_output=True, check=False).stdout)
    said = {}
    for one in found["generalDiagnostics"]:
        text = f"{one['severity']}: {one['message']}"
        said.setdefault(one["range"]["start"]["line"], []).append(text)
    for number, line in enumerate(_EXAMPLE.splitlines()):
        _, _, wanted = line.partition("  # ")
        severity, _, words = wanted.partition(": ")
        (text,) = said.pop(number, [""])
        assert text.startswith(severity), line
        assert words in text, (line, text)
        assert bool(text) == bool(wanted), (line, text)
    assert said == {}


def test_the_types_of_options_are_those_of_the_sections():
    path = ROOT / "vit_jax" / "models" / "option_types.py"
    assert path.read_text() == option_types(), "run: python -m vit_jax.models.make_option_types"
    options = {key for f in FAMILIES for key in f.options.model_fields} - {"name"}
    named = inspect.signature(vit_jax.load_pretrained).parameters.keys() - {"path", "options"}
    assert LoadArguments.__annotations__.keys() == named | options


def test_the_help_describes_every_argument_and_the_package_is_typed():
    text = inspect.getdoc(vit_jax.load_pretrained)
    for name in inspect.signature(vit_jax.load_pretrained).parameters:
        assert f"\n    {name}: " in text or f"\n    **{name}: " in text
    for name in vit_jax.__all__:
        assert "read_weights" not in (inspect.getdoc(getattr(vit_jax, name)) or "")
    assert (ROOT / "vit_jax" / "py.typed").exists()
    assert vit_jax.preprocess is vit_jax.preprocess_of


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
    graphs = [nnx.graphdef(model) for model in models]
    assert graphs[0] == graphs[1]
    assert hash(graphs[0]) == hash(graphs[1])
    assert graphs[0] != nnx.graphdef(vit_jax.load_pretrained(files[1], stochastic_depth=0.1))
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


_LOAD = """
import logging, sys, vit_jax
{}
print(vit_jax.load_pretrained(sys.argv[1]{}).config.name)
"""


def _loaded_alone(path, *, setup="", arguments=""):
    code = _LOAD.format(setup, arguments)
    environment = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", code, path]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.slow
def test_loading_prints_nothing_unless_it_is_asked_to(files, caplog, capfd):
    for path in files:
        with caplog.at_level(logging.INFO, "vit_jax"):
            caplog.clear()
            vit_jax.load_pretrained(path)
        (record,) = caplog.records
        assert (record.levelname, record.name) == ("INFO", "vit_jax.interop.load")
        assert "20 parameters" in record.getMessage()
    assert capfd.readouterr() == ("", "")
    with caplog.at_level(logging.INFO, "vit_jax"):
        caplog.clear()
        vit_jax.load_pretrained(files[0], num_classes=7)
    assert "2 re-initialised" in caplog.messages[0]
    silent = _loaded_alone(files[0])
    assert (silent.stderr, silent.stdout.count("\n")) == ("", 1)
    shown = _loaded_alone(files[0], arguments=", verbose=True, num_classes=7")
    assert "re-initialised" in shown.stderr
    assert "head/linear/kernel" in shown.stderr
    failed = _loaded_alone(files[0], arguments=", num_registers=1")
    assert failed.stderr.splitlines()[-1].startswith("vit_jax.errors.WeightsError: ")
    assert "missing" not in failed.stderr.replace("allow_missing", "")


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
        (lambda path: vit_jax.create_model("ViT-B/16", dropout=2), ConfigError),
        (lambda path: vit_jax.load_pretrained("nothing.npz"), WeightsError),
        (lambda path: vit_jax.load_pretrained(path, keep_head=True, num_classes=7), WeightsError),
        (lambda path: vit_jax.load_pretrained(path, poling="gap"), ConfigError),
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
