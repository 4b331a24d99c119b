"""Commands check where they will write before they read anything."""

import os
import re

import pytest

from vit_jax.__main__ import main
from vit_jax.config.data import DataConfig
from vit_jax.data.sources.open import data_cache
from vit_jax.errors import RunFolderError

IN_THE_WAY = [
    ("file", "analyze missing.npz --output=FILE", "is a file; expected a folder"),
    ("file", "analyze missing.npz --output=FILE/inside", "is a file; expected a folder"),
    ("file", "convert missing.npz FILE/weights --format=orbax", "is a file; expected a folder"),
    ("file", "convert missing.npz FILE --format=orbax", "exists; expected a new path"),
    ("file", "data prepare missing --data_dir=FILE", "is a file; expected a folder"),
    ("file", "report missing --output=FILE/inside", "is a file; expected a folder"),
    ("file", "train --config=quickstart --workdir=FILE/run", "is a file; expected a folder"),
    ("sweep/jobs", "sweep --sweep=missing.py --workdir=sweep", "is a file"),
    ("run/report", "eval --workdir=run", "is a file"),
]


@pytest.mark.parametrize(("place", "command", "message"), IN_THE_WAY)
def test_a_file_in_the_way_is_found_first(place, command, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    assert main(command.replace("FILE", str(file)).split()) == 2
    assert re.search(rf"error: \S*{place} {message}", capsys.readouterr().err)
    assert file.read_text() == "mine"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]


def test_caches_in_the_place_of_a_file_are_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
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
