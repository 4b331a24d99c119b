"""Datasets in buckets give the same batches as the same files on a disk."""

import json
import shutil

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from data.files import assert_same_batches, upload, write_tar
from image_files import encoded, write_folder, write_tars

from vit_jax.config.data import DataConfig
from vit_jax.data.arrays import labelled_image
from vit_jax.data.loader import batch_spec, eval_batches, train_batches
from vit_jax.data.sources import TfdsSource, open_source, open_training_data
from vit_jax.data.sources.array_record import BucketRecords, Shard
from vit_jax.data.sources.listing import list_images
from vit_jax.data.transforms import make_train_transform
from vit_jax.errors import DataError, FileError, UnreachableError
from vit_jax.storage.block_cache import BlockCache
from vit_jax.storage.paths import user_path

SIZE = 8


def config(data_dir, tmp_path, **options):
    mapping = {
        "name": "digits",
        "data_dir": str(data_dir),
        "global_batch_size": 64,
        "image_size": SIZE,
        "cache_mb": 0,
        "cache_dir": str(tmp_path / "cache"),
        "num_threads": 2,
    }
    return DataConfig.from_mapping(mapping | options)


def batches(data, steps=range(3, 9), split="test"):
    """Some training batches, and those of an evaluation."""
    source, spec = open_training_data(data).source, batch_spec(data, 64, range(64))
    held = open_source(data, split)
    classes = len(source.class_names)
    preprocessing = labelled_image(make_train_transform(SIZE, data), SIZE, classes)
    options = {"seed": 1, "start_step": steps.start, "end_step": steps.stop}
    with (
        train_batches(source, lambda step: preprocessing, spec, **options) as training,
        eval_batches(held, preprocessing, spec) as evaluation,
    ):
        return [copied(batch) for feed in (training, evaluation) for batch in feed]


def copied(batch):
    return {name: array.copy() for name, array in batch.items()}


@pytest.fixture
def digits_url(bucket, digits_dir):
    return upload(digits_dir, f"{bucket.url}/datasets")


@pytest.mark.parametrize("gigabytes", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_batches_of_tfds_data_are_those_of_the_disk(
    gigabytes, bucket, digits_url, digits_dir, tmp_path
):
    bucket.server.clear()
    here, there = config(digits_dir, tmp_path), config(digits_url, tmp_path, cache_dir_gb=gigabytes)
    assert_same_batches(batches(there), batches(here))
    records = bucket.server.requests("read", "train.array_record-00000-of-00001")
    # 384 examples were read: the whole file in blocks, or what each chunk of 32 needs.
    assert 0 < records < (5 if gigabytes else 384)
    before = bucket.server.requests("read", "00001")
    batches(there, range(6, 12))
    assert (bucket.server.requests("read", "00001") == before) == bool(gigabytes)


def test_names_fingerprints_and_labels_are_those_of_the_disk(digits_url, digits_dir, tmp_path):
    for split in ("train", "train[10%:50%]+test"):
        there = TfdsSource("digits", split, digits_url, cache=BlockCache(tmp_path, 10**9))
        here = TfdsSource("digits", split, str(digits_dir))
        assert (there.name, there.fingerprint) == (here.name, here.fingerprint)
        assert there.class_names == here.class_names
        np.testing.assert_array_equal(there.labels(), here.labels())
        assert there.read([0, 5, 3]) == here.read([0, 5, 3])
        assert there.remote
        assert not here.remote


@pytest.fixture
def photos(tmp_path):
    """Images of several sizes, hidden and other files, and two splits."""
    write_folder(tmp_path / "photos" / "train")
    write_folder(tmp_path / "photos" / "test", {"ant": 2, "cat": 3}, start=30, size=(9, 5))
    (tmp_path / "photos" / "train" / "ant" / "deep").mkdir()
    (tmp_path / "photos" / "train" / "ant" / "deep" / "x y.png").write_bytes(encoded(99))
    (tmp_path / "photos" / "train" / "ant" / ".hidden.png").write_bytes(b"")
    (tmp_path / "photos" / "train" / "notes.txt").write_text("no image")
    return tmp_path / "photos"


def both(here, there, source, tmp_path, name="photos", split="test"):
    """Checks that a folder and its copy are the same dataset."""
    options = {"source": source, "name": name}
    one, other = (config(place, tmp_path, **options) for place in (there, here))
    got, expected = (open_training_data(data).source for data in (one, other))
    assert got.fingerprint == expected.fingerprint
    np.testing.assert_array_equal(got.labels(), expected.labels())
    assert_same_batches(batches(one, range(3), split), batches(other, range(3), split))


def test_an_image_folder_is_that_of_the_disk(bucket, photos, tmp_path):
    both(photos, upload(photos, f"{bucket.url}/photos"), "folder", tmp_path)


def test_tar_files_are_those_of_the_disk_and_are_listed_once(bucket, photos, tmp_path):
    shutil.rmtree(photos / "train" / "ant" / "deep")
    (photos / "train" / "notes.txt").unlink()
    tars = write_tars(tmp_path / "tars", photos / "train")
    url = upload(tars, f"{bucket.url}/tars")
    both(tars, url, "folder", tmp_path, split="train")
    bucket.server.clear()
    open_training_data(config(url, tmp_path, source="folder"))
    assert bucket.server.requests("read") == 0


def test_a_csv_file_is_that_of_the_disk(bucket, photos, tmp_path):
    paths = [p.relative_to(photos) for p in sorted(photos.rglob("*.png")) if p.name[0] != "."]
    lines = [f"{path},{path.parts[1]},{path.parts[0]}" for path in paths]
    (photos / "list.csv").write_text("\n".join(["path,label,split", *lines]))
    # The same files as one may name them on a disk, and a hidden one.
    (photos / "train" / "ant" / ".hidden.png").write_bytes(encoded(98))
    rows = [f"../test/.././{path},{n},train" for n, path in enumerate(paths[:3])]
    rows.append("../train//ant/.hidden.png,3,train")
    (photos / "lists").mkdir()
    (photos / "lists" / "a.csv").write_text("\n".join(["path,label,split", *rows]))
    url = upload(photos, f"{bucket.url}/photos")
    both(photos / "list.csv", f"{url}/list.csv", "csv", tmp_path)
    both(photos / "lists" / "a.csv", f"{url}/lists/a.csv", "csv", tmp_path, split="train")
    user_path(f"{url}/{paths[0]}").unlink()
    with pytest.raises(DataError, match=f"1 of {len(paths)} files listed in .* do not exist"):
        open_training_data(config(f"{url}/list.csv", tmp_path, source="csv"))


def test_only_the_images_that_a_csv_file_names_count_for_the_cache(bucket, photos, tmp_path):
    (photos / "list.csv").write_text("path,label\ntrain/ant/deep/x y.png,0\n")
    url = upload(photos, bucket.url)
    user_path(f"{url}/large").write_bytes(bytes(2**21))
    cache = BlockCache(tmp_path / "cache", 2**20)
    listing = list_images(user_path(f"{url}/list.csv"), cache)
    assert listing.read(0) == encoded(99)
    assert cache.share == 1.0
    # Nothing but the folder of the image is listed.
    listed = {one["object"] for one in bucket.server.counts() if one["operation"] == "list"}
    assert not any(name.endswith("/large") for name in listed)


def test_an_object_that_no_path_can_name_is_left_out_with_a_warning(bucket, photos, caplog):
    url = upload(photos, f"{bucket.url}/photos")
    root = user_path(url)
    before = [path for path, _ in root.find()]
    root.fs.pipe_file(f"{root.key}/train//3.png", encoded(1))
    assert [path for path, _ in root.find()] == before
    assert f"the object {url}/train//3.png is left out" in caplog.text


def test_a_damaged_tar_file_is_named(gcs, tmp_path):
    folder = user_path(f"{gcs.url}/photos")
    (folder / "cat.tar").write_bytes(b"not a tar file, but long enough" * 40)
    with pytest.raises(DataError, match=r"gs://.*cat\.tar cannot be read"):
        open_training_data(config(folder, tmp_path, source="folder"))


SIZES = (0, 1, 1000, 65_464, 70_000, 300_000)


def write_records(path, options, count=60):
    rng = np.random.default_rng(0)
    writer = ArrayRecordWriter(str(path), options)
    for number in range(count):
        writer.write(rng.bytes(SIZES[number % len(SIZES)]) + b"zeros" * 50)
    writer.close()
    return path


def open_records(gcs, content, *shards):
    """The records of a file in a bucket; shards are ranges of them."""
    path = user_path(f"{gcs.url}/records")
    path.write_bytes(content)
    (found,) = path.list_objects()
    return BucketRecords([Shard(found, *shard) for shard in shards], BlockCache(None, 0))


@pytest.mark.parametrize(
    "options", ["group_size:1", "group_size:7", "group_size:1,uncompressed", "group_size:64,zstd:9"]
)
def test_records_are_those_that_the_library_reads(options, gcs, tmp_path):
    path = write_records(tmp_path / "records", options)
    records = open_records(gcs, path.read_bytes(), (0, 60), (10, 13))
    expected = ArrayRecordReader(str(path)).read([*range(60), 10, 11, 12])
    assert len(records) == 63
    assert records.__getitems__(range(63)) == expected
    assert records[62] == expected[62]


def test_a_compression_that_cannot_be_read_is_an_error(gcs, tmp_path):
    path = write_records(tmp_path / "records", "group_size:1,brotli")
    records = open_records(gcs, path.read_bytes(), (0, 60))
    with pytest.raises(DataError, match=r"gs://.*/records is compressed by 'b'; expected zstd"):
        records.__getitems__([2])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content[:-1], "which is not a multiple of 64 KiB"),
        (lambda content: content[:-65536], "no footer of ArrayRecord|no chunk of records"),
        (lambda content: content[:100] + bytes(2000) + content[2100:], "no chunk of records at"),
        (lambda content: bytes(len(content)), "no chunk of records"),
    ],
)
def test_a_damaged_file_is_named(change, said, gcs, tmp_path):
    content = write_records(tmp_path / "records", "group_size:1").read_bytes()
    records = open_records(gcs, change(content), (0, 60))
    with pytest.raises(DataError, match=rf"gs://.*/records has .*({said})"):
        records.__getitems__(range(60))


def test_a_missing_shard_is_named(digits_url, tmp_path):
    (shard,) = user_path(digits_url).rglob("digits-train.array_record*")
    shard.unlink()
    with pytest.raises(DataError, match=f"no object {shard}"):
        TfdsSource("digits", "train", digits_url)


def test_an_object_that_is_deleted_below_a_run_is_named(gcs, photos, tmp_path):
    url = upload(photos, f"{gcs.url}/photos")
    data = config(url, tmp_path, source="folder")
    source = open_training_data(data).source
    user_path(f"{url}/train/bee/012.png").unlink()
    with pytest.raises(DataError, match=r"no object gs://.*bee/012\.png"):
        source.read(range(len(source)))


@pytest.mark.usefixtures("impatient")
def test_examples_that_cannot_be_reached_are_not_skipped_as_bad(bucket, digits_url, tmp_path):
    data = config(digits_url, tmp_path, on_bad_example="skip", num_threads=0)
    source = open_training_data(data).source
    preprocessing = labelled_image(make_train_transform(SIZE, data), SIZE, 10)
    bucket.server.faults(expired=True)
    with (
        pytest.raises(UnreachableError, match=r"cannot read .*digits-train.*credentials"),
        train_batches(
            source, lambda step: preprocessing, batch_spec(data, 64, range(64)),
            seed=0, start_step=0, end_step=2,
        ) as feed,
    ):  # fmt: skip
        next(feed)


def test_a_wrong_name_lists_what_is_there(digits_url):
    with pytest.raises(DataError, match=r"no dataset 'pixels' in .*found here: digits"):
        TfdsSource("pixels", "train", digits_url)
    with pytest.raises(DataError, match=r"no folder .*nothing"):
        TfdsSource("pixels", "train", digits_url + "/nothing")


def test_what_cannot_be_in_a_bucket_is_an_error(digits_dir, tmp_path):
    with pytest.raises(FileError, match=r"data\.cache_dir at gs://.*; expected a local path"):
        open_training_data(config(digits_dir, tmp_path, cache_dir="gs://bucket/cache"))


def test_the_bundled_dataset_is_prepared_in_a_bucket(bucket, digits_dir):
    source = TfdsSource("digits", "train", f"{bucket.url}/new")
    assert source.fingerprint == TfdsSource("digits", "train", str(digits_dir)).fingerprint
    bucket.server.clear()
    assert len(TfdsSource("digits", "test", f"{bucket.url}/new")) == 360
    assert bucket.server.requests("write") == 0


@pytest.mark.parametrize("layout", ["jsonl", "tar"])
def test_images_with_captions_are_those_of_the_disk(layout, bucket, tmp_path):
    folder = tmp_path / "captioned"
    folder.mkdir()
    pixels = {f"{i}.png": encoded(i) for i in range(5)}
    if layout == "jsonl":
        for name, content in pixels.items():
            (folder / name).write_bytes(content)
        lines = [json.dumps({"file_name": n, "caption": [f"cat {n}", "dog"]}) for n in pixels]
        (folder / "metadata.jsonl").write_text("\n".join(lines))
    else:
        texts = {name[:-3] + "txt": b"cat " + name.encode() for name in pixels}
        write_tar(folder / "0.tar", pixels | texts)
    url = upload(folder, f"{bucket.url}/captioned")
    options = {"source": "captioned", "captions": {"tokenizer": "not read"}}
    on_disk, remote = (
        open_source(config(place, tmp_path, **options), "train") for place in (folder, url)
    )
    assert remote.remote
    assert remote.fingerprint == on_disk.fingerprint
    assert remote.read(range(5)) == on_disk.read(range(5))
