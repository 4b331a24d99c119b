"""Layouts of folders and shards that people have, beyond one folder for each class."""

import io
import logging
import tarfile
import unicodedata

import numpy as np
import pytest
from images import encode

from vit_jax.data.sources.captioned import list_captioned
from vit_jax.data.sources.listing import list_images
from vit_jax.errors import DataError

IMAGE = encode(np.zeros((8, 8, 3), np.uint8))


def tree(root, *places):
    for place in places:
        for i in range(3):
            (root / place).mkdir(parents=True, exist_ok=True)
            (root / place / f"{i}.png").write_bytes(IMAGE)
    return root


def shard(path, **members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path.parent


def sizes(listing):
    return {split: len(rows) for split, rows in listing.splits.items()}


@pytest.mark.parametrize(
    ("first", "second", "splits"),
    [
        ("Train", "Val", {"train": 6, "val": 6}),
        ("Training", "Testing", {"train": 6, "test": 6}),
        ("train", "dev", {"train": 6, "dev": 6}),
        ("train", "eval", {"train": 6, "eval": 6}),
        ("seg_train/seg_train", "seg_test/seg_test", {"train": 6, "test": 6}),
    ],
)
def test_usual_names_of_splits(tmp_path, first, second, splits):
    listing = list_images(
        tree(tmp_path, *(f"{s}/{c}" for s in (first, second) for c in ("a", "b")))
    )
    assert listing.class_names == ("a", "b")
    assert sizes(listing) == splits


def test_a_folder_of_unlabelled_images_is_left_out_and_said(tmp_path, caplog):
    tree(tmp_path, "train/a", "train/b", "val/a", "val/b", "unlabeled")
    with caplog.at_level(logging.INFO):
        listing = list_images(tmp_path)
    assert sizes(listing) == {"train": 6, "val": 6}
    assert f"{tmp_path}/unlabeled is left out" in caplog.text
    assert "these folders are read as splits: train (train), val (val)" in caplog.text


def test_train_beside_other_names_is_a_class(tmp_path):
    assert list_images(tree(tmp_path, "bus", "train", "car")).class_names == ("bus", "car", "train")


def test_two_folders_of_one_split_are_an_error(tmp_path):
    with pytest.raises(
        DataError, match="folders Train and training, which are both the split train"
    ):
        list_images(tree(tmp_path, "Train/a", "training/a", "val/a"))


def test_shards_with_labels(tmp_path):
    for n in range(2):
        folder = shard(
            tmp_path / "cls" / f"{n}.tar",
            **{
                f"{n}{i}{s}": c
                for i in range(4)
                for s, c in ((".png", IMAGE), (".cls", b"%d" % (i % 2)))
            },
        )
    listing = list_images(folder)
    assert listing.class_names == ("0", "1")
    assert sizes(listing) == {"train": 8}
    assert listing.num_skipped == 0
    folder = shard(tmp_path / "json" / "0.tar", **{"a.png": IMAGE, "a.json": b'{"label": "cat"}'})
    assert list_images(folder).class_names == ("cat",)
    folder = shard(tmp_path / "half" / "0.tar", **{"a.png": IMAGE, "a.cls": b"0", "b.png": IMAGE})
    with pytest.raises(DataError, match=r"has b.png without a label; expected b.cls or .json"):
        list_images(folder)


def test_keys_with_dots_have_captions(tmp_path):
    names = ("a", "img_22.05", "x.v2")
    members = {f"{k}{s}": c for k in names for s, c in ((".png", IMAGE), (".txt", b"a cat"))}
    listing = list_captioned(shard(tmp_path / "0.tar", **members), ("caption",)).images
    assert sorted(listing.names) == [f"0.tar/{k}.png" for k in names]
    members |= {"a.mask.png": IMAGE}
    folder = shard(tmp_path / "masks" / "0.tar", **members)
    assert list_captioned(folder, ("caption",)).images.num_skipped == 1


def test_other_suffixes_are_read_or_counted(tmp_path, caplog):
    tree(tmp_path, "a")
    for suffix in ("jfif", "jpe", "avif", "JPG", "heic"):
        (tmp_path / "a" / f"x.{suffix}").write_bytes(IMAGE)
    with caplog.at_level(logging.INFO):
        listing = list_images(tmp_path)
    assert (len(listing.names), listing.num_skipped) == (7, 1)
    assert "1 files that are not images are left out" in caplog.text


def test_two_forms_of_a_name_are_one_class(tmp_path):
    nfc, nfd = (unicodedata.normalize(form, "crème") for form in ("NFC", "NFD"))
    assert list_images(tree(tmp_path, f"train/{nfc}", f"val/{nfd}")).class_names == (nfc,)


@pytest.mark.parametrize("separator", [",", "\t"])
def test_spaces_and_tabs_in_a_table(tmp_path, separator):
    tree(tmp_path, ".")
    rows = (("path", "label"), ("0.png", "cat"), ("1.png", " cat"), ("2.png", "dog "))
    (tmp_path / "l.csv").write_text("".join(separator.join(row) + "\n" for row in rows))
    assert list_images(tmp_path / "l.csv").class_names == ("cat", "dog")
