import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from data.files import InMemory, assert_same_batches
from image_files import encoded, number_of, write_folder
from images import encode, noise
from PIL import Image
from sklearn.datasets import load_digits
from tfds_stand_ins import write_tfds

from vit_jax.config.data import DataConfig, SubsetConfig
from vit_jax.data.arrays import labelled_image
from vit_jax.data.cache import DecodedSource, cached
from vit_jax.data.class_names import match_classes
from vit_jax.data.loader import BatchSpec, train_batches
from vit_jax.data.sources import (
    Example,
    Source,
    TfdsSource,
    default_data_dir,
    open_source,
    open_training_data,
)
from vit_jax.data.sources.subset import take_subset
from vit_jax.data.transforms import make_train_transform
from vit_jax.errors import DataError

_ROOT = Path(__file__).resolve().parents[2]


class Arrays(Source):
    """Pixels and labels as a user has them: no more than a length and examples."""

    fingerprint = "0"

    def __init__(self, images, labels):
        self.images, self.targets = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return Example(self.images[index], int(self.targets[index]), str(index))


def test_any_random_access_sequence_is_a_source():
    """The same batches as from PNG files of the same pixels, also as a part, cached and pickled."""
    images, labels = noise(12 * 9, 7).reshape(12, 9, 7, 3), np.arange(12) % 3
    arrays = Arrays(images, labels)
    assert arrays.labels().tolist() == labels.tolist()
    examples = [Example(encode(pixels), i % 3, str(i)) for i, pixels in enumerate(images)]
    files = InMemory(examples, "abc")
    arrays.class_names = files.class_names
    subset = SubsetConfig(examples=6)
    pairs = [
        (arrays, files),
        (take_subset(arrays, subset)[0], take_subset(files, subset)[0]),
        (match_classes(arrays, "cba", "a head"), match_classes(files, "cba", "a head")),
        (DecodedSource(arrays), DecodedSource(files)),
        (pickle.loads(pickle.dumps(arrays)), pickle.loads(pickle.dumps(cached(files, 1)))),
    ]
    transform = make_train_transform(8, DataConfig(name="x", global_batch_size=4))
    preprocessing, spec = labelled_image(transform, 8, 3), BatchSpec(4, range(4), num_threads=2)
    for one, other in pairs:
        assert one.labels().tolist() == other.labels().tolist()
        batches = [
            list(
                train_batches(s, lambda step: preprocessing, spec, seed=2, start_step=1, end_step=5)
            )
            for s in (one, other)
        ]
        assert_same_batches(*batches)
    arrays.in_memory = True
    assert cached(arrays, 1) is arrays


def _ids(source: TfdsSource) -> list[int]:
    """Numbers of the digits in scikit-learn's order, read off "INDEX (digits/NUMBER)"."""
    return [int(e.id.split("/")[1].rstrip(")")) for e in source.read(range(len(source)))]


@pytest.fixture
def train(digits_dir):
    return TfdsSource("digits", "train", str(digits_dir))


@pytest.fixture
def other_dataset(digits_dir, tmp_path):
    """Returns make(*changes): a prepared copy of the digits under the name "pixels"."""

    def make(*changes) -> Path:
        there, here = digits_dir / "digits" / "1.0.0", tmp_path / "pixels" / "1.0.0"
        here.mkdir(parents=True)
        for path in there.iterdir():
            (here / path.name.replace("digits-", "pixels-")).write_bytes(path.read_bytes())
        text = (here / "dataset_info.json").read_text()
        usual = (("vit_jax.data.builders.digits", "gone"), ('"digits"', '"pixels"'))
        for old, new in (*usual, *changes):
            assert old in text
            text = text.replace(old, new)
        (here / "dataset_info.json").write_text(text)
        return tmp_path

    return make


def test_the_digits_are_those_of_scikit_learn_a_fifth_of_them_for_testing(digits_dir, train):
    digits, test = load_digits(), TfdsSource("digits", "test", str(digits_dir))
    assert train.class_names == tuple("0123456789")
    assert train.name == "digits/1.0.0 train"
    assert (len(train), len(test)) == (1437, 360)
    assert sorted(_ids(train) + _ids(test)) == list(range(1797))
    assert all(i % 5 == 0 for i in _ids(test))
    for number, example in zip(_ids(train), train.read(range(len(train))), strict=True):
        # 0 to 16 there, 0 to 255 here.
        expected = np.round(digits.images[number] * 255 / 16)
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(example.image))), expected)
        assert example.label == digits.target[number]


def test_a_part_of_a_split_has_the_examples_in_its_range(digits_dir, train):
    part = TfdsSource("digits", "train[10:13]+test", str(digits_dir))
    assert len(part) == 3 + 360
    assert [e.image for e in part.read([0, 1, 2])] == [e.image for e in train.read([10, 11, 12])]


def test_fingerprint_is_stable_and_differs_by_split(digits_dir, train):
    assert TfdsSource("digits", "train", str(digits_dir)).fingerprint == train.fingerprint
    splits = ["train", "test", "train[:50%]", "train[50%:]", "train+test"]
    assert len({TfdsSource("digits", s, str(digits_dir)).fingerprint for s in splits}) == 5
    # Golden: a change makes every checkpoint refuse to resume.
    assert train.fingerprint == "e57bc5db0234c1dc"


def test_fingerprint_differs_by_dataset_name_even_for_equal_files(other_dataset, train):
    copy = TfdsSource("pixels", "train", str(other_dataset()))
    assert copy.name == "pixels/1.0.0 train"
    assert copy[5].image == train[5].image
    assert copy.fingerprint != train.fingerprint


def test_a_version_may_be_given(digits_dir, other_dataset, train):
    assert TfdsSource("digits:1.0.0", "train", str(digits_dir)).fingerprint == train.fingerprint
    assert len(TfdsSource("pixels:1.0.0", "test", str(other_dataset()))) == 360


def test_without_a_data_dir_the_environment_names_the_folder(digits_dir, train, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(digits_dir))
    assert TfdsSource("digits", "train").fingerprint == train.fingerprint
    monkeypatch.delenv("TFDS_DATA_DIR")
    assert default_data_dir() == Path.home() / "tensorflow_datasets"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("digit", ("no dataset 'digit' in", "did you mean 'digits'?")),
        ("pixel", ("no dataset 'pixel' in", "did you mean 'pixels'?")),
        ("pixels:2.0.0", ("no dataset 'pixels:2.0.0' in", "pixels for its versions")),
        ("digits:9.9.9", ("no dataset 'digits:9.9.9'", "set data.name=digits")),
        ("cifar10", ("dataset 'cifar10' is not prepared in", "run: tfds build cifar10")),
        ("two words", ("dataset name 'two words'", "did you mean 'digits'?")),
        ("/home/photos", ("dataset name '/home/photos' is a path", "set data.source=folder")),
        ("nothing", ("(found here: digits, pixels)",)),
    ],
)
def test_a_missing_dataset_is_named(other_dataset, name, words):
    folder = other_dataset()
    (folder / "downloads" / "extracted").mkdir(parents=True)
    with pytest.raises(DataError) as caught:
        TfdsSource(name, "train", str(folder))
    for text in words:
        assert text in str(caught.value)


def test_a_dataset_whose_builder_needs_a_missing_package_is_named(other_dataset, monkeypatch):
    def build(*_, **__):
        print("* a banner *")
        raise ModuleNotFoundError("Failed to construct\nNo module named 'tensorflow'")

    monkeypatch.setattr("tensorflow_datasets.builder", build)
    with pytest.raises(DataError) as caught:
        TfdsSource("robonet", "train", str(other_dataset()))
    assert caught.value.got == "dataset 'robonet' cannot be opened: No module named 'tensorflow'"
    assert "pip install tensorflow" in caught.value.fix


def test_a_tfrecord_dataset_is_refused_with_the_command_that_converts_it(other_dataset):
    folder = other_dataset(('"array_record"', '"tfrecord"'))
    path = folder / "pixels" / "1.0.0"
    for shard in path.glob("*.array_record-*"):
        shard.rename(shard.with_name(shard.name.replace("array_record", "tfrecord")))
    with pytest.raises(DataError) as caught:
        TfdsSource("pixels", "train", str(folder))
    assert caught.value.got == "dataset pixels/1.0.0 is stored as tfrecord"
    assert caught.value.fix == (
        f"run: tfds convert_format --dataset_version_dir={path} --out_file_format=array_record"
    )


def change_features(folder, change):
    path = folder / "pixels" / "1.0.0" / "features.json"
    features = json.loads(path.read_text())
    change(features["featuresDict"]["features"])
    path.write_text(json.dumps(features))


def test_a_dataset_without_a_class_feature_is_refused(other_dataset):
    folder = other_dataset()
    change_features(folder, lambda held: held.update(label=held["id"]))
    words = "pixels/1.0.0 with features id, image, label has no class feature; expected .*a class"
    with pytest.raises(DataError, match=words):
        TfdsSource("pixels", "train", str(folder))


def test_label_key_selects_a_class_feature_and_changes_the_fingerprint(other_dataset):
    folder = other_dataset()
    usual = TfdsSource("pixels", "train", str(folder))
    change_features(folder, lambda held: held.update(second=held["label"]))
    assert TfdsSource("pixels", "train", str(folder)).fingerprint == usual.fingerprint
    second = TfdsSource("pixels", "train", str(folder), label_key="second")
    assert second.fingerprint != usual.fingerprint
    change_features(folder, lambda held: held.update(third=held.pop("label")))
    with pytest.raises(DataError) as caught:
        TfdsSource("pixels", "train", str(folder))
    assert caught.value.expected == "one of second, third"
    assert caught.value.fix == "set data.label_key"


def test_the_only_class_feature_is_used_whatever_its_name(tmp_path):
    features = {
        "photo": tfds.features.Image(encoding_format="png"),
        "kind": tfds.features.ClassLabel(names=["a", "b"]),
    }
    examples = [{"photo": io.BytesIO(encoded(i)), "kind": 1 - i} for i in range(2)]
    write_tfds(tmp_path, "named", features, {"train": examples})
    source = TfdsSource("named", "train", str(tmp_path))
    assert sorted((number_of(e.image), e.label) for e in source.read([0, 1])) == [(0, 1), (1, 0)]
    assert source.labels().tolist() == [source[0].label, source[1].label]


@pytest.mark.parametrize(
    ("changes", "got", "fix"),
    [
        ({"source": "folder"}, "data.source is folder, but data.data_dir is not set", "--config"),
        ({"source": "csv"}, "data.source is csv, but data.data_dir is not set", "--config"),
        ({"source": "csv", "data_dir": "{here}"}, "data.source is csv, but {here} is a folder",
         "set data.source=folder"),
        ({"source": "folder", "data_dir": "{here}/list.csv"},
         "data.source is folder, but {here}/list.csv is a file", "set data.source=csv"),
        ({"source": "folder", "data_dir": "{here}/gone"}, "no folder {here}/gone", "data_dir"),
        ({"source": "tfds", "data_dir": "{here}/gone"}, "no folder {here}/gone", "data_dir"),
    ],
)  # fmt: skip
def test_a_wrong_data_dir_is_named(tmp_path, changes, got, fix):
    (tmp_path / "list.csv").write_text("path,label\n")
    changes = {key: value.format(here=tmp_path) for key, value in changes.items()}
    data = DataConfig.from_mapping({"name": "photos", "global_batch_size": 1, **changes})
    with pytest.raises(DataError) as caught:
        open_source(data, "train")
    assert caught.value.got == got.format(here=tmp_path)
    assert fix in caught.value.fix


def test_a_config_opens_a_folder_and_a_csv_file(tmp_path):
    photos = write_folder(tmp_path / "photos")
    listed = tmp_path / "list.csv"
    listed.write_text("path,label\nphotos/ant/000.png,a\n")
    usual = {"name": "p", "global_batch_size": 1}
    csv = DataConfig(source="csv", data_dir=str(listed), **usual)
    assert len(open_training_data(csv).source) == 1
    folder = DataConfig(source="folder", data_dir=str(photos), **usual)
    assert len(open_training_data(folder).source) == 20
    (photos / "ant" / "000.png").write_bytes(b"")
    with pytest.raises(DataError, match="1 empty files"):
        open_source(folder, "train")
    assert len(open_source(folder.replace(on_bad_example="skip"), "train")) == 20


def test_sources_can_be_pickled(digits_dir, tmp_path):
    photos = write_folder(tmp_path / "photos")
    usual = {"data_dir": str(digits_dir), "global_batch_size": 1}
    configs = [
        DataConfig(name="digits", **usual),
        DataConfig(name="digits", subset=SubsetConfig(fraction=0.1), **usual),
        DataConfig(source="folder", name="p", data_dir=str(photos), global_batch_size=1),
    ]
    for data in configs:
        source = open_training_data(data).source
        sent = pickle.loads(pickle.dumps(source))
        assert sent.read([5, 3]) == source.read([5, 3])


def test_only_the_training_split_is_reduced_to_a_subset(digits_dir):
    data = DataConfig(
        name="digits",
        data_dir=str(digits_dir),
        global_batch_size=1,
        subset=SubsetConfig(preset="10_percent"),
    )
    training = open_training_data(data)
    assert len(training.source) == 144
    assert training.manifest is not None
    assert (len(open_source(data, "train")), len(open_source(data, "test"))) == (1437, 360)


@pytest.mark.parametrize(
    ("name", "left", "words"),
    [
        ("dataset_info.json", b"", r"dataset 'pixels' in .* has damaged metadata"),
        ("dataset_info.json", b'{"name":', r"dataset 'pixels' in .* has damaged metadata"),
        ("pixels-train.*", None, r"cannot read pixels/1\.0\.0 train: "),
        ("pixels-train.*", b"", r"cannot read pixels/1\.0\.0 train: "),
        ("pixels-train.*", bytes(100_000), r"cannot read pixels/1\.0\.0 train: "),
    ],
)
def test_a_missing_or_damaged_file_of_a_dataset_is_a_data_error(other_dataset, name, left, words):
    folder = other_dataset()
    (path,) = (folder / "pixels" / "1.0.0").glob(name)
    if left is None:
        path.unlink()
    else:
        path.write_bytes(left)
    with pytest.raises(DataError, match=words):
        TfdsSource("pixels", "train", str(folder))[0]


@pytest.mark.slow
def test_tensorflow_is_not_imported_even_if_it_is_installed(tmp_path):
    trap = tmp_path / "packages" / "tensorflow"
    trap.mkdir(parents=True)
    (trap / "__init__.py").write_text("import os; os._exit(3)")
    code = (
        "import sys; from vit_jax.data.sources import TfdsSource;"
        f"source = TfdsSource('digits', 'train', {str(tmp_path / 'data')!r});"
        "print(len(source), len(source.read([0, 1])), 'tensorflow' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(trap.parent), str(_ROOT)])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.stdout.split() == ["1437", "2", "False"], done.stderr
