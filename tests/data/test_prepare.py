import hashlib
import io
import json
import signal
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from data.files import upload
from image_files import encoded, number_of, write_folder
from PIL import Image
from processes import run_command

from vit_jax.__main__ import main
from vit_jax.data.prepare.images import fit_image
from vit_jax.data.prepare.pack import PackOptions, pack
from vit_jax.data.prepare.shards import JOURNAL
from vit_jax.data.sources import TfdsSource
from vit_jax.data.sources.folder import FolderSource
from vit_jax.data.sources.listing import list_images
from vit_jax.errors import DataError
from vit_jax.storage.paths import is_bucket, user_path

# About two images of write_folder.
TINY_SHARDS = 0.00015
KILLED_PACK = Path(__file__).with_name("killed_pack.py")


@pytest.fixture
def photos(tmp_path):
    return write_folder(tmp_path / "photos")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def prepare(photos, data_dir, **options):
    options = PackOptions(**{"name": "photos", "shard_mb": TINY_SHARDS, **options})
    return pack(list_images(user_path(photos)), user_path(data_dir), options)


def content(folder):
    """Name -> content of all files but those of locks."""
    files = {p.name: p.read_bytes() for p in folder.iterdir() if ".lock" not in p.name}
    # It names the place at which the dataset was prepared.
    files["dataset_info.json"] = json.loads(files["dataset_info.json"])["splits"]
    return files


def written(folder):
    """Shard -> what differs when it is written again."""
    if is_bucket(folder):
        return {p.name: key for p, _, key in folder.list_objects() if "photos-train" in p.name}
    return {p.name: p.stat().st_mtime_ns for p in folder.glob("photos-train*")}


def test_a_prepared_folder_has_the_same_examples_in_the_same_order_for_us_and_tfds(
    photos, tmp_path
):
    path = prepare(photos, tmp_path / "data").path
    assert path == tmp_path / "data" / "photos" / "1.0.0"
    source = FolderSource(list_images(photos), "train", "photos")
    packed = TfdsSource("photos", "train", str(tmp_path / "data"))
    assert packed.class_names == source.class_names == ("ant", "bee", "cat")
    assert len(packed) == len(source) == 20
    for one, other in zip(packed.read(range(20)), source.read(range(20)), strict=True):
        assert (one.image, one.label) == (other.image, other.label)
        assert other.id in one.id
    assert packed.labels().tolist() == source.labels().tolist()
    builder = tfds.builder_from_directory(str(path))
    assert builder.info.splits["train"].num_examples == 20
    assert builder.info.splits["train"].num_shards > 5
    assert builder.info.features["label"].names == ["ant", "bee", "cat"]
    first = builder.as_data_source(split="train")[0]  # TFDS decodes it.
    assert first["image"].shape == (4, 4, 3)
    assert first["image"][0, 0, 0] == number_of(packed[0].image)
    assert (path / "label.labels.txt").read_text().split() == ["ant", "bee", "cat"]


def test_the_metadata_has_the_checksums_of_the_shards_and_they_enter_the_fingerprint(
    photos, tmp_path
):
    packed = prepare(photos, tmp_path / "data")
    lines = (packed.path / "checksums.sha256").read_text().splitlines()
    message = dict(reversed(line.split("  ")) for line in lines)
    shards = {p.name: p for p in packed.path.glob("*.array_record-*")}
    assert message == {n: hashlib.sha256(p.read_bytes()).hexdigest() for n, p in shards.items()}
    # The same number of images per class: only the checksums differ.
    before = TfdsSource("photos", "train", str(tmp_path / "data")).fingerprint
    (photos / "ant" / "000.png").write_bytes(encoded(200))
    prepare(photos, tmp_path / "other")
    assert TfdsSource("photos", "train", str(tmp_path / "other")).fingerprint != before


def test_the_validation_part_is_the_slice_of_the_folder_with_its_share_of_every_class(
    photos, tmp_path
):
    packed = prepare(photos, tmp_path / "data", val_fraction=0.5)
    assert packed.splits == {"train": 10, "validation": 10}
    listing = list_images(photos)
    for split, part in (("train", "train[:50%]"), ("validation", "train[50%:]")):
        found = TfdsSource("photos", split, str(tmp_path / "data"))
        assert np.bincount(found.labels()).tolist() == [5, 3, 2]
        expected = FolderSource(listing, part, "photos").read(range(10))
        assert [e.image for e in found.read(range(10))] == [e.image for e in expected]


@pytest.mark.parametrize(
    ("place", "after"),
    [
        ("disk", [3, 4]),
        pytest.param("disk", [7], marks=pytest.mark.slow),
        pytest.param("gcs", [7, 4], marks=pytest.mark.slow),
        pytest.param("s3", [7, 4], marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_resumes_and_gives_the_same_bytes(place, after, photos, tmp_path, request):
    whole = prepare(photos, tmp_path / "whole").path
    root = tmp_path if place == "disk" else user_path(request.getfixturevalue(place).url)
    data_dir, folder = root / "killed", root / "killed" / "photos" / "1.0.0"
    for count in after:
        done = run_command(KILLED_PACK, photos, data_dir, count, TINY_SHARDS)
        assert done.returncode == -signal.SIGKILL, done.stderr
    kept = written(folder)
    assert 0 < len(kept) < 10
    assert not (folder / "dataset_info.json").exists()
    with pytest.raises(DataError):
        TfdsSource("photos", "train", str(data_dir))
    assert content(prepare(photos, data_dir).path) == content(whole)
    assert kept.items() <= written(folder).items()  # Not written again.


def test_a_journal_line_that_a_kill_cut_off_is_written_again(photos, tmp_path):
    path = prepare(photos, tmp_path / "data").path
    before = content(path)
    journal = path / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-20])
    (path / "dataset_info.json").unlink()
    assert not prepare(photos, tmp_path / "data").was_complete
    assert content(path) == before


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("dataset_info.json", b""),
        ("dataset_info.json", b'{"name":'),
        ("features.json", None),
        ("label.labels.txt", None),
        ("*-00001-of-*", bytes(1000)),
        ("*-00002-of-*", None),
    ],
)
def test_damaged_files_are_written_again(photos, tmp_path, pattern, left):
    path = prepare(photos, tmp_path / "data").path
    before = content(path)
    (damaged,) = path.glob(pattern)
    if left is None:
        damaged.unlink()
    else:
        damaged.write_bytes(left)
    assert not prepare(photos, tmp_path / "data").was_complete
    assert content(path) | {JOURNAL: before[JOURNAL]} == before
    assert prepare(photos, tmp_path / "data").was_complete


@pytest.mark.parametrize(
    ("new_image", "options", "word"),
    [(True, {}, "images"), (False, {"short_side": 2}, "short_side")],
)
def test_other_images_or_options_for_an_existing_dataset_are_refused(
    photos, tmp_path, new_image, options, word
):
    path = prepare(photos, tmp_path / "data").path
    before = content(path)
    if new_image:
        (photos / "ant" / "new.png").write_bytes(encoded(99))
    with pytest.raises(DataError) as caught:
        prepare(photos, tmp_path / "data", **options)
    assert word in caught.value.got
    assert content(path) == before


def test_an_unreadable_image_is_named_or_skipped(photos, tmp_path):
    (photos / "bee" / "012.png").write_bytes(encoded(12)[:50])
    (photos / "cat" / "017.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"unreadable image.*--on_bad_example=skip"):
        prepare(photos, tmp_path / "data")
    folder = tmp_path / "data" / "photos" / "1.0.0"
    kept = written(folder)
    assert kept
    for _ in range(2):
        packed = prepare(photos, tmp_path / "data", on_bad_example="skip")
        assert sorted(packed.skipped) == ["bee/012.png", "cat/017.png"]
        assert packed.splits == {"train": 18}
    assert (
        kept.items() <= written(tmp_path / "data" / "photos" / "1.0.0").items()
    )  # Not written again.
    found = TfdsSource("photos", "train", str(tmp_path / "data"))
    assert np.bincount(found.labels()).tolist() == [10, 5, 3]
    # A dataset that lacks images is not given out as whole.
    with pytest.raises(DataError, match=r"skipped 2 unreadable images, such as "):
        prepare(photos, tmp_path / "data")


def test_a_dataset_of_another_program_is_not_overwritten(photos, tmp_path):
    path = prepare(photos, tmp_path / "data").path
    (path / JOURNAL).unlink()  # As TFDS leaves it.
    before = content(path)
    with pytest.raises(DataError, match="holds a dataset that another program wrote"):
        prepare(photos, tmp_path / "data")
    assert content(path) == before


def opened(image: bytes) -> Image.Image:
    return Image.open(io.BytesIO(image))


@pytest.mark.parametrize(
    ("size", "result"),
    [((80, 40), (20, 10)), ((40, 80), (10, 20)), ((33, 11), (30, 10)), ((12, 12), (10, 10))],
)
@pytest.mark.parametrize(
    ("kind", "kept_as"), [("JPEG", "JPEG"), ("PNG", "PNG"), ("BMP", "PNG"), ("WEBP", "JPEG")]
)
def test_a_larger_image_is_shrunk_to_the_short_side(size, result, kind, kept_as):
    image, message = fit_image(encoded(90, size, kind), 10)
    assert message == opened(image).format == kept_as
    assert opened(image).size == result
    assert abs(number_of(image) - 90) <= 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_smaller_image_keeps_its_bytes(kind):
    for size in ((10, 10), (9, 30), (10, 500)):
        image = encoded(90, size, kind)
        assert fit_image(image, 10) == (image, kind)
        assert fit_image(image, None) == (image, kind)


def test_jpeg_quality_is_95():
    image, _ = fit_image(encoded(90, (64, 64), "JPEG"), 32)
    reference = encoded(90, (32, 32), "JPEG", quality=95)
    assert opened(image).quantization == opened(reference).quantization


def test_an_image_rotated_by_exif_is_rotated_when_it_is_encoded_again():
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8] = 255  # The left half is white.
    held, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # To be turned clockwise: left becomes top.
    Image.fromarray(pixels).save(held, "JPEG", exif=exif, quality=95)
    image, _ = fit_image(held.getvalue(), 4)
    assert opened(image).size == (4, 8)
    assert opened(image).getexif().get(0x0112, 1) == 1
    turned = np.asarray(opened(image).convert("L")).astype(int)
    assert turned[:3].min() > 200
    assert turned[-3:].max() < 55
    # Bytes that stay keep their EXIF data, and training applies them.
    assert fit_image(held.getvalue(), 8)[0] == held.getvalue()
    assert fit_image(held.getvalue(), None)[0] == held.getvalue()


def test_transparency_is_dropped_when_shrinking():
    held = io.BytesIO()
    Image.new("RGBA", (20, 20), (90, 0, 0, 0)).save(held, "PNG")
    image, _ = fit_image(held.getvalue(), 10)
    assert opened(image).mode == "RGB"
    assert number_of(image) == 90


def test_from_bucket_to_bucket_gives_the_files_of_the_disk(bucket, photos, tmp_path):
    here = prepare(photos, tmp_path / "data", val_fraction=0.25)
    there = prepare(upload(photos, f"{bucket.url}/photos"), f"{bucket.url}/data", val_fraction=0.25)
    assert str(there.path) == f"{bucket.url}/data/photos/1.0.0"
    assert content(there.path) == content(here.path)
    bucket.server.clear()
    again = prepare(f"{bucket.url}/photos", f"{bucket.url}/data", val_fraction=0.25)
    assert (again.was_complete, again.splits) == (True, {"train": 15, "validation": 5})
    assert bucket.server.requests("write", ".array_record") == 0


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
