import numpy as np
import pytest
from data.files import Labelled
from image_files import encoded, write_folder
from PIL import Image

from vit_jax.data.check import check_split, dataset_warnings, wrong_checksums
from vit_jax.data.prepare.pack import PackOptions, pack
from vit_jax.data.sources.folder import FolderSource
from vit_jax.data.sources.listing import list_images


def check_folder(path):
    return check_split(FolderSource(list_images(path), "train", "p", "keep"), "train", threads=2)


def test_every_image_is_decoded_counted_and_measured(tmp_path):
    photos = write_folder(tmp_path / "p", {"ant": 70, "bee": 2})
    (photos / "bee" / "big.jpg").write_bytes(encoded(9, (30, 20), "JPEG"))
    report = check_folder(photos)
    assert report.bad == []
    assert report.per_class.tolist() == [70, 3]
    assert report.formats == {"PNG": 72, "JPEG": 1}
    assert sorted(map(tuple, report.sizes.tolist()))[-1] == (30, 20)
    assert report.num_bytes.sum() == sum(p.stat().st_size for p in photos.rglob("*.*"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "unreadable image of 0 bytes"),
        (b"text", "unreadable image of 4 bytes starting with 74 65 78 74"),
        (encoded(3, (40, 40), "JPEG")[:-20], "unreadable image"),
    ],
)
def test_a_bad_file_is_listed_with_its_reason(tmp_path, content, reason):
    photos = write_folder(tmp_path / "p")
    (photos / "bee" / "bad.png").write_bytes(content)
    report = check_folder(photos)
    ((name, message),) = report.bad
    assert name == "bee/bad.png"
    assert message.startswith(reason)
    assert report.per_class.tolist() == [10, 6, 4]
    assert len(report.sizes) == len(report.num_bytes) == 20


def test_a_label_beyond_the_class_count_is_bad():
    report = check_split(Labelled([0, 2, 1, -1], "ab", encoded(1)), "train")
    assert report.bad == [("1", "label 2 is not 0 to 1"), ("3", "label -1 is not 0 to 1")]
    assert report.per_class.tolist() == [1, 1]


def test_an_example_that_cannot_be_read_does_not_hide_its_neighbours():
    source = Labelled([0] * 200, "ab", encoded(1), unreadable=[70, 130])
    report = check_split(source, "train")
    assert report.bad == [("70", "a damaged file"), ("130", "a damaged file")]
    assert report.per_class.tolist() == [198, 0]


def noise(path, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def warnings_of(path):
    listing = list_images(path)
    sources = {name: FolderSource(listing, name, "p", "keep") for name in listing.splits}
    return dataset_warnings([check_split(s, n, 2) for n, s in sources.items()], sources)


def test_nothing_is_told_of_a_good_dataset(tmp_path):
    for number, name in enumerate(["train/ant", "train/bee", "val/ant", "val/bee"]):
        for image in range(2):
            noise(tmp_path / name / f"{image}.png", 2 * number + image)
    assert warnings_of(tmp_path) == []


def test_images_of_one_colour_and_images_in_two_splits_are_told(tmp_path):
    for number, name in enumerate(["train/ant/0", "train/ant/1", "train/bee/2", "val/bee/3"]):
        noise(tmp_path / f"{name}.png", number)
    (tmp_path / "train/bee/black.png").write_bytes(encoded(0))
    (tmp_path / "val/bee/4.png").write_bytes((tmp_path / "train/ant/1.png").read_bytes())
    assert warnings_of(tmp_path) == [
        "split 'val' has no example of these classes: ant",
        "1 of 4 images of split 'train' are of one colour, such as train/bee/black.png",
        "1 of 2 images of split 'val' are also in split 'train', such as"
        " val/bee/4.png = train/ant/1.png",
    ]


def test_an_image_in_two_classes_is_told(tmp_path):
    for number, name in enumerate(["ant/0", "ant/1", "bee/2", "bee/3", "bee/4"]):
        noise(tmp_path / f"{name}.png", number)
    for copy, image in (("bee/0", "ant/0"), ("bee/1", "ant/1"), ("bee/5", "bee/4")):
        (tmp_path / f"{copy}.png").write_bytes((tmp_path / f"{image}.png").read_bytes())
    (warning,) = warnings_of(tmp_path)
    told = "images of split 'train' in more than one class: 2, such as ant/{0}.png = bee/{0}.png"
    assert warning in (told.format(0), told.format(1))


def test_a_prepared_dataset_is_checked_against_its_checksums(tmp_path):
    photos = write_folder(tmp_path / "p")
    options = PackOptions(name="photos", shard_mb=0.0005)
    path = pack(list_images(photos), tmp_path / "data", options).path
    assert wrong_checksums(path) == []
    shards = sorted(path.glob("*.array_record-*"))
    content = bytearray(shards[0].read_bytes())
    content[len(content) // 2] ^= 1
    shards[0].write_bytes(bytes(content))
    shards[1].unlink()
    assert wrong_checksums(path) == [
        (shards[0].name, "wrong checksum: changed or damaged"),
        (shards[1].name, "missing"),
    ]
