"""Atomic writes and JSON files."""

import os
from pathlib import Path

import pytest

from vit_jax.errors import CheckpointError, FileError, NonFiniteError
from vit_jax.storage.files import (
    parse_json,
    read_file,
    read_json,
    remove_tree,
    write_atomically,
    write_json,
)


def test_a_write_creates_the_folder_and_a_full_disk_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "new" / "a.txt"
    write_atomically(path, "one")
    write_atomically(path, "two")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "three")
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


def test_text_is_utf_8_and_bytes_of_names_are_read_as_utf_8(tmp_path):
    write_atomically(tmp_path / "a.txt", "è \udcc3\udca8 \udcff")
    assert (tmp_path / "a.txt").read_bytes().decode() == "è è \N{REPLACEMENT CHARACTER}"


def test_written_json_can_be_read(tmp_path):
    write_json(tmp_path / "a.json", {"a": [1, None]})
    assert (tmp_path / "a.json").read_text() == '{\n  "a": [\n    1,\n    null\n  ]\n}\n'
    assert read_json(tmp_path / "a.json") == {"a": [1, None]}
    write_json(tmp_path / "b.json", [1])
    assert read_json(tmp_path / "b.json", list) == [1]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_holds_no_number_that_is_not_finite(tmp_path, value):
    write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(NonFiniteError, match=rf"^b\.1\.loss = {value} in .*a\.json; expected"):
        write_json(tmp_path / "a.json", {"a": 1, "b": [2, {"loss": value}]})
    assert read_json(tmp_path / "a.json") == {"a": 1}


DEEP = "{} is damaged: nested deeper than 100 levels"


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (None, "no file {}; expected a JSON object; check the path"),
        (b"{", "{} is damaged: Expecting property name enclosed in double quotes"),
        (b"\xff", "{} is damaged: 'utf-8' codec can't decode byte 0xff"),
        (b"[]", "{} holds a list; expected a JSON object; check the path"),
        (b"[" * 100_000, DEEP),
        (b"[" * 102 + b"]" * 102, DEEP),
    ],
)
def test_an_unusable_json_file_is_a_one_line_error(content, got, tmp_path):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        read_json(path)
    assert str(caught.value).startswith(got.format(path))
    with pytest.raises(CheckpointError, match=r"; use another step$"):
        read_json(path, error=CheckpointError, fix="use another step")
    assert parse_json("[" * 100 + "]" * 100) != []


def test_a_tree_is_removed_if_it_is_there(tmp_path):
    write_atomically(tmp_path / "a" / "b" / "c.txt", "one")
    remove_tree(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    remove_tree(tmp_path / "a")


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder"])
def test_what_is_not_a_file_is_refused_before_it_is_opened(tmp_path, kind):
    """Reading a pipe never ends, and /dev/zero fills the memory."""
    path = {"a pipe": tmp_path / "pipe", "a device": Path("/dev/zero"), "a folder": tmp_path}[kind]
    if kind == "a pipe":
        os.mkfifo(path)
    with pytest.raises(FileError, match=f"{path} is {kind}; expected a JSON object"):
        read_json(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FileError, match=r"has 1,099,511,627,776 bytes; expected a JSON"):
        read_json(path)
    (tmp_path / "small").write_bytes(b"12345")
    assert read_file(tmp_path / "small", 5) == b"12345"
