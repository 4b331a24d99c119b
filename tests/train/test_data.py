"""Training on subsets and folders, as configs name them."""

import json

import pytest
from image_files import encoded, write_folder
from processes import UNMIXED

from vit_jax.config.data import SubsetConfig
from vit_jax.config.file import load_config
from vit_jax.config.run import Config
from vit_jax.data import order
from vit_jax.data.sources import open_source, open_training_data
from vit_jax.errors import DataError, RunFolderError
from vit_jax.run.folder import read_config
from vit_jax.run.metrics import read_metrics
from vit_jax.train.loop import train
from vit_jax.train.signals import StopSignals


def config_of(data_dir, *overrides, length="train_steps=6") -> Config:
    short = [
        length, "optimizer.schedule.warmup_steps=2", "evaluation.interval_steps=none",
        "checkpoint.interval_steps=3",
    ]  # fmt: skip
    return load_config(UNMIXED, [*short, f"data.data_dir={data_dir}", *overrides])


@pytest.mark.slow
def test_a_run_on_a_subset_writes_its_manifest_and_resumes_only_on_it(digits_dir, tmp_path):
    subset = ["data.subset.preset=10_percent", "data.subset.seed=5"]
    config = config_of(digits_dir, *subset, length="train_epochs=2.0")
    result = train(config, tmp_path, StopSignals())
    assert result["step"] == 9  # Two epochs of the subset: 2 * 144 / 32.
    manifest = json.loads((tmp_path / "subset.json").read_text())
    assert (manifest["examples"], manifest["of"], manifest["seed"]) == (144, 1437, 5)
    kept = read_config(tmp_path)
    assert kept.data.subset == SubsetConfig(preset="10_percent", seed=5, hash=manifest["hash"])
    assert result["eval/test/examples"] == 360  # Evaluation is on all of a split.
    assert train(config, tmp_path, StopSignals()) == result
    assert train(kept, tmp_path, StopSignals()) == result
    # The dataset in that place is another one now.
    other = config_of(digits_dir, *subset, "data.train_split=train[1:]", length="train_epochs=2.0")
    with pytest.raises(RunFolderError, match=r"data\.subset\.hash"):
        train(other, tmp_path, StopSignals())
    changed = kept.data.replace(train_split="train[1:]")
    with pytest.raises(DataError, match=f"data.subset.hash = {manifest['hash']}"):
        open_training_data(changed)


@pytest.fixture
def photos(tmp_path):
    return write_folder(tmp_path / "photos", size=(12, 9))


def folder_config(photos, *overrides) -> Config:
    return config_of(
        photos,
        "data.source=folder",
        "data.name=photos",
        "data.train_split=train[:50%]",
        "evaluation.splits.test=train[50%:]",
        "data.global_batch_size=4",
        *overrides,
    )


@pytest.mark.slow
def test_a_run_on_a_folder_with_one_class_says_so(tmp_path, caplog):
    photos = write_folder(tmp_path / "photos", {"ant": 8}, size=(12, 9))
    config = folder_config(photos, "evaluation.splits.all=all")
    train(config, tmp_path / "run", StopSignals())
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told[:2] == [
        "data: all 4 examples of photos train[:50%] have class 'ant': there is nothing to learn,"
        " and any model is right",
        "data: 4 of the 8 examples of evaluation split 'all' (photos all) are also training"
        " examples",
    ]


@pytest.mark.slow
def test_a_run_on_a_folder_of_images_resumes_after_the_folder_moved(photos, tmp_path):
    workdir = tmp_path / "run"
    result = train(folder_config(photos), workdir, StopSignals())
    assert (result["step"], result["eval/test/examples"]) == (6, 10)
    assert json.loads((workdir / "classes.json").read_text()) == {"names": ["ant", "bee", "cat"]}
    assert not (workdir / "subset.json").exists()
    of_data = (workdir / "data.json").read_text()
    assert json.loads(of_data)["evaluated"].keys() == {"test"}
    (workdir / "result.json").unlink()
    moved = photos.rename(tmp_path / "moved")
    again = train(folder_config(moved), workdir, StopSignals())
    assert (workdir / "data.json").read_text() == of_data  # Wherever the images are.
    assert again | {"wall_time_s": 0, "seconds": 0} == result | {"wall_time_s": 0, "seconds": 0}


@pytest.mark.slow
def test_skipped_examples_are_counted_in_the_metrics(photos, tmp_path, caplog):
    source = open_training_data(folder_config(photos).data).source
    (photos / source[3].id).write_bytes(b"no image")
    (photos / open_source(folder_config(photos).data, "train[50%:]")[0].id).write_bytes(b"no image")
    config = folder_config(photos, "data.on_bad_example=skip")
    result = train(config, tmp_path / "run", StopSignals())
    assert (result["eval/test/examples"], result["eval/test/skipped_examples"]) == (9, 1)
    assert "evaluation split 'test': 1 of 10 examples cannot be read and are skipped" in caplog.text
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    name = "train/skipped_examples"
    (counted,) = [row[name] for row in rows if row["step"] == 6 and name in row]
    # 6 steps of 4 examples are two epochs of 10: the bad one comes at least twice.
    assert counted == result["skipped_examples"] == 1
    assert caplog.text.count(f"example {source[3].id} of {source.name}") == 1
    # A checkpoint holds them, so a resumed run counts those of all its sessions.
    (tmp_path / "run" / "result.json").unlink()
    assert train(config, tmp_path / "run", StopSignals())["skipped_examples"] == 1


@pytest.mark.slow
def test_a_resumed_run_says_that_its_evaluation_data_have_changed(photos, tmp_path, caplog):
    workdir, evaluated = tmp_path / "run", open_source(folder_config(photos).data, "train[50%:]")
    train(folder_config(photos), workdir, StopSignals())
    words = "the data of evaluation split 'test' have changed since step 6"
    for changed in (False, True):
        (workdir / "result.json").unlink()
        if changed:
            (photos / evaluated[0].id).write_bytes(encoded(99, (30, 30), "BMP"))
        train(folder_config(photos), workdir, StopSignals())
        assert (words in caplog.text) == changed


def test_a_run_does_not_resume_with_another_order(photos, tmp_path, monkeypatch):
    """A version of the order is saved only where the order is computed."""
    small, large = tmp_path / "small", tmp_path / "large"
    train(folder_config(photos), small, StopSignals())
    monkeypatch.setattr(order, "_MAX_IN_MEMORY", 9)
    result = train(folder_config(photos), large, StopSignals())
    for workdir in (small, large):
        (workdir / "result.json").unlink()
    again = train(folder_config(photos), large, StopSignals())
    assert again | {"wall_time_s": 0, "seconds": 0} == result | {"wall_time_s": 0, "seconds": 0}
    before = sorted(p.name for p in small.rglob("*"))
    with pytest.raises(DataError, match=r"'order': None.*'order': 2.*another --workdir"):
        train(folder_config(photos), small, StopSignals())
    assert sorted(p.name for p in small.rglob("*")) == before
