"""`data prepare`, `convert`, `check` and `list` with data in buckets."""

import json
import signal
from pathlib import Path

import pytest
from data.files import upload
from image_files import write_folder
from processes import run_command

from vit_jax.__main__ import main
from vit_jax.data.prepare.pack import PackOptions, pack
from vit_jax.data.sources import TfdsSource
from vit_jax.data.sources.listing import list_images
from vit_jax.errors import DataError
from vit_jax.storage.paths import user_path

# About two images of write_folder.
TINY_SHARDS = 0.00015
KILLED_PACK = Path(__file__).with_name("killed_pack.py")


@pytest.fixture
def photos(tmp_path):
    return write_folder(tmp_path / "photos")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def prepare(photos, data_dir, shard_mb=TINY_SHARDS, **options):
    options = PackOptions(name="photos", shard_mb=shard_mb, **options)
    return pack(list_images(user_path(photos)), user_path(data_dir), options)


def content(folder):
    """Name -> content of all files but those of locks."""
    folder = user_path(folder)
    files = {p.name: p.read_bytes() for p in folder.iterdir() if ".lock" not in p.name}
    # It names the place at which the dataset was prepared.
    files["dataset_info.json"] = json.loads(files["dataset_info.json"])["splits"]
    return files


def test_from_bucket_to_bucket_gives_the_files_of_the_disk(bucket, photos, tmp_path):
    here = prepare(photos, tmp_path / "data", val_fraction=0.25)
    there = prepare(upload(photos, f"{bucket.url}/photos"), f"{bucket.url}/data", val_fraction=0.25)
    assert str(there.path) == f"{bucket.url}/data/photos/1.0.0"
    assert content(there.path) == content(here.path)
    bucket.server.clear()
    again = prepare(f"{bucket.url}/photos", f"{bucket.url}/data", val_fraction=0.25)
    assert (again.was_complete, again.splits) == (True, {"train": 15, "validation": 5})
    assert bucket.server.requests("write", ".array_record") == 0


@pytest.mark.slow
def test_a_killed_run_resumes_after_the_last_shard(bucket, photos, tmp_path):
    url = f"{bucket.url}/data"
    for count in (7, 4):
        done = run_command(KILLED_PACK, photos, url, count, TINY_SHARDS)
        assert done.returncode == -signal.SIGKILL, done.stderr
    folder = user_path(url) / "photos" / "1.0.0"
    kept = {path.name: key for path, _, key in folder.list_objects() if "photos-" in path.name}
    assert 0 < len(kept) < 10
    assert not (folder / "dataset_info.json").exists()
    with pytest.raises(DataError):
        TfdsSource("photos", "train", url)
    there, here = prepare(photos, url), prepare(photos, tmp_path / "whole")
    assert content(there.path) == content(here.path)
    now = {path.name: key for path, _, key in folder.list_objects()}
    assert kept.items() <= now.items()  # Not written again.


def test_a_bucket_that_becomes_read_only_is_one_error(gcs, photos):
    url = f"{gcs.url}/data"
    gcs.server.faults(read_only=True, only="write .*array_record")
    with pytest.raises(DataError, match=r"cannot write gs://.*access was refused"):
        prepare(photos, url)
    gcs.server.faults()
    assert prepare(photos, url).splits == {"train": 20}


def run(capsys, *arguments):
    code = main(["data", *map(str, arguments)])
    return code, capsys.readouterr().out


def test_commands_prepare_and_check(bucket, photos, capsys):
    source = upload(photos, f"{bucket.url}/photos")
    where = f"--data_dir={bucket.url}/data"
    code, said = run(capsys, "prepare", source, where)
    assert code == 0
    assert f"--config.data.data_dir={bucket.url}/data" in said
    code, said = run(capsys, "info", source, "--json")
    assert json.loads(said)["splits"]["train"]["examples"] == 20
    for checked in ((source,), ("photos", where)):
        code, said = run(capsys, "check", *checked, "--json")
        assert (code, json.loads(said).get("damaged_files", {})) == (0, {})
    (shard, *_) = sorted(user_path(f"{bucket.url}/data/photos/1.0.0").glob("photos-train*"))
    content = bytearray(shard.read_bytes())
    content[-70_000 % 65536] ^= 1  # In the padding, which no reader looks at.
    shard.write_bytes(bytes(content))
    code, said = run(capsys, "check", "photos", where, "--json")
    assert (code, list(json.loads(said)["damaged_files"])) == (2, [shard.name])
