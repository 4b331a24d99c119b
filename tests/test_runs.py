"""vit_jax.fit and load_run: the trainer of the command line, from Python."""

import concurrent.futures
import logging

import jax
import numpy as np
import pytest
from PIL import Image
from processes import UNMIXED
from shared_programs import stop_after
from short_runs import content

import vit_jax
from vit_jax import runs
from vit_jax.config.file import read_mapping
from vit_jax.errors import ConfigError, RunFolderError, UserError
from vit_jax.models.registry import model_options
from vit_jax.run import compile_cache
from vit_jax.storage.files import write_json
from vit_jax.train import loop

SHORT = {"train_steps": 30, "logging.interval_steps": 5}


@pytest.fixture
def fit_digits(digits_dir):
    def call(workdir, overrides=None, **options):
        overrides = SHORT | {"data.data_dir": str(digits_dir)} | (overrides or {})
        # It works in this process, which forbids promotion.
        return vit_jax.fit(str(UNMIXED), workdir, overrides, **options)

    return call


@pytest.mark.slow
def test_fit_is_the_run_of_the_command_line(fit_digits, finished, tmp_path, capsys):
    run = fit_digits(tmp_path / "run", verbose=False)
    assert capsys.readouterr() == ("", "")
    assert len(repr(run)) < 200
    command = vit_jax.load_run(finished)
    assert run.checkpoints == command.checkpoints == [20, 30]
    loss = run.metrics["train/loss"].dropna()
    np.testing.assert_array_equal(loss, command.metrics["train/loss"].dropna())
    assert list(loss.index) == [5, 10, 15, 20, 25, 30]
    assert run.result["eval/test/examples"] == 360
    assert run.config.replace(data=command.config.data) == command.config
    # Again: it is finished, and nothing is written.
    before = content(run.path)
    assert fit_digits(run.path, verbose=False).result == run.result
    assert content(run.path) == before


@pytest.mark.slow
def test_fit_where_compilation_and_transfers_are_off(fit_digits, tmp_path):
    with jax.disable_jit(), jax.transfer_guard("disallow"):
        run = fit_digits(tmp_path / "run", {"train_steps": 2}, verbose=False)
    assert run.result["step"] == 2
    with jax.enable_x64(True), jax.default_prng_impl("rbg"), jax.threefry_partitionable(False):
        again = fit_digits(tmp_path / "again", {"train_steps": 2}, verbose=False)
    assert again.result["weights_digest"] == run.result["weights_digest"]


@pytest.mark.slow
def test_fit_in_another_thread(fit_digits, tmp_path):
    """Streamlit, Ray and asyncio call it there, where Python sets no signal handler."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        run = pool.submit(fit_digits, tmp_path / "run", {"train_steps": 2}, verbose=False).result()
    assert run.result["step"] == 2


def test_the_model_of_a_run(finished):
    model = vit_jax.load_run(finished).load_model()
    assert model(np.zeros((1, 8, 8, 3), np.float32)).shape == (1, 10)


@pytest.mark.slow
def test_progress_is_printed_unless_a_handler_shows_it(fit_digits, tmp_path, capsys):
    package = logging.getLogger("vit_jax")
    with pytest.MonkeyPatch.context() as patch:
        # Without those of pytest. A library may add one, which must not stay.
        patch.setattr(logging.getLogger(), "handlers", [])
        fit_digits(tmp_path / "run", {"train_steps": 5})
    assert "step 5/5  loss " in capsys.readouterr().out
    assert package.handlers == []


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """A function that returns the config with which `fit` trains, without training."""
    caches = []

    def save(config, folder, stop, verbose, new_code):
        write_json(folder / "config.json", config.to_mapping())

    monkeypatch.setattr(loop, "train", save)
    monkeypatch.setattr(compile_cache, "use_compile_cache", lambda *given: caches.append(given))

    def call(recipe, **options):
        config = vit_jax.fit(recipe, tmp_path / "run", **options).config
        assert caches == [(config.compile_cache,)]
        return config

    return call


def test_fit_takes_a_model_and_a_folder_of_images(configured, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    options = {"model": "ViT-S/16", "data": photos, "overrides": {"model.pooling": "map"}}
    config = configured("folder", **options)
    assert config.model == model_options("ViT-S/16", pooling="map")
    data = config.data
    assert (data.source, data.name, data.data_dir) == ("folder", "photos", str(photos))
    assert data.image_size == 64


def test_a_folder_has_no_features_that_a_recipe_names(configured, tmp_path):
    data = {"name": "x", "label_key": "kind", "global_batch_size": 4}
    recipe = {**read_mapping("folder"), "data": data}
    assert configured(recipe, data=tmp_path, model="ViT-S/16").data.label_key is None


def test_fit_takes_the_name_of_a_dataset(configured):
    config = configured("quickstart", data="cifar10")
    assert (config.data.source, config.data.name) == ("tfds", "cifar10")


def arrays(count, seed):
    """Images of two classes, dark and bright, and their labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    low = (100 * labels)[:, None, None, None]
    return rng.integers(low, low + 100, (count, 8, 8, 3)).astype(np.uint8), labels


def test_fit_trains_on_arrays_and_resumes_only_with_the_same(tmp_path, monkeypatch):
    passed = {"train": arrays(64, 0), "test": arrays(20, 1)}
    overrides = {"train_steps": 4, "data.global_batch_size": 16, "logging.interval_steps": 1}

    def fit(folder, **changed):
        data = {**passed, **changed}
        return vit_jax.fit(str(UNMIXED), tmp_path / folder, overrides, data=data, verbose=False)

    whole = fit("whole")
    assert whole.result["train_examples"] == 64
    assert whole.result["eval/test/examples"] == 20
    assert vit_jax.load_run(whole.path).load_model().class_names == ("0", "1")
    with monkeypatch.context() as patch:
        patch.setattr(runs, "StopSignals", lambda: stop_after(2, patch))
        assert fit("stopped").result is None
    images, labels = passed["train"]
    other = images.copy()
    other[63, 0, 0, 0] ^= 1
    with pytest.raises(UserError, match=r"the data of .*differ|fingerprint|dataset"):
        fit("stopped", train=(other, labels))
    assert fit("stopped").result["weights_digest"] == whole.result["weights_digest"]


def test_predict_is_the_model_on_its_own_preprocessing(finished, tmp_path):
    model = vit_jax.load_run(finished).load_model()
    images = arrays(3, 0)[0]
    Image.fromarray(images[2]).save(tmp_path / "2.png")
    given = [images[0], Image.fromarray(images[1]), tmp_path / "2.png"]
    found = vit_jax.predict(model, given)
    want = jax.nn.softmax(model(vit_jax.preprocess_of(model)(images)))
    np.testing.assert_allclose(found.probabilities, want, rtol=1e-4, atol=1e-6)
    assert found.classes == [model.class_names[k] for k in np.argmax(want, axis=1)]
    assert found.class_names == model.class_names == tuple("0123456789")
    many = vit_jax.predict(model, [images[0]] * 33)
    np.testing.assert_allclose(many.probabilities, want[:1].repeat(33, 0), rtol=1e-4, atol=1e-6)
    headless = vit_jax.create_model("ViT-Mini/4", num_classes=0, image_size=8)
    with pytest.raises(UserError, match="a ViT without a head of classes; expected a model with"):
        vit_jax.predict(headless, images)


def test_a_config_may_be_nested_dicts(tmp_path):
    with pytest.raises(ConfigError, match=r"no .data. in the config"):
        vit_jax.fit({"model": {"name": "ViT-Ti/4"}}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(RunFolderError, match=r"has no config\.json"):
        vit_jax.load_run(tmp_path)
