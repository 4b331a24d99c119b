"""Layouts of folders and shards that people have, beyond one folder for each class."""

import io
import logging
import re
import tarfile
import unicodedata

import numpy as np
import pytest
from data.files import write_tar
from images import encode

from vit_jax.data.sources.captioned import list_captioned
from vit_jax.data.sources.folder import FolderSource
from vit_jax.data.sources.image_files import UNREADABLE
from vit_jax.data.sources.listing import list_images
from vit_jax.errors import DataError

IMAGE = encode(np.zeros((8, 8, 3), np.uint8))


def tree(root, *places):
    for place in places:
        for i in range(3):
            (root / place).mkdir(parents=True, exist_ok=True)
            (root / place / f"{i}.png").write_bytes(IMAGE)
    return root


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
        ("training_set", "test_set", {"train": 6, "test": 6}),
        ("train2017", "val2017", {"train": 6, "val": 6}),
        ("01_Train ", "02-validate", {"train": 6, "validation": 6}),
        ("train_images", "tests", {"train": 6, "test": 6}),
    ],
)
def test_usual_names_of_splits(tmp_path, first, second, splits):
    listing = list_images(
        tree(tmp_path, *(f"{s}/{c}" for s in (first, second) for c in ("a", "b")))
    )
    assert listing.class_names == ("a", "b")
    assert sizes(listing) == splits


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (
            ("data/train/a", "data/train/b", "data/val/a"),
            "data holds the folders train, val, which",
        ),
        (("part1/a", "part1/b", "part2/a", "part2/b"), "all of them hold the folders a, b; they"),
        ([f"fold{i}/{c}" for i in range(9) for c in "ab"], "fold4 and 4 more; all of them hold"),
        (
            [f"{s}/{d}/{c}" for s in ("train", "val") for d in "pq" for c in "ab"],
            "train/p, train/q; all of",
        ),
        ([f"{d}/images/{c}/x" for d in "pqr" for c in "ab"], "p, q, r; all of them hold"),
        (("train/p/a", "train/p/b", "train/q/A", "train/q/B", "val/p/a"), "train/q; all of them"),
        (
            ("train/f0/a", "train/f0/b", "train/f1/a", "train/f1/b", "val/a", "val/b"),
            "f0, train/f1",
        ),
        (
            ("train/images/a", "train/images/b", "val/images/a"),
            "has train/images with the folders a",
        ),
        (("art/a", "art/b", "photo/a", "photo/b", "docs"), "art, photo; all of them hold"),
        (("source/a", "source/b", "target/a", "target/b", "unlabeled_target", "x"), "source, targ"),
        (("tr/a", "tr/b", "te"), "has tr with the folders a, b, which look like"),
        (("va/a", "te/a", "te/b"), "has te with the folders a, b, which look like"),
        (
            ("train/a", "train/b", "val/a", "val/img0", "val/img1"),
            "val of .* none of train: img0, ",
        ),
        (("train/p/a", "train/p/b", "train/q/A", "train/q/B"), "train/q; all of them hold"),
        (("cat/train", "cat/val", "dog/train", "dog/val"), "cat, dog; all of them hold"),
        (("train/a", "train/b", "unlabeled"), "has train with the folders a, b, which look like"),
        (("train.tar", "val.tar"), "tar files of train, val, which look like splits"),
        (("set-train-0.tar", "set-train-1.tar", "set-val-0.tar"), "which look like splits"),
        (
            ("cat_train", "cat_test", "dogTrain", "dogTest"),
            "folders or tar files of test, train, w",
        ),
        (
            ("train/a", "train/b", "train/val/a", "train/val/b"),
            "has train/val with the folders a, b",
        ),
        (("a", "B", "augmented/A", "augmented/b"), "has augmented with the folders a, b, which"),
        (
            ("pics/HAM10000_images_part_1", "pics/x", "HAM_part_1", "HAM_part_2"),
            "HAM_part_2, which",
        ),
        (
            ("images_001/images", "images_002/images"),
            "images_001, images_002, which look like parts",
        ),
        (("fold1", "fold2", "fold3", "docs"), "fold1, fold2, fold3, which look like parts"),
        (("train/Set A", "train/Set B", "val/Set A"), "the folders Set A, Set B, which look like"),
        (("trainPart1", "trainPart2"), "trainPart1, trainPart2, which look like parts"),
        (
            ("bounding_box_train", "bounding_box_test", "query", "gt_bbox"),
            "of query, test, train, w",
        ),
        (("train", "query", "gallery"), "tar files of gallery, query, train, which look like"),
        (
            ("s/p1/0", "s/p1/1", "s/p2/0", "t/p3/0", "t/p4/1"),
            "s, t; all of them hold the folders 0,",
        ),
        (("n/a/1/x", "n/b/1/y", "m/c/1/x", "m/d/1/y"), "m, n; all of them hold the folders x, y"),
        (("old/a", "old/b", "new/a_aug", "new/b_aug"), "new, old; all of them hold the folders a,"),
        (("part_1.tar", "part_2.tar"), "has the tar files part_1, part_2, which look like parts"),
        (("images", "masks"), "images beside masks, which look like images and masks"),
        (("JPEGImages", "SegmentationClass"), "JPEGImages beside SegmentationClass, which"),
        (("train/imgs", "train/annotations/trimaps"), "imgs beside annotations, which look like"),
        (("Train/a", "training/a", "val/a"), "Train and training, which are both the split train"),
    ],
)
def test_splits_that_would_become_classes_or_come_twice_are_refused(tmp_path, places, words):
    for place in places:
        if place.endswith(".tar"):
            write_tar(tmp_path / place, {"0.png": IMAGE})
        else:
            tree(tmp_path, place)
    with pytest.raises(DataError, match=words):
        list_images(tmp_path)


ORDINARY = (
    ("n01440764", "n01443537"),
    tuple(map(str, range(10))),
    ("cat 1", "cat 2"),
    ("001.Black_footed_Albatross", "002.Laysan_Albatross"),
    ("001", "002", "2019"),
    ("car", "gallery", "train"),
    ("bus", "test_tube", "train"),
    ("art_gallery", "train_interior", "train_station"),
    ("mask", "no_mask"),
    ("photos", "sunset1", "sunset2"),
)


def test_domains_in_tar_files_are_refused_and_nearly_equal_folders_are_said(tmp_path, caplog):
    for domain in ("art", "photo"):
        members = {f"./{name}/0.png": IMAGE for name in ("cat", "dog")}
        write_tar(tmp_path / "tars" / f"{domain}.tar", members)
    with pytest.raises(DataError, match="art, photo; all of them hold the folders cat, dog"):
        list_images(tmp_path / "tars")
    list_images(tree(tmp_path / "sites", "s0/a", "s0/b", "s1/a", "s1/b", "s2/b"))
    assert "are inside: s0, s1, s2; if those are the classes, or these splits" in caplog.text
    list_images(tree(tmp_path / "stray", "p/a", "p/b", "q/a", "q/b", "q"))
    assert "are inside: p, q; if those are the classes, or these splits" in caplog.text
    list_images(tree(tmp_path / "few", "cat/a", "cat/b", "dog/a", "dog/b", *"pqr"))
    assert "are inside: cat, dog; if those are the classes, or these splits" in caplog.text
    list_images(tree(tmp_path / "flat", "labelled/a", "labelled/b", "unlabelled"))
    assert "read as classes, although the folders a, b are inside: labelled; if" in caplog.text
    list_images(tree(tmp_path / "open", "train/a", "train/b", "val/a", "val/c"))
    assert "the split val has classes that train lacks: c" in caplog.text
    list_images(tree(tmp_path / "one", "photos/cat", "photos/dog"))
    assert "if cat, dog are the classes, set data_dir to that folder" in caplog.text
    list_images(tree(tmp_path / "years", "2019", "2020"))
    assert "read as classes: 2019, 2020; are these years?" in caplog.text
    list_images(tree(tmp_path / "index", "a/abbey", "a/airport", "b/bar", "c/cafe", "c/court"))
    assert "folders abbey, airport, bar, cafe, court are inside: a, b, c; if those" in caplog.text
    caplog.clear()
    for i, classes in enumerate(ORDINARY):
        assert list_images(tree(tmp_path / f"ordinary{i}", *classes)).class_names == classes
    list_images(tree(tmp_path / "kinds", "cat/tabby", "cat/persian", "dog/poodle", "dog/other"))
    list_images(tree(tmp_path / "ages", "cat/cat_old", "cat/cat_new", "dog/dog_old", "dog/dog_x"))
    list_images(tree(tmp_path / "films", "run/1", "run/2", "jump/10", "jump/20"))
    list_images(tree(tmp_path / "states", "va/x", "va/y", "tx", "md", "ny"))
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    with caplog.at_level(logging.INFO):
        list_images(tmp_path / "kinds")
    assert "the folders other, persian, poodle, tabby are inside: cat, dog; if" in caplog.text


UNLABELLED = [
    (("val/images", "test/images"), {"train": 6}, "split val is left out: its 3 images are in im"),
    (("val", "test/0"), {"train": 6}, "split val is left out: its 3 images are in no class"),
    (("val/a", "val/b", "test/unknown"), {"train": 6, "val": 6}, "split test is left out: its 3"),
    (("val/val", "test/b"), {"train": 6, "test": 3}, "split val is left out: its 3 images are in "),
]


@pytest.mark.parametrize(("places", "splits", "words"), UNLABELLED)
def test_splits_without_the_training_classes_are_left_out_and_said(
    tmp_path, caplog, places, splits, words
):
    tree(tmp_path, "train/a/images", "train/b/images", *places)
    listing = list_images(tmp_path)
    assert (listing.class_names, sizes(listing)) == (("a", "b"), splits)
    assert listing.num_skipped == 3 * (len(places) + 2) - sum(splits.values())
    assert words in caplog.text
    left_out = words.split()[1]
    with pytest.raises(DataError, match=f"split '{left_out}' of {tmp_path} is left out: its 3"):
        FolderSource(listing, f"{left_out}[:50%]", "photos")


def test_splits_that_are_empty_or_have_other_capitals_are_said(tmp_path, caplog):
    listing = list_images(tree(tmp_path / "capitals", "train/cat", "train/dog", "val/Cat"))
    assert (listing.class_names, sizes(listing)) == (("cat", "dog"), {"train": 6})
    assert "in Cat, which are no class folders of train (capitals count)" in caplog.text
    root = tree(tmp_path / "empty", "train/cat", "train/dog")
    (root / "val").mkdir()
    (root / "val" / "labels.txt").write_text("0.png cat")
    (root / "test" / "cat").mkdir(parents=True)
    listing = list_images(root)
    for split in ("val", "test"):
        assert f"the split {split} is left out: it holds no image that is read" in caplog.text
        with pytest.raises(DataError, match=f"split '{split}' of {root} is left out: it holds no"):
            FolderSource(listing, split, "photos")


def test_a_train_folder_without_classes_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no folders in .*train"):
        list_images(tree(tmp_path, "train", "val/a"))


def test_formats_that_are_not_read_are_named_and_counted(tmp_path, caplog):
    tree(tmp_path, "a", "b")
    for name in (
        "a/1.HEIC",
        "a/2.heif",
        "b/3.jxl",
        "b/4.nii.gz",
        "b/notes.txt",
        "5.dcm",
        "a/6.mpo",
    ):
        (tmp_path / name).write_bytes(b"")
    with caplog.at_level(logging.INFO):
        assert list_images(tmp_path).num_skipped == 7
    assert "left out: 7 (a/1.HEIC, a/2.heif, a/6.mpo and 4 more)" in caplog.text
    assert (
        "that are not read: 2 HEIC, 1 DICOM, 1 JPEG XL, 1 MPO, 1 NIfTI; convert them" in caplog.text
    )
    for path in tmp_path.glob("a/*.png"):
        path.unlink()
    with pytest.raises(DataError, match="a holds no image; its images are of formats that are not"):
        list_images(tmp_path)
    members = {"1.heic": b"", "1.txt": b"a cat"}
    with pytest.raises(DataError, match="not read: 1 HEIC; expected KEY"):
        captioned(write_tar(tmp_path / "tars" / "0.tar", members))


def test_links_in_tar_files_are_followed(tmp_path, caplog):
    """Names and targets: a hard link, chains, a link through a linked folder, circles."""
    links = {
        "a/hard.png": "./a/0.png",
        "a/soft.png": "0.png",
        "a/chain.png": "soft.png",
        "b": "a",
        "c/up.png": "../b/hard.png",
        "a/loop.png": "loop.png",
        "a/gone.png": "../../0.png",
        "a/above": "..",
        "notes": "/etc/hosts",
    }
    write_tar(tmp_path / "x.tar", {"a/0.png": IMAGE})
    with tarfile.open(tmp_path / "x.tar", "a") as archive:
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type = tarfile.LNKTYPE if "hard" in name else tarfile.SYMTYPE
            info.linkname = target
            archive.addfile(info)
    listing = list_images(tmp_path)
    read = {name.removeprefix("x.tar/") for name, size in zip(listing.names, listing.sizes,
                                                             strict=True) if size > 0}  # fmt: skip
    assert read == {"a/0.png", "a/hard.png", "a/soft.png", "a/chain.png", "b/0.png", "c/up.png"}
    assert all(listing.read(int(row)) == IMAGE for row in np.flatnonzero(listing.sizes > 0))
    assert sorted(np.array(listing.names)[listing.sizes == UNREADABLE]) == [
        "x.tar/a/gone.png",
        "x.tar/a/loop.png",
    ]
    assert listing.num_skipped == 2
    with pytest.raises(DataError, match="2 broken links"):
        FolderSource(listing, "train", "x")


SYSTEM = (
    "__MACOSX/car", "@eaDir", "Car/@eaDir/0.png", ".ipynb_checkpoints", "__pycache__", "Thumbs",
    "lost+found", "$RECYCLE.BIN", "System Volume Information",
)  # fmt: skip


def test_what_may_be_a_mistake_is_said(tmp_path, caplog):
    tree(tmp_path / "images", "Car", "car", *SYSTEM).joinpath("stray.png").write_bytes(IMAGE)
    listing = list_images(tmp_path / "images")
    assert (listing.class_names, listing.num_skipped) == (("Car", "car"), 1)
    for i in range(2):
        write_tar(tmp_path / "shards" / f"x-{i}.tar", {"0.png": IMAGE, "0.txt": b"a cat"})
    list_images(tmp_path / "shards")
    for name in ("test_list.txt", "validation.csv", "training.txt"):
        (tmp_path / "images" / name).write_text("")
    list_images(tmp_path / "images")
    tree(tmp_path / "train_only", "train/a", "train/b").joinpath("val.txt").write_text("")
    list_images(tmp_path / "train_only")
    assert "train; val.txt may list images that are held out" in caplog.text
    assert "train; test_list.txt, validation.csv may list images that are held out" in caplog.text
    (tmp_path / "images" / "bird.zip").write_bytes(b"PK")
    list_images(tmp_path / "images")
    others = ("such as stray.png", "only by capitals", "each tar file is one class")
    for words in (*others, "archives are not read: bird.zip"):
        assert words in caplog.text


def test_masks_beside_their_images_are_said(tmp_path, caplog):
    """Breast Ultrasound Images has benign (1).png and benign (1)_mask.png in one folder."""
    tree(tmp_path, "benign", "normal")
    (tmp_path / "normal" / "person_mask.png").write_bytes(IMAGE)
    list_images(tmp_path)
    assert not caplog.records
    for name in ("0_mask.png", "0_mask_1.png", "1-GT.png"):
        (tmp_path / "benign" / name).write_bytes(IMAGE)
    list_images(tmp_path)
    assert "small copies of others: benign/0_mask, benign/0_mask_1, benign/1-GT; if" in caplog.text


@pytest.mark.parametrize("name", ["masks", "Thumbnails", "gt_2"])
def test_masks_and_small_copies_in_folders_below_their_images_are_said(tmp_path, caplog, name):
    tree(tmp_path, "a", "b", f"a/{name}")
    list_images(tmp_path)
    assert f"small copies of others: a/{name}/0, a/{name}/1, a/{name}/2; if" in caplog.text
    caplog.clear()
    for image in (tmp_path / "a" / name).iterdir():
        image.rename(image.with_stem(f"other-{image.stem}"))
    list_images(tmp_path)
    assert "copies" not in caplog.text


def test_labels_that_are_alike_or_lists_and_images_that_are_listed_twice_are_said(tmp_path, caplog):
    tree(tmp_path, "x")
    labels = "hot dog", "hot_dog", "hot-dog", "cat", "dog", "cat|dog", "hot", "cat, bird"
    for label in labels:
        (tmp_path / "x" / f"{label}.png").write_bytes(IMAGE)
    rows = [f'"x/{label}.png","{label}"' for label in labels]
    again = rows[3].replace("x/", "x/../x/./")
    (tmp_path / "it.csv").write_text("\n".join(["path,label", *rows, again]))
    listing = list_images(tmp_path / "it.csv")
    assert len(listing.class_names) == len(labels)
    assert listing.names.count("x/cat.png") == 2
    assert (
        "'hot dog' = 'hot-dog' = 'hot_dog'; classes that may be several labels: cat|dog, hot"
        in (caplog.text)
    )
    assert "bird" not in caplog.text
    assert "it.csv: 1 lines repeat an image" in caplog.text


def test_lists_of_labels_are_said(tmp_path, caplog):
    tree(tmp_path, "x")
    rows = ['x/0.png,"[1, 2]"', "x/1.png,[3]"]
    (tmp_path / "it.csv").write_text("\n".join(["path,label", *rows]))
    assert list_images(tmp_path / "it.csv").class_names == ("[1, 2]", "[3]")
    assert "classes that may be several labels: [1, 2], [3]" in caplog.text


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("haze primary", "clear primary", "clear primary road"), "clear primary"),
        (("147 616 813", "3 103"), "147 616 813, 3 103"),
        (("scab|rust", "rust;spot"), "rust;spot, scab|rust"),
        (("water bottle", *(f"a {i}" for i in range(9)), "plastic water bottle"), ""),
        (("black bear", "brown bear", "tench, Tinca tinca"), ""),
    ],
)
def test_combinations_of_tags_are_said(tmp_path, caplog, labels, said):
    tree(tmp_path, "x")
    rows = [f'x/{i}.png,"{label}"' for i, label in enumerate(labels)]
    for i in range(len(labels)):
        (tmp_path / "x" / f"{i}.png").write_bytes(IMAGE)
    (tmp_path / "it.csv").write_text("\n".join(["path,label", *rows]))
    list_images(tmp_path / "it.csv")
    expected = [f"classes that may be several labels: {said}"] if said else []
    assert re.findall("classes that may be several labels: .*", caplog.text) == expected


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("train_1", "train_2", "test_1"), "test and train"),  # RAF-DB
        (("Training_1", "PublicTest_2", "PrivateTest_3"), "test and train"),  # FER2013
        (("train_1", "bus_1"), ""),
        (("val_1", "val_2"), ""),
    ],
)
def test_splits_in_the_names_of_files_are_said(tmp_path, caplog, names, said):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / f"{name}.png").write_bytes(IMAGE)
    assert len(list_images(tmp_path).splits["train"]) == 2 * len(names)
    words = f"the names of the files say {said}:"
    assert (words in caplog.text) if said else ("names of the files" not in caplog.text)


@pytest.mark.parametrize(("count", "said"), [(5, False), (12, True)])
def test_labels_that_may_be_measurements_are_said(tmp_path, caplog, count, said):
    tree(tmp_path, "x")
    for number in range(count):
        (tmp_path / "x" / f"{number}.png").write_bytes(IMAGE)
    rows = [f"x/{number}.png,{number + 0.5}" for number in range(count)]
    (tmp_path / "it.csv").write_text("\n".join(["path,label", *rows]))
    list_images(tmp_path / "it.csv")
    words = f"{count} classes that may be measurements, such as '0.5': each number is a class"
    assert (words in caplog.text) == said


def captioned(path):
    return list_captioned(path, ("caption",)).images


@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_a_table_may_have_capitals_spaces_tabs_and_other_names_of_splits(tmp_path, separator):
    tree(tmp_path, "x")
    rows = [
        ("Path", "Label", "Split", "Caption"),
        ("x/0.png", "cat", "Training", "a cat"),
        ("x/1.png", " cat", "validation", "a cat"),
        ("x/2.png", "dog ", "test_set", "a dog"),
    ]
    for name in ("it.csv", "it.tsv") if separator == "\t" else ("it.csv",):
        (tmp_path / name).write_text("\n".join(separator.join(row) for row in rows))
        listing = list_images(tmp_path / name)
        assert listing.class_names == ("cat", "dog")
        for found in (listing, captioned(tmp_path / name)):
            assert sizes(found) == {"train": 1, "validation": 1, "test": 1}


HELD_OUT = [
    ("is_valid", ("False", "False", "True"), {"train": 2, "val": 1}),
    ("isValid", ("0.0", "1.0", "0.0"), {"train": 2, "val": 1}),
    ("is_test", ("no", "yes", "no"), {"train": 2, "test": 1}),
    ("is_train", ("1", "0", "1"), {"train": 2, "val": 1}),
    ("is_training_image", ("1", "1", "0"), {"train": 2, "val": 1}),
    ("is_valid,is_test", ("0,0", "1,0", "0,1"), {"train": 1, "val": 1, "test": 1}),
    ("is_train,is_test", ("1,0", "0,0", "0,1"), {"train": 1, "val": 1, "test": 1}),
    ("phase,is_train", ("train,1", "val,0", "train,1"), {"train": 2, "val": 1}),
    ("phase", ("Train", "val", "train"), {"train": 2, "val": 1}),
    ("Usage", ("Training", "PublicTest", "PrivateTest"), {"train": 1, "val": 1, "test": 1}),
    ("group", ("train", "holdout", "train"), {"train": 2, "test": 1}),
    ("is_in_test", ("0", "1", "0"), {"train": 2, "test": 1}),
    ("belongs_to_test", ("no", "yes", "no"), {"train": 2, "test": 1}),
    ("use_in_training", ("1", "0", "1"), {"train": 2, "val": 1}),
    ("UseForTraining", ("1", "0", "1"), {"train": 2, "val": 1}),
    ("tvt", ("tr", "va", "te"), {"train": 1, "val": 1, "test": 1}),
    ("is_tr", ("1", "0", "1"), {"train": 2, "val": 1}),
    ("isTe", ("1", "0", "0"), {"train": 2, "test": 1}),
    ("is_unseen", ("False", "True", "False"), {"train": 2, "test": 1}),
    ("exclude", ("0", "0", "1"), {"train": 2, "excluded": 1}),
    ("is_excluded", ("no", "no", "no"), {"train": 3}),
    ("purpose", ("training", "test", "training"), {"train": 2, "test": 1}),
    ("cohort", ("train", "val", "train"), {"train": 2, "val": 1}),
    ("TR,TE", ("2,30", "3,40", "2,30"), {"train": 3}),
    ("ML_USE", ("TRAINING", "VALIDATION", "TEST"), {"train": 1, "validation": 1, "test": 1}),
    ("my_fold", ("train", "val", "train"), {"train": 2, "val": 1}),
    ("phase,is_train", ("train,1", "val,0", "test,0"), {"train": 1, "val": 1, "test": 1}),
    ("split,is_valid", ("train,0", "dev,1", "test,0"), {"train": 1, "dev": 1, "test": 1}),
    ("role", ("train", "val", "test"), {"train": 1, "val": 1, "test": 1}),
    ("split,test_result", ("train,+", "val,-", "train,-"), {"train": 2, "val": 1}),
    ("lang,lr,training_time_s,test_score", ("tr,te,0.5,1e-1", "en,,1,2", "de,x,2,3"), {"train": 3}),
    ("data_set,photoSet,contest", ("0,0,a", "1,1,b", "0,1,c"), {"train": 3}),
    ("device,folder,latest,interval", ("0,0,0,0", "1,1,1,1", "0,1,0,1"), {"train": 3}),
    ("fold,split", ("0,train", "1,mine", "2,train"), {"train": 2, "mine": 1}),
    ("note,valuation,vehicle", ("val,1,train", "x,0,car", "y,1,bus"), {"train": 3}),
]


@pytest.mark.parametrize(("columns", "cells", "splits"), HELD_OUT)
def test_columns_that_say_which_images_are_held_out(tmp_path, columns, cells, splits, caplog):
    tree(tmp_path, "x")
    for column, open_it in (("label", list_images), ("caption", captioned)):
        lines = [f"x/{i}.png,a,{cell}" for i, cell in enumerate(cells)]
        (tmp_path / "it.csv").write_text("\n".join([f"path,{column},{columns}", *lines]))
        with caplog.at_level(logging.INFO):
            assert sizes(open_it(tmp_path / "it.csv")) == splits
    if "note" in columns:
        assert "columns that are not read: note, valuation, vehicle" in caplog.text


def test_columns_of_many_texts_are_not_read_and_folders_named_like_splits_are_said(
    tmp_path, caplog
):
    for place in ("train/x", "test/y"):
        tree(tmp_path, place)
    names = [f"{place}/{i}.png" for place in ("train/x", "test/y") for i in range(3)]
    lines = [f"{names[i % 6]},a,{i},http://x/{names[i % 6]}{i}" for i in range(11)]
    (tmp_path / "it.csv").write_text("\n".join(["path,label,test_id,", *lines]))
    with caplog.at_level(logging.INFO):
        assert sizes(list_images(tmp_path / "it.csv")) == {"train": 11}
    assert "columns that are not read: test_id, column 4" in caplog.text
    for name in ("path", "column 4"):
        assert f"train, but folders in the column {name} are named train, test" in caplog.text


@pytest.mark.parametrize(
    "column", ["role,train,query,gallery", "type,train,probe,test", "my_role,web_train,query,train"]
)
def test_columns_with_splits_of_retrieval_are_used_or_refused(tmp_path, column):
    name, *cells = column.split(",")
    for value, open_it in (("label", list_images), ("caption", captioned)):
        lines = [f"x/{i}.png,a,{cell}" for i, cell in enumerate(cells)]
        (tree(tmp_path, "x") / "it.csv").write_text("\n".join([f"path,{value},{name}", *lines]))
        with pytest.raises(DataError, match=f"has the column '{name}' with .* which may say which"):
            open_it(tmp_path / "it.csv")


@pytest.mark.parametrize(
    "column",
    [
        "exclude,,blurry,",
        "is_tr,1,2,1",
        "unseen,a,b,a",
    ],
)
def test_columns_that_may_hold_out_images_and_cannot_be_read_are_refused(tmp_path, column):
    name, *cells = column.split(",")
    lines = [f"x/{i}.png,a,{cell}" for i, cell in enumerate(cells)]
    (tree(tmp_path, "x") / "it.csv").write_text("\n".join([f"path,label,{name}", *lines]))
    with pytest.raises(DataError, match=f"has the column '{name}' with .* which may say which"):
        list_images(tmp_path / "it.csv")


def test_cohorts_that_name_no_split_are_not_read_and_exclude_wins_over_the_split(tmp_path):
    lines = ["path,label,cohort,split,exclude", "x/0.png,a,Mainz,train,0"]
    lines += ["x/1.png,a,Boston,train,1", "x/2.png,a,Mainz,val,0"]
    (tree(tmp_path, "x") / "it.csv").write_text("\n".join(lines))
    found = list_images(tmp_path / "it.csv")
    assert sizes(found) == {"train": 1, "excluded": 1, "val": 1}


def test_links_to_one_file_are_images_of_their_own(tmp_path):
    tree(tmp_path, "x")
    (tmp_path / "lists").mkdir()
    for name in ("p", "q"):
        (tmp_path / "x" / f"{name}.png").symlink_to(tmp_path / "x" / "0.png")
    lines = ["path,label", "../x/p.png,a", "../x/q.png,b"]
    (tmp_path / "lists" / "it.csv").write_text("\n".join(lines))
    assert sizes(list_images(tmp_path / "lists" / "it.csv")) == {"train": 2}


@pytest.mark.parametrize("caption", ["nan", "None", "['a', 'b']", '"[""a"", ""b""]"'])
def test_captions_that_are_missing_or_lists_are_refused(tmp_path, caption):
    tree(tmp_path, "x")
    lines = ["path,caption", "x/0.png,none of the cats [two]", f"x/1.png,{caption}"]
    (tmp_path / "it.csv").write_text("\n".join(lines).replace("['a', 'b']", "\"['a', 'b']\""))
    with pytest.raises(DataError, match=r"line 3 of .* no missing value and no list as text"):
        captioned(tmp_path / "it.csv")


def test_jsonl_has_labels_captions_and_splits(tmp_path):
    tree(tmp_path, "x")
    lines = [f'{{"path": "x/{i}.png", "label": {i}.0, "caption": "a cat", "is_valid": {v}}}'
             for i, v in enumerate(("true", "false", "false"))]  # fmt: skip
    (tmp_path / "it.jsonl").write_text("\n".join(lines))
    for open_it in (list_images, captioned):
        assert sizes(open_it(tmp_path / "it.jsonl")) == {"val": 1, "train": 2}
    assert list_images(tmp_path / "it.jsonl").class_names == ("0", "1", "2")


def test_a_key_that_comes_twice_in_jsonl_is_refused(tmp_path):
    tree(tmp_path, "x")
    lines = ['{"path": "x/0.png", "label": "a"}', '{"path": "x/1.png", "label": "a", "label": "b"}']
    (tmp_path / "it.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"line 2: the key 'label' comes twice in an object"):
        list_images(tmp_path / "it.jsonl")


def test_own_splits_that_differ_only_by_capitals_are_refused(tmp_path):
    tree(tmp_path, "x")
    lines = ["path,label,split", "x/0.png,a,train", "x/1.png,a,siteB", "x/2.png,a,SiteB"]
    (tmp_path / "it.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match="has the splits SiteB and siteB; expected names of splits"):
        list_images(tmp_path / "it.csv")


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (("1", "1.0", "01"), "'01' = '1' = '1.0'"),
        (("True", "true ", "nan"), "'True' = 'true'; classes that may be missing labels: 'nan'"),
        (("None", "2", "+2.0"), "'+2.0' = '2'; classes that may be missing labels: 'None'"),
        (("1", "2", "inf"), None),
        (("-1", "1", "1"), None),
        (("-1", "0", "1"), "classes that may be missing labels: '-1'"),
        (("?", "-", "Unknown"), "classes that may be missing labels: '-', '?', 'Unknown'"),
        (("1", "\uff11", "cat"), "'1' = '\uff11'"),
        (("cat", "\ufeffcat", "dog"), r"'cat' = '\ufeffcat'"),
        (("cat", "cat (2)", "dog"), "as a copy does: 'cat' = 'cat (2)'"),
        (("cat", "aug_cat", "dog"), "as a copy does: 'aug_cat' = 'cat'"),
        (("cat", "dog - Copy", "dog"), "as a copy does: 'dog' = 'dog - Copy'"),
        (("neg", "pos", "unsup"), "classes that may be missing labels: 'unsup'"),
        (("cat", "dog", "unlabeled_images"), "may be missing labels: 'unlabeled_images'"),
    ],
)
def test_labels_that_may_be_one_or_missing_are_named(tmp_path, labels, words, caplog):
    tree(tmp_path, "x")
    lines = [f"x/{i}.png,{label}" for i, label in enumerate(labels)]
    (tmp_path / "it.csv").write_text("\n".join(["path,label", *lines]))
    list_images(tmp_path / "it.csv")
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == (words is not None)
    assert all(words in warning for warning in warnings)


def test_other_folders_beside_splits_are_left_out_and_said(tmp_path, caplog):
    tree(tmp_path, "train/a", "train/b", "val/a", "val/b", "masks/x", "unlabeled")
    (tmp_path / "annotations/train").mkdir(parents=True)
    (tmp_path / "val/empty").mkdir()
    with caplog.at_level(logging.INFO):
        listing = list_images(tmp_path)
    assert listing.class_names == ("a", "b")
    assert sizes(listing) == {"train": 6, "val": 6}
    assert "folders that are left out: annotations, masks, unlabeled" in caplog.text
    assert "folders that are read as splits: train (train), val (val)" in caplog.text


def test_a_class_may_have_the_name_of_a_split(tmp_path):
    listing = list_images(tree(tmp_path / "two", "train/train", "val/car", "val/train"))
    assert listing.class_names == ("car", "train")
    assert sizes(listing) == {"train": 3, "val": 6}
    classes = ("bus", "car", "train")
    assert list_images(tree(tmp_path / "one", *classes)).class_names == classes


def classes_of(folder, **shards):
    for name, members in shards.items():
        write_tar(folder / f"{name}.tar", members)
    listing = list_images(folder)
    return listing.class_names, len(listing.names), listing.num_skipped


def labelled(suffix=".cls", **labels):
    """Returns the members of a tar file: images of these keys, and their labels."""
    found = {f"{key}.png": IMAGE for key in labels}
    return found | {f"{key}{suffix}": label for key, label in labels.items()}


def test_shards_with_labels(tmp_path):
    one, two = (labelled(**{f"k2_{n}": b"10", f"k10_{n}": b"2 ", f"a_{n}": b"1"}) for n in range(2))
    assert classes_of(tmp_path / "cls", s0=one, s1=two) == (("1", "2", "10"), 6, 0)
    assert classes_of(tmp_path / "txt", s=labelled(".cls.txt", a=b"0", b=b"1"))[:2] == (
        ("0", "1"),
        2,
    )
    one = labelled(".json", a=b'{"label": "cat"}', b=b'{"label": "dog"}')
    two = labelled(".json", c=b'{"cls": "cat"}', d=b'{"cls": "cat"}')
    assert classes_of(tmp_path / "json", s0=one, s1=two) == (("cat", "dog"), 4, 0)
    one, two = (labelled(".json", **{f"{n}a": b'{"label": 3.0}', f"{n}b": b'{"label": 4}'})
                for n in "xy")  # fmt: skip
    assert classes_of(tmp_path / "float", s0=one, s1=two) == (("3", "4"), 4, 0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (('"split": "train"', '"split": "val"'), "files with split train, val, and is read as tra"),
        (('"is_valid": false', '"is_valid": true'), "with is_valid False, True, and is read as tr"),
        (('"fold": 0', '"fold": 1'), "has the column 'fold' with '0', '1', which may say which"),
        (
            ('"m": {"split": "train"}', '"m": {"split": "val"}'),
            "files with m.split train, val, and",
        ),
        (('"license": {"usage": "cc-by"}', '"stats": {"val": 3}'), None),
        (('"split": "Training"', '"split": "train"'), None),
        (('"m": {"split": "Training"}', '"m": {"split": "train"}'), None),
        (('"source": "train"', '"source": "bus"'), None),
    ],
)
def test_json_files_of_another_split_are_refused(tmp_path, values, words):
    members = labelled(a=b"0", b=b"1")
    members |= {f"{k}.json": f"{{{v}}}".encode() for k, v in zip("ab", values, strict=True)}
    write_tar(tmp_path / "s.tar", members | {"a.txt": b"a cat", "b.txt": b"a dog"})
    for open_it in (list_images, captioned):
        if words is None:
            assert len(open_it(tmp_path).names) == 2
            continue
        with pytest.raises(DataError, match=words):
            open_it(tmp_path)


def test_of_several_members_of_a_tar_file_with_one_name_the_last_counts(tmp_path, caplog):
    """`tar -r` and `tar -u` append a new version, and so does a file that is given twice."""
    old, new = IMAGE, encode(np.full((8, 8, 3), 9, np.uint8))
    write_tar(tmp_path / "cat.tar", {"./0.png": old, "1.png": old, "2.png": old})
    with tarfile.open(tmp_path / "cat.tar", "a") as archive:
        for name, content in (("0.png", new), ("1.png", None), ("2.png", None)):
            info = tarfile.TarInfo(name)
            info.size = len(content or b"")
            info.type = tarfile.REGTYPE if content else tarfile.LNKTYPE
            info.linkname = "" if content else "0.png" if name == "1.png" else name
            archive.addfile(info, io.BytesIO(content or b""))
    listing = list_images(write_tar(tmp_path / "dog.tar", {"0.png": old}))
    found = {name: listing.read(row) for row, name in enumerate(listing.names)}
    assert found == {"cat.tar/0.png": new, "cat.tar/1.png": new, "cat.tar/2.png": old,
                     "dog.tar/0.png": old}  # fmt: skip
    # 2.png is a link to itself: the file that is there.
    assert "cat.tar: 2 members are left out, because later ones have their names" in caplog.text


def test_one_image_of_a_key_counts(tmp_path):
    members = labelled(a=b"0", b=b"1") | {"a.mask.png": IMAGE, "a.left.png": IMAGE}
    assert classes_of(tmp_path / "masks", s=members) == (("0", "1"), 2, 2)
    members = {"img.05.png": IMAGE, "img.05.cls": b"0", "img.06.png": IMAGE, "img.06.cls": b"1"}
    assert classes_of(tmp_path / "dots", s=members) == (("0", "1"), 2, 0)
    members = {"k.input.jpg": IMAGE, "k.cls": b"0", "m.input.jpg": IMAGE, "m.cls": b"1"}
    assert classes_of(tmp_path / "input", s=members) == (("0", "1"), 2, 0)


@pytest.mark.parametrize(
    ("cat", "dog"),
    [
        ({"a": b'{"label": 7}', "b": b'{"label": 7}'}, {"c": b'{"label": 3}'}),
        ({"a": b'{"label": "tabby"}'}, {"c": b'{"id": 1}'}),
        ({"a": b"no JSON"}, {"c": b"[1, 2]"}),
    ],
)
def test_a_tar_file_for_each_class_may_have_json_files(tmp_path, cat, dog):
    found = classes_of(tmp_path, cat=labelled(".json", **cat), dog=labelled(".json", **dog))
    assert found[0] == ("cat", "dog")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (labelled(a=b"0"), {"b.png": IMAGE}),
        (labelled(".json", a=b'{"label": 1}', c=b'{"label": 2}'), {"b.png": IMAGE}),
        ({**labelled(**{"img.05": b"0"}), "img.06.png": IMAGE}, labelled(a=b"0")),
    ],
)
def test_an_image_without_the_label_that_others_have_is_an_error(tmp_path, one, two):
    with pytest.raises(
        DataError, match=r"(b|img.06).png has no label; expected a \.(cls|json) file"
    ):
        classes_of(tmp_path, s0=one, s1=two)


def test_shards_are_named_like_their_split(tmp_path):
    for place in ("train/train-000", "train/train-001", "val/val-000"):
        members = {f"{i}.png": IMAGE for i in range(2)} | {f"{i}.cls": b"%d" % i for i in range(2)}
        write_tar(tmp_path / "good" / f"{place}.tar", members | {f"{i}.txt": b"" for i in range(2)})
    assert sizes(list_images(tmp_path / "good")) == {"train": 4, "val": 2}
    assert sizes(captioned(tmp_path / "good")) == {"train": 4, "val": 2}
    for name in ("cc3m-train-000.tar", "cc3m-val-000.tar"):
        write_tar(tmp_path / "bad" / name, {"0.png": IMAGE, "0.txt": b"a cat"})
    for open_it in (list_images, captioned):
        with pytest.raises(DataError, match="tar files of train, val, which look like splits"):
            open_it(tmp_path / "bad")


def test_keys_with_dots_have_captions(tmp_path):
    names = ("a", "img_22.05", "x.v2")
    members = {f"{k}{s}": c for k in names for s, c in ((".png", IMAGE), (".txt", b"a cat"))}
    listing = captioned(write_tar(tmp_path / "0.tar", members))
    assert sorted(listing.names) == [f"0.tar/{k}.png" for k in names]
    members |= {"a.mask.png": IMAGE}
    assert captioned(write_tar(tmp_path / "masks" / "0.tar", members)).num_skipped == 1
    members = {"k.input.jpg": IMAGE, "k.txt": b"a cat"}
    assert captioned(write_tar(tmp_path / "input" / "0.tar", members)).num_skipped == 0


def test_two_forms_of_a_name_are_one_class(tmp_path):
    nfc, nfd = (unicodedata.normalize(form, "crème") for form in ("NFC", "NFD"))
    assert list_images(tree(tmp_path, f"train/{nfc}", f"val/{nfd}")).class_names == (nfc,)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (("crop/1_0_2", "face/1_0_2", "crop/9_1_0", "face/9_1_0", "face/9_1_1"),
         "crop and face, although the files of the first are named like"),
        (("a/aachen_1", "b/aachen_1", "a/bochum_1", "b/bochum_1"), "a and b, although"),
        (("a/img_1", "b/img_1", "a/img_2", "b/img_2"), None),
        (("a/x_1_leftImg8bit", "a/x_1_gtFine_labelIds", "b/y_1_leftImg8bit"), "may be masks"),
    ],
)  # fmt: skip
def test_folders_whose_files_are_named_alike_are_named(tmp_path, places, words, caplog):
    for place in places:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / f"{place}.png").write_bytes(IMAGE)
    list_images(tmp_path)
    assert (words is None) == (caplog.text == "")
    assert (words or "") in caplog.text


def test_flat_images_beside_masks_of_cityscapes_are_refused(tmp_path):
    with pytest.raises(DataError, match="has leftImg8bit beside gtFine, which look like images"):
        list_images(tree(tmp_path, "leftImg8bit", "gtFine"))


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (("patient001", "patient002"), "patient001, patient002; are these where the images come"),
        (("patient001", "cat"), None),
    ],
)
def test_folders_of_patients_are_classes_with_a_warning(tmp_path, classes, words, caplog):
    assert list_images(tree(tmp_path, *classes)).class_names == tuple(sorted(classes))
    assert (words is None) == (caplog.text == "")
    assert (words or "") in caplog.text


def test_a_table_of_labels_beside_folders_is_named(tmp_path, caplog):
    (tree(tmp_path, "north", "south") / "labels.csv").write_text("path,label")
    list_images(tmp_path)
    assert "labels.csv is not read; if it has the labels" in caplog.text
