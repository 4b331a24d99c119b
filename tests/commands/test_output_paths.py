"""Commands check where they will write before they read anything."""

import os

import pytest

from vit_jax.__main__ import main
from vit_jax.config.data import DataConfig
from vit_jax.data.sources.open import data_cache
from vit_jax.errors import RunFolderError

IN_THE_WAY = [
    ["analyze", "missing.npz", "--output=FILE"],
    ["analyze", "missing.npz", "--output=FILE/inside"],
    ["convert", "missing.npz", "FILE/weights.npz", "--format=vision_transformer"],
    ["data", "prepare", "missing", "--data_dir=FILE"],
]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")


@pytest.mark.parametrize("arguments", IN_THE_WAY, ids=" ".join)
def test_a_file_where_a_folder_is_needed_is_found_first(arguments, tmp_path, capsys):
    file = tmp_path / "file"
    assert main([part.replace("FILE", str(file)) for part in arguments]) == 2
    assert f"error: {file} is a file; expected a folder" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


def test_a_destination_that_exists_is_found_first(tmp_path, capsys):
    assert main(["convert", "missing.npz", str(tmp_path / "file"), "--format=orbax"]) == 2
    assert f"error: {tmp_path / 'file'} exists; expected a new path" in capsys.readouterr().err


def test_a_file_in_the_place_of_the_jobs_of_a_sweep_is_found_first(tmp_path, capsys):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "jobs").write_text("mine")
    assert main(["sweep", "--sweep=missing.py", f"--workdir={folder}"]) == 2
    assert f"error: {folder / 'jobs'} is a file" in capsys.readouterr().err
    assert list(folder.iterdir()) == [folder / "jobs"]


def test_a_file_in_the_place_of_the_report_of_an_evaluation_is_found_first(tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "report").write_text("mine")
    assert main(["eval", f"--workdir={folder}"]) == 2
    assert f"error: {folder / 'report'} is a file" in capsys.readouterr().err


def test_caches_in_the_place_of_a_file_are_refused(tmp_path):
    data = DataConfig(name="digits", global_batch_size=8, cache_dir=str(tmp_path / "file"))
    with pytest.raises(RunFolderError, match="file is a file; expected a folder"):
        data_cache(data)


@pytest.mark.parametrize(
    "command", ["plan --config=quickstart --topology=cpu:1", "bench step", "bench feed"]
)
def test_an_output_file_in_a_folder_that_is_not_writable_is_refused(
    command, tmp_path, monkeypatch, capsys
):
    """Also for root, which may write everywhere."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    assert main([*command.split(), f"--output={tmp_path / 'figures.json'}"]) == 2
    assert "figures.json' is in a folder that is not writable" in capsys.readouterr().err
