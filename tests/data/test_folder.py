import errno
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data.files import open_folder, write_list
from image_files import CLASSES, encoded, number_of, write_folder, write_tars

from vit_jax.data.check import check_split
from vit_jax.data.sources.folder import FolderSource
from vit_jax.data.sources.listing import list_images, spread_evenly
from vit_jax.errors import DataError


@pytest.fixture
def photos(tmp_path):
    return write_folder(tmp_path / "photos")


def numbers(source) -> list[int]:
    return [number_of(example.image) for example in source.read(range(len(source)))]


def test_a_folder_of_class_folders_is_a_source(photos):
    source = open_folder(photos)
    assert source.class_names == ("ant", "bee", "cat")
    assert source.name == "photos train"
    assert sorted(numbers(source)) == list(range(20))
    for example in source.read(range(20)):
        label = np.searchsorted([10, 16, 20], number_of(example.image), side="right")
        assert example.label == label
        assert example.id == f"{source.class_names[label]}/{number_of(example.image):03d}.png"
    assert source.labels().tolist() == [source[i].label for i in range(20)]


def test_class_names_are_in_the_order_of_their_bytes(tmp_path):
    write_folder(tmp_path / "p", {"b": 1, "B": 1, "10": 1, "9": 1, "ä": 1})
    assert open_folder(tmp_path / "p").class_names == ("10", "9", "B", "b", "ä")


def test_every_slice_has_its_share_of_every_class(photos):
    for start in range(0, 100, 10):
        part = open_folder(photos, f"train[{start}%:{start + 10}%]")
        # 10, 6 and 4 examples in ten slices of 2.
        counts = np.bincount(part.labels(), minlength=3)
        assert counts[0] == 1
        assert counts[1] + counts[2] == 1
    halves = [open_folder(photos, s) for s in ("train[:50%]", "train[50%:]")]
    assert [np.bincount(h.labels()).tolist() for h in halves] == [[5, 3, 2]] * 2
    assert sorted(numbers(halves[0]) + numbers(halves[1])) == list(range(20))


def test_the_order_equals_the_golden_one_and_depends_only_on_file_names(photos, tmp_path):
    # A change here changes the data of every run.
    source = open_folder(photos)
    assert numbers(source)[:10] == [9, 15, 18, 6, 1, 11, 7, 16, 10, 2]
    assert source.fingerprint == "0d90da311219122d"
    other = tmp_path / "elsewhere" / "copy"
    for path in sorted(photos.rglob("*.png"), reverse=True):
        (other / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, other / path.parent.name / path.name)
    copy = open_folder(other)
    assert numbers(copy) == numbers(source)
    assert copy.fingerprint == source.fingerprint


def test_spread_evenly_by_hand():
    # Places: class 0 at 1/4, 3/4; class 1 at 1/6, 3/6, 5/6; keys decide the rank.
    labels = np.array([0, 0, 1, 1, 1])
    keys = np.array([9, 3, 5, 1, 7], np.uint64)
    assert spread_evenly(labels, keys).tolist() == [3, 1, 2, 0, 4]


def test_fingerprint_differs_by_split_file_name_size_and_class(photos):
    prints = {open_folder(photos, s).fingerprint for s in ("train", "train[:50%]", "train[50%:]")}
    assert len(prints) == 3
    before = open_folder(photos).fingerprint
    path = photos / "ant" / "000.png"
    path.write_bytes(path.read_bytes() + b"x")
    grown = open_folder(photos).fingerprint
    path.rename(photos / "ant" / "zzz.png")
    renamed = open_folder(photos).fingerprint
    (photos / "cat").rename(photos / "dog")
    assert len({before, grown, renamed, open_folder(photos).fingerprint}) == 4


def test_train_and_val_folders_are_splits_with_the_classes_of_both(tmp_path):
    write_folder(tmp_path / "train", {"ant": 3, "cat": 2})
    with pytest.raises(DataError) as caught:
        open_folder(tmp_path, "val")
    assert caught.value.fix.endswith(f"or make the folder {tmp_path / 'val'}")
    write_folder(tmp_path / "val", {"ant": 1, "bee": 1}, start=10)
    (tmp_path / "val" / "cat").mkdir()  # A class may have no image here.
    train, val = open_folder(tmp_path), open_folder(tmp_path, "val")
    assert train.class_names == val.class_names == ("ant", "bee", "cat")
    assert sorted(numbers(train)) == [0, 1, 2, 3, 4]
    assert sorted(numbers(val)) == [10, 11]
    assert sorted(val.labels()) == [0, 1]
    assert len(open_folder(tmp_path, "train+val")) == 7


def test_images_may_lie_deeper_and_other_files_are_skipped_and_counted(photos, caplog):
    (photos / "ant" / "more" / "of").mkdir(parents=True)
    (photos / "ant" / "more" / "of" / "x.JPEG").write_bytes(encoded(50, kind="JPEG"))
    names = ("x.jfif", "x.jpe", "x.avif", "x.JPG", "x.heic", "notes.txt", "Thumbs.db", ".DS_Store")
    for name in names:
        (photos / "ant" / name).write_bytes(encoded(50))
    (photos / "readme.md").write_text("")
    with caplog.at_level(logging.INFO):
        listing = list_images(photos)
    assert "ant/more/of/x.JPEG" in listing.names
    assert len(listing.names) == 20 + 5
    assert listing.num_skipped == 3  # heic, notes.txt and readme.md
    names = "ant/Thumbs.db, ant/notes.txt, ant/x.heic"
    assert f"other files that are left out: 3 ({names})" in caplog.text


def test_a_folder_of_tar_files_is_read_like_the_folders_that_they_hold(photos, tmp_path):
    packed = open_folder(write_tars(tmp_path / "tars", photos))
    plain = open_folder(photos)
    assert packed.class_names == plain.class_names
    by_name = {e.id: e for e in plain.read(range(20))}
    for example in packed.read(range(20)):
        twin = by_name[example.id.replace(".tar", "")]
        assert (example.image, example.label) == (twin.image, twin.label)


@pytest.mark.parametrize("kind", ["itself", "nowhere", "folder above", "pipe"])
def test_a_broken_link_is_one_bad_image_that_can_be_skipped(photos, kind):
    """A link to itself ended `data check`, and on_bad_example=skip did not skip it."""
    path = photos / "ant" / "broken.png"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"itself": path, "nowhere": photos / "none", "folder above": photos}[kind])
    listing = list_images(photos)
    assert len(listing.names) == 21
    with pytest.raises(DataError, match="broken links"):
        FolderSource(listing, "train", "photos")
    report = check_split(FolderSource(listing, "train", "photos", "keep"), "train")
    (bad,) = report.bad
    assert "ant/broken.png is a link that leads nowhere or in a circle" in bad[1]
    assert sum(report.per_class) == 20


def test_links_to_images_and_other_folders_are_followed(photos):
    (photos / "bee" / "same").symlink_to(photos / "ant")
    (photos / "bee" / "one.png").symlink_to(photos / "cat" / "016.png")
    assert len(list_images(photos).names) == 20 + CLASSES["ant"] + 1


def test_an_unreadable_folder_is_named(photos, monkeypatch):
    scan = os.scandir

    def refuse(path):
        if Path(path).name == "bee":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"bee: Permission denied; expected readable folders"):
        list_images(photos)


def test_a_file_that_disappeared_is_named(photos):
    source = open_folder(photos)
    gone = source[4].id
    (photos / gone).unlink()
    with pytest.raises(DataError, match=f"{gone}: No such file"):
        source.read([4])


def test_names_classes_and_order_are_the_same_in_every_locale(tmp_path):
    """In an ASCII locale Python reads the bytes of names as surrogates."""
    write_folder(tmp_path / "photos", {"crème": 6, "hund": 5})
    lines = [f"photos/{p.parent.name}/{p.name},{p.parent.name}" for p in tmp_path.rglob("*.png")]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *lines]), encoding="utf-8")
    code = (
        "import sys, pathlib, numpy as np; from vit_jax.data.sources.listing import list_images\n"
        "for name in sys.argv[1:]:\n"
        "    found = list_images(pathlib.Path(name)); rows = found.splits['train']\n"
        "    assert all(map(found.read, range(11)))\n"
        "    print(ascii(found.class_names), found.identity(rows))"
    )
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    names = [str(tmp_path / name) for name in ("photos", "list.csv")]
    done = subprocess.run(
        [sys.executable, "-c", code, *names],
        capture_output=True,
        encoding="utf-8",
        env=os.environ | ascii_locale,
    )
    expected = [
        f"{found.class_names!a} {found.identity(found.splits['train'])}"
        for found in map(list_images, map(Path, names))
    ]
    assert done.stdout.splitlines() == expected, done.stderr


def test_a_csv_file_may_have_splits_other_columns_and_absolute_paths(photos, tmp_path):
    rows = [f"{photos}/ant/000.png,a,x,train", "photos/bee/010.png,b,x,test"]
    path = write_list(tmp_path, "\ufeffpath,label,note,split\n" + "\n".join(rows))
    assert numbers(open_folder(path)) == [0]
    assert numbers(open_folder(path, "test")) == [10]
    assert open_folder(path, "test").labels().tolist() == [1]


def test_labels_that_are_integers_are_sorted_as_numbers(photos, tmp_path):
    rows = [f"photos/ant/00{i}.png,{label}" for i, label in enumerate((10, 9, 1))]
    source = open_folder(write_list(tmp_path, "path,label\n" + "\n".join(rows)))
    assert source.class_names == ("1", "9", "10")
    assert {number_of(e.image): e.label for e in source.read([0, 1, 2])} == {0: 2, 1: 1, 2: 0}
