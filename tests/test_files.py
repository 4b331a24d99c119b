import os

import pytest

from vit_jax.files import write_atomically


def test_a_file_and_its_folder_are_made_and_nothing_else_is_left(tmp_path):
    write_atomically(tmp_path / "new" / "a.txt", "one")
    write_atomically(tmp_path / "new" / "a.txt", "two")
    assert (tmp_path / "new" / "a.txt").read_text() == "two"
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.txt"]


def test_what_was_there_survives_a_full_disk(tmp_path, monkeypatch):
    write_atomically(tmp_path / "a.txt", "one")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "a.txt", "two")
    assert (tmp_path / "a.txt").read_text() == "one"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
