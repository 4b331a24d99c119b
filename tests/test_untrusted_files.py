"""Nothing is executed but the Python files that the user names."""

import json
import sys

import pytest
from small_config import small_mapping

from vit_jax.config.file import load_config
from vit_jax.data.sources.tfds import open_builder
from vit_jax.errors import DataError
from vit_jax.run.folder import read_config


@pytest.fixture
def config_json(tmp_path):
    def write(**keys):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(small_mapping(**keys)))
        return path

    return write


@pytest.mark.parametrize(
    ("key", "value", "usual"),
    [
        ("compile_cache", "gs://theirs/cache", "auto"),
        ("compiler_options", {"xla_gpu_cuda_data_dir": "tools"}, {}),
    ],
)
def test_programs_that_a_config_json_names_are_left_out(config_json, key, value, usual, caplog):
    path = config_json(**{key: value})
    assert getattr(load_config(str(path)), key) == usual
    text = json.dumps(value) if isinstance(value, dict) else value
    assert caplog.messages == [
        f"{key} of {path} is left out, because loading it executes code; if you trust it, add"
        f" --config.{key}={text}"
    ]
    caplog.clear()
    assert getattr(load_config(str(path), [f"{key}={text}"]), key) == value
    assert getattr(read_config(path.parent), key) == value  # It is shown, and not used.
    assert caplog.messages == []


def test_harmless_keys_of_a_config_json_are_kept(config_json, caplog):
    options = {"xla_cpu_use_onednn": True}
    path = config_json(compile_cache=None, compiler_options=options)
    config = load_config(str(path))
    assert (config.compile_cache, config.compiler_options) == (None, options)
    assert caplog.messages == []


@pytest.fixture
def harm(tmp_path, monkeypatch):
    """A file that exists once the module `harmful`, which can be imported, has run."""
    done = tmp_path / "harm"
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "harmful.py").write_text(f"open({str(done)!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    yield done
    sys.modules.pop("harmful", None)


NAMED = {
    "now": {"pythonClassName": "harmful.Feature", "json_feature": {}},
    "snake case": {"python_class_name": "harmful.Feature", "json_feature": {}},
    "inside": {
        "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
        "featuresDict": {"features": {"image": {"pythonClassName": "harmful.Feature"}}},
    },
    "legacy": {"type": "harmful.Feature", "content": {}},
    "legacy text": {
        "type": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
        "content": json.dumps({"features": {"image": {"pythonClassName": "harmful.Feature"}}}),
        "proto_cls": "tensorflow_datasets.FeaturesDict",
    },
}


@pytest.mark.parametrize("content", NAMED.values(), ids=NAMED)
@pytest.mark.parametrize("place", ["theirs/1.0.0", "theirs/small/1.0.0"])
def test_a_dataset_cannot_import_modules(content, place, harm, digits_dir, tmp_path):
    folder = tmp_path / "data" / place
    folder.mkdir(parents=True)
    info = (digits_dir / "digits" / "1.0.0" / "dataset_info.json").read_text()
    (folder / "dataset_info.json").write_text(info)
    (folder / "features.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"names the class 'harmful\.Feature'"):
        open_builder(place.removesuffix("/1.0.0"), str(tmp_path / "data"))
    assert not harm.exists()


@pytest.mark.parametrize("name", ["kaggle:some", "huggingface:owner__name", "mine:a/b:1.0.0"])
def test_a_dataset_name_cannot_name_code_of_others(name, tmp_path):
    with pytest.raises(DataError, match="has the namespace"):
        open_builder(name, str(tmp_path))
