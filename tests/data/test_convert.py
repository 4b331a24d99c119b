import os
import sys
import types

import pytest
import tensorflow_datasets as tfds
from data.files import records_of, slow_crc32c, tfrecord, write_tfrecords

from vit_jax.data.prepare.shards import ShardFolder
from vit_jax.data.prepare.tfrecord import convert, crc32c, read_tfrecords
from vit_jax.data.sources import TfdsSource
from vit_jax.data.sources.tfds import open_builder
from vit_jax.errors import DataError


@pytest.fixture(autouse=True)
def _checksum_package(monkeypatch):
    """The package of that name, as far as it is used."""
    package = types.ModuleType("google_crc32c")
    package.value = slow_crc32c  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google_crc32c", package)


@pytest.fixture
def old_format(digits_dir, tmp_path):
    """The test split of the digits as TFDS writes TFRecord, in three shards."""
    here = tmp_path / "data" / "pixels" / "1.0.0"
    here.mkdir(parents=True)
    write_tfrecords(here, digits_dir)
    return here


def builder(old_format):
    return open_builder("pixels", str(old_format.parents[1]))


def test_the_checksum_is_that_of_the_rfc():
    # RFC 3720, B.4: 32 bytes of zeros, and 32 of ones.
    assert slow_crc32c(bytes(32)) == 0x8A9136AA
    assert slow_crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c() is slow_crc32c


def test_converting_beside_the_old_files_makes_it_readable_and_leaves_them(
    old_format, digits_dir, tmp_path
):
    before = {p.name: p.read_bytes() for p in old_format.iterdir()}
    done = convert(builder(old_format), None)
    assert (done.path, done.examples, done.was_complete) == (old_format, 110, False)
    source = TfdsSource("pixels", "test", str(tmp_path / "data"))
    expected = TfdsSource("digits", "test[:110]", str(digits_dir))
    assert source.read(range(110)) == expected.read(range(110))
    assert source.labels().tolist() == expected.labels().tolist()
    for name, content in before.items():
        if name != "dataset_info.json":
            assert (old_format / name).read_bytes() == content
    # Who reads the old format goes on doing so.
    info = tfds.builder_from_directory(str(old_format)).info
    assert info.file_format.value == "tfrecord"
    assert [f.value for f in info.alternative_file_formats] == ["array_record"]
    assert convert(builder(old_format), None).was_complete


def test_converting_to_another_folder_makes_an_independent_copy(old_format, tmp_path):
    before = {p.name: p.read_bytes() for p in old_format.iterdir()}
    done = convert(builder(old_format), tmp_path / "copy")
    assert done.path == tmp_path / "copy" / "pixels" / "1.0.0"
    assert {p.name: p.read_bytes() for p in old_format.iterdir()} == before
    assert not list(done.path.glob("*tfrecord*"))
    source = TfdsSource("pixels", "test", str(tmp_path / "copy"))
    assert (len(source), source.class_names) == (110, tuple("abcdefghij"))


def test_every_shard_has_the_same_records(old_format):
    convert(builder(old_format), None)
    for number in range(3):
        old = old_format / f"pixels-test.tfrecord-{number:05d}-of-00003"
        new = old_format / f"pixels-test.array_record-{number:05d}-of-00003"
        assert list(read_tfrecords(old, slow_crc32c)) == records_of(new)


def test_a_stopped_conversion_resumes_with_the_next_shard(old_format, monkeypatch):
    original = ShardFolder.write

    def write(self, name, records, facts):
        if "-00002-of" in name:
            raise KeyboardInterrupt
        return original(self, name, records, facts)

    monkeypatch.setattr(ShardFolder, "write", write)
    with pytest.raises(KeyboardInterrupt):
        convert(builder(old_format), None)
    first = old_format / "pixels-test.array_record-00000-of-00003"
    written = first.stat().st_mtime_ns
    monkeypatch.setattr(ShardFolder, "write", original)
    convert(builder(old_format), None)
    assert first.stat().st_mtime_ns == written
    assert len(TfdsSource("pixels", "test", str(old_format.parents[1]))) == 110


@pytest.mark.parametrize("damage", ["cut", "header", "length", "record", "missing"])
def test_a_damaged_file_is_named_and_not_converted(old_format, damage):
    path = old_format / "pixels-test.tfrecord-00001-of-00003"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        os.truncate(path, len(content) - 3)
    elif damage == "header":
        os.truncate(path, 5)
    elif damage == "missing":
        path.unlink()
    else:
        content[{"length": 0, "record": 40}[damage]] ^= 1
        path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"pixels-test\.tfrecord-00001-of-00003"):
        convert(builder(old_format), None)
    assert not (old_format / "pixels-test.array_record-00001-of-00003").exists()
    with pytest.raises(DataError, match="is stored as tfrecord"):
        TfdsSource("pixels", "test", str(old_format.parents[1]))


def test_a_file_with_fewer_records_than_its_metadata_is_refused(old_format):
    path = old_format / "pixels-test.tfrecord-00000-of-00003"
    path.write_bytes(tfrecord(list(read_tfrecords(path, slow_crc32c))[:99]))
    with pytest.raises(DataError, match="holds 99 records; expected 100"):
        convert(builder(old_format), None)
    assert not list(old_format.glob("*.array_record-00000-of-00003"))


def test_without_the_checksum_package_the_error_says_how_to_install_it(old_format, monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(DataError, match="pip install google-crc32c"):
        convert(builder(old_format), None)


def test_an_array_record_dataset_needs_no_conversion(digits_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    assert convert(open_builder("digits", str(digits_dir)), None).was_complete


@pytest.mark.interop
def test_checksums_equal_those_of_the_google_crc32c_package(monkeypatch):
    monkeypatch.undo()
    package = pytest.importorskip("google_crc32c")
    for data in (b"", b"a", bytes(range(256)) * 3):
        assert package.value(data) == slow_crc32c(data)
