"""Error messages about datasets on disk: call, kind, words that must be in the message."""

import shutil

import numpy as np
import pytest
from data.files import Labelled, open_folder, write_list, write_tar
from image_files import encoded, write_folder, write_tars
from vocabularies import write_word_level

from vit_jax.config.captions import CaptionsConfig
from vit_jax.config.data import DataConfig, SubsetConfig
from vit_jax.data.captions import build_captions
from vit_jax.data.class_names import head_columns, match_classes
from vit_jax.data.dataset_sizes import known_size
from vit_jax.data.prepare.pack import PackOptions, pack
from vit_jax.data.prepare.shards import ShardFolder
from vit_jax.data.preprocess import Preprocess
from vit_jax.data.sources import TfdsSource, open_source
from vit_jax.data.sources.base import Example
from vit_jax.data.sources.listing import list_images
from vit_jax.data.sources.splits import read_split
from vit_jax.data.sources.subset import take_subset
from vit_jax.data.tokenizers import load_tokenizer
from vit_jax.errors import ConfigError, DataError, FileError, ModelError
from vit_jax.models.text import TextConfig, check_vocabulary


def check(call, kind, words):
    with pytest.raises(kind) as caught:
        call()
    for text in words:
        assert text in str(caught.value)


def rename(old, new):
    return lambda photos: (photos / old).rename(photos / new)


def write(name, content=b""):
    return lambda photos: (photos / name).write_bytes(content)


def no_image(photos):
    for path in photos.rglob("*.png"):
        path.write_bytes(b"no image")


def link(name, target):
    return lambda photos: (photos / name).symlink_to(target)


def only(name, content=b""):
    """Leaves a folder with nothing but this file."""

    def edit(photos):
        shutil.rmtree(photos)
        path = photos / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)

    return edit


def tars(edit):
    """Packs the class folders as tar files, then edits their folder."""

    def change(photos):
        packed = write_tars(photos.with_name("tars"), photos)
        shutil.rmtree(photos)
        packed.rename(photos)
        edit(photos)

    return change


def cut_tar(photos):
    (photos / "bee.tar").write_bytes((photos / "bee.tar").read_bytes()[:700])


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123456\n"
FOLDERS = [
    (write("bee/010.png"), ("1 empty files", "bee/010.png", "data check", "on_bad_example=skip")),
    (lambda photos: (photos / "dog").mkdir(), ("class folder", "dog holds no image")),
    (
        lambda photos: [(photos / name).mkdir() for name in ("dog", "elk")],
        ("the class folders", "dog, ", "elk hold no image", "delete the folders, or put images"),
    ),
    (shutil.rmtree, ("no folder",)),
    (only("a.png", encoded(1)), ("no folders in",)),
    (only("a.tar.gz"), ("is compressed",)),
    (write("fox.tar.bz2"), ("fox.tar.bz2 is compressed",)),
    (write("ant.tar.zst"), ("ant.tar.zst is compressed",)),
    (link("ant/up", "../ant"), ("1 broken links", "such as ant/up")),
    (tars(lambda photos: (photos / "ant").mkdir()), ("both folders and tar files",)),
    (tars(cut_tar), ("bee.tar cannot be read",)),
    (tars(write("bee.tar", b"not a tar file, " * 60)), ("bee.tar cannot be read",)),
    (tars(write("bee.tar", LFS)), ("bee.tar cannot be read: a Git LFS pointer", "git lfs pull")),
    (tars(lambda photos: write_tar(photos / "dog.tar", {})), ("class tar file", "holds no image")),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "words"), FOLDERS)
def test_image_folders(tmp_path, edit, words):
    photos = write_folder(tmp_path / "photos")
    edit(photos)
    check(lambda: open_folder(photos), DataError, words)


def held_out(columns, *cells):
    """A list of two images with these further columns."""
    lines = [f"photos/ant/00{i}.png,a,{cell}" for i, cell in enumerate(cells)]
    return "\n".join([f"path,label,{columns}", *lines])


# Columns that may say which images are held out, and their cells.
UNCLEAR = [
    ("is_trainval", "1", "0"),
    ("trainval", "1", "0"),
    ("is_val_or_test", "no", "yes"),
    ("not_test", "1", "0"),
    ("cv", "0", "1"),
    ("xval", "0", "1"),
    ("cross_validation", "a", "b"),
    ("kFold", "1", "2"),
    ("testfold", "1", "2"),
    ("datasplit", "a", "b"),
    ("holdoutSite", "a", "b"),
    ("ML_USE", "UNASSIGNED", "TEST"),
    ("purpose", "main", "test"),
    ("note", "", "test"),
    ("code", "tr", "te"),
    ("tvt", "0", "1"),
    ("test_result", "positive", "negative"),
    ("TRAINGroup", "x", "y"),
    ("origin", "a test", "a dev"),
]  # fmt: skip
LISTS = [
    ("photos/ant/000.png,a\n", ("photos/ant/000.png, a; expected path, and label",)),
    (LFS.decode(), ("list.csv is a Git LFS pointer", "git lfs pull")),
    ("path,label\n", ("list.csv lists no image",)),
    ("path,label\nphotos/ant/000.png,a\nphotos/ant/001.png\n", ("line 3 of",)),
    ("path,label\na.png,a\nphotos/ant/000.png,a\nb.png,b\n", ("2 of 3 files", "such as a.png")),
    ("path,label\na\0.png,a\n", ("1 of 1 files", "such as a\\0.png")),
    (held_out("fold", "0", "1"), ("column 'fold' with '0', '1'", "column split", "remove it")),
    (held_out("partition", "train", "2"), ("column 'partition' with '2', 'train'",)),
    (held_out("role", "train", "reserve"), ("column 'role' with 'reserve', 'train'",)),
    (held_out("is_valid", "0", "?"), ("column 'is_valid'",)),
    (held_out("is_valid_image", "1", "0"), ("column 'is_valid_image' with '0', '1'",)),
    (held_out("source", "web_train", "web_val"), ("column 'source' with 'web_train', 'web_val'",)),
    (held_out("valid", "1", "0"), ("column 'valid' with '0', '1'",)),
    *(
        (held_out(name, *cells), (f"column {name!r} with", "add a column split", "remove it"))
        for name, *cells in UNCLEAR
    ),
    (
        held_out("is_test,phase", "1,train", "0,test"),
        (
            "line 2 of",
            "itself about its split: phase is 'train', is_test is '1'; expected one split",
        ),
    ),
    (held_out("is_valid,is_test", "0,1", "1,1"), ("line 3 of", "is_valid is '1', is_test is '1'")),
    (
        held_out("split,is_valid", "train,0", "train,1"),
        ("line 3 of", "split is 'train', is_valid is '1'"),
    ),
    (held_out("is_train,is_test", "1,0", "1,1"), ("line 3 of", "is_train is '1', is_test is '1'")),
    (
        held_out("split", "train", ""),
        ("line 3 of", "has the split ''", "such as train, val or test"),
    ),
    (held_out("split", "train", "NaN"), ("line 3 of", "has the split 'NaN'")),
    (
        held_out("split", "train,val"),
        ("line 2 of", "has 4 values; expected 3, one for each of path,label,split"),
    ),
    (held_out("note,split", "x"), ("line 2 of", "has 3 values; expected 4")),
    (held_out("split,Split", "train,val"), ("line 1 of", "the columns split, Split")),
    (held_out("label", "b"), ("line 1 of", "the columns label, label; expected different names")),
    (
        "path,label\nphotos/ant/000.png,a\nphotos/ant/000.png,b\n",
        ("line 3 of", "000.png has the labels a and b; expected one label"),
    ),
    ("path,label\nphotos/ant/000.png,a\n./photos/ant/000.png,b\n", ("has the labels a and b",)),
    ("path,label\n ,a\n", ("line 2 of", "has no path")),
    ("path,label\nphotos/ant/000.png, \n", ("line 2 of", "has the label ' '")),
    (
        "path,label,split\nphotos/ant/000.png,a,train\nphotos/ant/000.png,a,val\n",
        ("line 3 of", "000.png is in the splits train and val; expected one split"),
    ),
]


@pytest.mark.parametrize(("text", "words"), LISTS)
def test_csv_lists(tmp_path, text, words):
    write_folder(tmp_path / "photos")
    check(lambda: list_images(write_list(tmp_path, text)), DataError, words)


PACKS = [
    (rename("ant", "a\nb"), {}, ("class name 'a\\nb'",)),
    (rename("ant", "a\udcff"), {}, ("class name 'a\\udcff'",)),
    (lambda photos: (photos.parent / "data").touch(), {}, ("cannot write", "Not a directory")),
    (no_image, {"on_bad_example": "skip"}, ("no image of split train",)),
    (None, {"name": "3photos"}, ("dataset name",)),
    (None, {"name": "digits"}, ("dataset name",)),
    (None, {"val_fraction": 0.01}, ("val_fraction",)),
    (None, {"val_fraction": 0.99}, ("val_fraction",)),
]


@pytest.mark.parametrize(("edit", "options", "words"), PACKS)
def test_preparing(tmp_path, edit, options, words):
    photos = write_folder(tmp_path / "photos")
    if edit is not None:
        edit(photos)
    options = PackOptions(**{"name": "photos", **options})
    check(lambda: pack(list_images(photos), tmp_path / "data", options), DataError, words)


def test_shards_that_another_process_or_nobody_can_write(tmp_path):
    with ShardFolder(tmp_path, {}) as folder:
        check(lambda: ShardFolder(tmp_path, {}).__enter__(), DataError, ["another process"])
        (tmp_path / ".x.incomplete").mkdir()
        check(lambda: folder.write("x", iter([b""]), {}), DataError, ["cannot write", "/x"])


HEAD = ("cat", "dog", "owl")
TWICE = ("crane", "owl", "crane")
SHARDS = {"train": [60, 40], "test": [7]}
SIZES = [1500, 900, 400, 150, 40, 9, 1]
SKEWED = Labelled(np.repeat(range(7), SIZES), "abcdefg")


def heads(classes, head=HEAD):
    return lambda: head_columns(classes, head, data="photos", model="RUN")


def splits(text):
    return lambda: read_split(text, SHARDS, "photos")


def subset(source=SKEWED, **rule):
    return lambda: take_subset(source, SubsetConfig(**rule))


def size(**data):
    return lambda: known_size(DataConfig.from_mapping({"global_batch_size": 1, **data}))


def data(**options):
    return DataConfig(name="none", global_batch_size=1, **options)


def preprocess(image):
    return lambda: Preprocess((8, 8))(image)


VALUES = [
    (lambda: TfdsSource("digits", "train", "/dev/null/data"), DataError,
     ("cannot write digits to /dev/null/data",)),
    (heads(("dog", "owl")), DataError, ("photos lacks the class 'cat' of RUN",)),
    (heads((*HEAD, "zebra")), DataError, ("photos has the class 'zebra'", "RUN")),
    (heads(TWICE), DataError, ("several classes named crane",)),
    (heads(HEAD, TWICE), DataError, ("several classes named crane",)),
    (lambda: match_classes(Labelled([7], ("owl", "dog")), HEAD, "RUN")[0], DataError,
     ("example 0 of labelled", "label 7", "0 to 1")),
    (splits("val"), DataError, ("Unknown split 'val'", "one of train, test", "train[:90%]")),
    (splits("train["), DataError, ("split 'train[' of photos: Error parsing",)),
    (splits("train[:0]"), DataError, ("split 'train[:0]' of photos is empty",)),
    (splits("train[90%:10%]"), DataError, ("end is after their start",)),
    (splits("train[:60%]+train[40%:]"), DataError, ("has 20 examples of train twice",)),
    (subset(fraction=0.1, hash="0123"), DataError, ("data.subset.hash = 0123",)),
    (subset(examples=6), DataError, ("subset of 6 of the 3,000", "between 7, one for each class")),
    (subset(preset="jft_9m"), DataError, ("subset of 9,000,000", "and 3,000")),
    (subset(Labelled([0, 1, 3, 1], "abc"), fraction=0.5), DataError,
     ("label 3 of example 2", "1 such examples")),
    (subset(preset="2_percent"), ConfigError, ("preset",)),
    (subset(preset="1_percent", fraction=0.1), ConfigError, ("'preset' is given", "'fraction'")),
    (size(name="cifar10", subset={"examples": 60_000}), DataError, ("60,000 examples of cifar10",)),
    (size(name="cifar10", train_split="training"), DataError, ("split 'training' of cifar10",)),
    (preprocess([]), DataError, ("0 images",)),
    (preprocess(np.zeros((4, 2), np.int8)), DataError, ("array int8[4, 2]", "a PIL image")),
    (preprocess(np.zeros((4, 4, 3))), DataError, ("array float64[4, 4, 3]",)),
    (preprocess(3), DataError, ("int as an image",)),
    (preprocess("there/is/no.png"), DataError, ("there/is/no.png",)),
    (preprocess(__file__), DataError, ("test_errors.py: ",)),
    (lambda: data(interpolation="bicubic", antialias=False), ConfigError, ("antialias",)),
    (lambda: CaptionsConfig(feature="text"), ConfigError, ("'tokenizer' is not set",)),
    (lambda: CaptionsConfig(tokenizer="t", feature="a", templates=("a {}",)), ConfigError,
     ("'feature' is given",)),
    (lambda: CaptionsConfig(tokenizer="t", templates=("a photo",)), ConfigError, ("'a photo'",)),
    (lambda: check_vocabulary(TextConfig(), 15, "f.json"), ModelError, ("15 tokens", "32,000")),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "words"), VALUES)
def test_values(call, kind, words):
    check(call, kind, words)


@pytest.mark.parametrize(
    ("key", "value"),
    [("crop.name", "middle"), ("crop.flavour", "timm"), ("randaugment.flavour", "torchvision"),
     ("randaugment.layers", 0), ("color_jitter.strength", 1.5), ("erasing.probability", 1.1),
     ("erasing.probability", 0.0)],
)  # fmt: skip
def test_augmentation_keys(key, value):
    section, option = key.split(".")
    augment = {section: {option: value}}
    check(lambda: data(augment=augment), ConfigError, [f"'augment.{key}' is"])


@pytest.mark.parametrize(
    ("key", "value"), [("central_fraction", 0.0), ("central_fraction", 1.5), ("antialias", "yes")]
)
def test_keys_of_resizing(key, value):
    check(lambda: data(**{key: value}), ConfigError, [key])


IMAGE = encoded(1)
TAR = "0.tar"
CAPTIONED = [
    ("c.csv", b"path,caption\n1.png,\n", ("line 2 of", "c.csv: caption: an empty caption")),
    ("c.csv", b"path,text\n1.png,a cat\n", ("with the columns path, text",)),
    ("c.csv", b"path,caption\n9.png,a cat\n", ("1 of 1 files listed in", "such as 9.png")),
    ("c.csv", b"path,caption\n,a cat\n", ("line 2 of", "has no path")),
    ("c.csv", b"path,caption\n", ("lists no image",)),
    ("c.csv", b"path,caption\n1.png,\xff\n", ("a CSV file in UTF-8",)),
    ("c.tsv", b'path\tcaption\n1.png\t"a\n2.png\tb" c\n', ("line 3 of", "expected after '\"'")),
    ("c.tsv", b'path\tcaption\n1.png\t"a\n2.png\tb\n', ("line 3 of", "unexpected end")),
    (
        "c.jsonl",
        b'{"path": "1.png", "caption": null}',
        ("line 1 of", "caption: a caption of type None"),
    ),
    ("c.jsonl", b'{"path": "1.png", "caption": "\\ud800"}', ("expected a text in UTF-8",)),
    *(
        ("c.jsonl", b'{"path": "1.png", "caption": "a", "split": %s}' % split, ("line 1 of", words))
        for split, words in (
            (b"null", "has the split None"),
            (b'""', "the split ''; expected the name"),
            (b"false", "the split False"),
            (b"0", "the split 0"),
        )
    ),
    ("c.jsonl", LFS, ("c.jsonl is a Git LFS pointer", "git lfs pull")),
    ("c.jsonl", b"[]", ("line 1 is not a JSON object",)),
    ("c.jsonl", b'{"path": "\xff"}', ("c.jsonl: line 1",)),
    ("c.parquet", b"", ("as images with captions",)),
    (TAR, {"1.jpg": IMAGE}, ("1 has an image and no caption",)),
    (TAR, {"1.txt": b"a cat"}, ("hold no image",)),
    (TAR, {"1.jpg": IMAGE, "1.json": b"{}"}, ("expected the key 'caption'",)),
    (TAR, {"1.jpg": IMAGE, "1.json": b"{"}, ("1.json: ", "expected JSON")),
    ("gone", None, ("no file or folder",)),
    ("", None, ("no tar files in",)),
]


@pytest.mark.parametrize(("name", "content", "words"), CAPTIONED)
def test_captioned_images(tmp_path, name, content, words):
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / name
    if isinstance(content, dict):
        path = write_tar(path, content)
    elif content is not None:
        (tmp_path / "data" / "1.png").write_bytes(IMAGE)
        path.write_bytes(content)
    data = DataConfig(
        source="captioned",
        name="pictures",
        data_dir=str(path),
        global_batch_size=4,
        captions=CaptionsConfig(tokenizer="not read"),
    )

    def read():
        source = open_source(data, "train")
        source.read(range(len(source)))

    check(read, DataError, words)


CAPTIONS = [
    ("", "an empty caption"),
    (["a cat", " "], "an empty caption"),
    (b"NaN", "the caption 'NaN'; expected a text"),
    ("['a cat', 'the cat']", "expected a text, no missing value and no list as text"),
    ([], "no caption; expected one or more"),
    (b"\xff", "expected a text in UTF-8"),
    (3.5, "a caption of type float"),
]


def test_captions(tmp_path):
    config = CaptionsConfig(tokenizer=str(write_word_level(tmp_path)))
    captions = build_captions(config, TextConfig(vocabulary_size=15, context_length=6))
    for value, words in CAPTIONS:
        example = Example(IMAGE, -1, "one", {"caption": value})
        check(lambda example=example: captions.texts(example), DataError, [words])


TOKENIZERS = [
    ("words.model", b"not a model", {}, ("is damaged",)),
    ("tokenizer.json", b"{}", {}, ("is damaged",)),
    ("vocab.txt", b"cat\ndog\n", {}, ("no [CLS]",)),
    ("vocab.json", b"{}", {}, ("cannot read", "merges.txt")),
    *(
        (name, LFS, {}, (f"{name} is a Git LFS pointer", "git lfs pull"))
        for name in ("tokenizer.json", "words.model", "vocab.txt")
    ),
    ("words.bin", b"", {}, ("words.bin as a tokenizer",)),
    ("", None, {}, ("no vocabulary in",)),
    ("gone.model", None, {}, ("no file", "gone.model")),
    ("tokenizer.json", None, {"pad_token": 15}, ("pad token 15",)),
]


@pytest.mark.parametrize(("name", "content", "options", "words"), TOKENIZERS)
def test_vocabularies(tmp_path, name, content, options, words):
    if options:
        write_word_level(tmp_path)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    check(lambda: load_tokenizer(tmp_path / name, context_length=4, **options), FileError, words)
