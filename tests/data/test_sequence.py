"""Sources of your own and data passed to fit: examples, splits, identity, refusals."""

import pickle
import threading

import numpy as np
import pytest
from own_code import own_code  # noqa: F401
from small_config import small_mapping

import vit_jax
from vit_jax.config.file import apply_override_texts
from vit_jax.config.run import Config
from vit_jax.data.sources import open_source, open_training_data
from vit_jax.data.sources.sequence import passing
from vit_jax.errors import ConfigError, DataError, PluginError

pytestmark = pytest.mark.usefixtures("own_code")


class Slides:
    """Grey images whose value is their place; the label is its parity."""

    def __init__(self, count, offset=0):
        self.count, self.offset = count, offset

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return np.full((4, 4, 3), index + self.offset, np.uint8), (index + self.offset) % 2


def slides(data_dir, split, *, magnification: int = 20):
    """Slides of a microscope.

    Args:
        data_dir: not read.
        magnification: of the microscope.
    """
    made = Slides({"train": 10, "test": 4}[split], magnification)
    made.class_names = ("even", "odd")
    return made


def data_of(*overrides):
    mapping = small_mapping()
    apply_override_texts(mapping, ["data.source=slides", *overrides])
    return Config.from_mapping(mapping).data


def values(source):
    return [int(source[i].image[0, 0, 0]) for i in range(len(source))]


def test_splits_of_your_own_source_by_hand():
    vit_jax.register_source(slides)
    data = data_of("data.slides.magnification=100")
    assert values(open_source(data, "train[20%:50%]+test[:1]")) == [102, 103, 104, 100]
    source = open_source(data, "test")
    assert [source[i].label for i in range(4)] == [0, 1, 0, 1]
    assert (source.class_names, source[2].id) == (("even", "odd"), "test[2]")
    np.testing.assert_array_equal(source.labels(), [0, 1, 0, 1])
    assert values(pickle.loads(pickle.dumps(source))) == values(source)
    half = open_training_data(data_of("data.subset.fraction=0.5")).source
    assert np.bincount(half.labels()).tolist() in ([2, 3], [3, 2])


def test_the_identity_changes_with_an_example_the_length_and_the_part():
    vit_jax.register_source(slides)
    same = open_source(data_of(), "train").fingerprint
    assert open_source(data_of(), "train").fingerprint == same
    others = [
        open_source(data_of("data.slides.magnification=22"), "train"),
        open_source(data_of(), "train[:90%]"),
        open_source(data_of(), "test"),
    ]
    assert len({same, *(source.fingerprint for source in others)}) == 4


def test_a_source_has_its_keys_only_when_it_is_chosen():
    vit_jax.register_source(slides)
    assert data_of().to_mapping()["slides"] == {"magnification": 20}
    plain = Config.from_mapping(small_mapping()).data.to_mapping()
    assert "slides" not in plain
    assert data_of("data.source=folder").source == "folder"
    for override, words in [
        ("data.slides.magnificaton=1", "did you mean 'data.slides.magnification'"),
        ("data.source=slide", "'data.source' is 'slide'; expected one of captioned, csv, folder,"),
    ]:
        with pytest.raises(ConfigError, match=words):
            data_of(override)
    with pytest.raises(ConfigError, match=r"'data.slides' is set with data.source=folder"):
        data_of("data.slides.magnification=2", "data.source=folder")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, r"source 'slides' .*returned int for the split 'train'; expected a sequence"),
        ([3], r"example 0 of .* is int; expected a pair \(image, label\)"),
        ([(np.zeros((4, 4, 3)), 0)], r"example 0 of .*: an array float64\[4, 4, 3\] as an image"),
        ([(np.zeros((4, 4, 3), np.uint8), "cat")], r"has the label 'cat'; expected the number"),
        ([(np.zeros((4, 4, 3), np.uint8), 0)], r"no class_names, and data.num_classes is not set"),
    ],
)
def test_what_is_no_sequence_of_examples_is_one_line(given, words):
    def slides(data_dir, split):
        return given

    vit_jax.register_source(slides)
    classes = [] if "num_classes" in words else ["data.num_classes=2"]
    with pytest.raises((DataError, PluginError), match=words):
        open_source(data_of(*classes), "train")


class Broken(Slides):
    def __getitem__(self, index):
        if index == 1:
            raise KeyError("no such slide")
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("cls", "attributes", "words"),
    [
        (Broken, {}, r"example 1 of .*: KeyError: 'no such slide'; expected an example"),
        (Slides, {"labels": [0] * 10}, r"example 1 of .* the label 1, and labels\[1\] is 0"),
        (Slides, {"labels": [0, 1]}, r"labels of .* are int64\[2\]; expected int\[10\]"),
        (Slides, {"labels": np.zeros(10)}, r"labels of .* are float64\[10\]"),
        (
            Slides,
            {"class_names": {0: "even", 1: "odd"}},
            "class_names of .* is dict; expected a list",
        ),
        (Slides, {"class_names": "ab"}, "class_names of .* is str"),
        (Slides, {"class_names": {"even", "odd"}}, "class_names of .* is set; expected a list"),
    ],
)
def test_wrong_examples_and_attributes_are_one_line(cls, attributes, words):
    def slides(data_dir, split):
        made = cls(10)
        made.__dict__ |= {"class_names": ("even", "odd")} | attributes
        return made

    vit_jax.register_source(slides)
    with pytest.raises(DataError, match=words):
        open_source(data_of(), "train")[1]


def test_a_split_that_a_source_does_not_have_is_a_mistake_of_the_config():
    vit_jax.register_source(slides)
    with pytest.raises(PluginError, match=r"'slides' .* has no split 'val'; .*; correct the split"):
        open_source(data_of(), "val")


def test_splits_with_other_class_names_are_refused():
    def slides(data_dir, split):
        made = Slides(10)
        made.class_names = ("even", "odd") if split == "train" else ("odd", "even")
        return made

    vit_jax.register_source(slides)
    with pytest.raises(DataError, match=r"train and test of .* have different class_names"):
        open_source(data_of(), "train+test")


def test_a_source_that_fails_is_one_line_with_its_place():
    def broken(data_dir, split):
        return [][0]

    vit_jax.register_source(broken)
    vit_jax.register_source(slides)
    data = data_of("data.source=broken")
    with pytest.raises(PluginError, match=rf"'broken' \({__file__}, line \d+\): IndexError"):
        open_source(data, "validation")


def test_names_of_the_data_section_and_of_other_sources_are_taken():
    def augment(data_dir, split): ...
    def folder(data_dir, split): ...

    with pytest.raises(PluginError, match="has the name of a part of data"):
        vit_jax.register_source(augment)
    with pytest.raises(PluginError, match=r"source 'folder' of .* has the name of one of vit_jax"):
        vit_jax.register_source(folder)


def test_reader_processes_need_a_sequence_that_can_be_copied():
    def slides(data_dir, split):
        made = Slides(10)
        made.class_names, made.lock = ("even", "odd"), threading.Lock()
        return made

    vit_jax.register_source(slides)
    assert open_source(data_of(), "train").in_memory  # So by default, threads read it.
    with pytest.raises(DataError, match=r"data.num_workers is 2, .* cannot be pickled"):
        open_source(data_of("data.num_workers=2"), "train")


def passed(images, labels, split="train"):
    data = Config.from_mapping(small_mapping()).data.replace(source="passed")
    with passing({"train": (images, labels)}):
        return open_source(data, split)


def test_arrays_are_a_source_and_every_byte_is_their_identity():
    images = np.arange(5 * 4 * 4 * 3, dtype=np.uint8).reshape(5, 4, 4, 3)
    labels = np.array([0, 2, 1, 0, 1])
    source = passed(images, labels)
    np.testing.assert_array_equal(source[3].image, images[3])
    assert (source[1].label, source.class_names) == (2, ("0", "1", "2"))
    assert source.quick_labels
    np.testing.assert_array_equal(passed(images, labels, "train[2:4]").labels(), [1, 0])
    changed = images.copy()
    changed[4, 3, 3, 2] += 1
    other = labels.copy()
    other[4] = 0
    found = {
        passed(*given).fingerprint
        for given in [(images, labels), (changed, labels), (images, other)]
    }
    assert len(found) == 3
    assert passed(images.copy(), labels.astype(np.int32)).fingerprint in found


@pytest.mark.parametrize(
    ("test", "is_said"),
    [(slice(0, 6), True), (slice(0, 2), True), (slice(4, 6), False), (slice(1, 4, 2), False)],
)
def test_splits_with_the_same_images_in_memory_are_said(caplog, test, is_said):
    images = np.zeros((6, 4, 4, 3), np.uint8)
    train = images[::2] if test.step else images[:4]
    pairs = {"train": train, "test": images[test]}
    with passing({split: (shown, np.zeros(len(shown), int)) for split, shown in pairs.items()}):
        pass
    assert ("share images in memory" in caplog.text) == is_said


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (np.zeros((2, 4, 4, 3)), [0, 1], r"float64\[2, 4, 4, 3\]; expected uint8.*convert"),
        (np.zeros((2, 3, 4, 4), np.uint8), [0, 1], "put the channels last"),
        (np.zeros((2, 4, 4, 3), np.uint8), [0], "2 images and 1 labels"),
        (np.zeros((2, 4, 4, 3), np.uint8), np.eye(2), r"float64\[2, 2\]; .*labels.argmax\(1\)"),
        (np.zeros((0, 4, 4, 3), np.uint8), np.zeros(0, int), r"data\['train'\] is empty"),
        ((1, 2), [(1, 2), 3], r"the labels of data\['train'\] are no array"),
    ],
)
def test_arrays_that_are_no_images_or_labels_are_one_line(images, labels, words):
    with pytest.raises(DataError, match=words):
        passed(images, labels)


def test_passed_data_are_there_only_while_fit_runs():
    data = Config.from_mapping(small_mapping()).data.replace(source="passed")
    with pytest.raises(DataError, match=r"no data are passed.*call vit_jax.fit again"):
        open_source(data, "train")
    for given, words in [
        ({"test": 3}, r"data\['test'\] is int"),
        ({"test": {"a": 1}}, r"data\['test'\] is dict"),
        ({"my test": []}, "data has the split 'my test'; expected a name of letters"),
        ({"all": []}, "data has the split 'all'"),
    ]:
        with pytest.raises(DataError, match=words), passing(given):
            pass
