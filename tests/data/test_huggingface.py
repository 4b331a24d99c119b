import sys

import numpy as np
import pytest
from image_files import encoded, number_of

from vit_jax.config.data import DataConfig
from vit_jax.data.sources import LabelledSource, open_source
from vit_jax.data.sources.huggingface import HuggingFaceSource, open_splits
from vit_jax.errors import DataError


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    data = DataConfig(source="huggingface", name="owner/name", global_batch_size=1)
    with pytest.raises(DataError, match="pip install datasets"):
        open_source(data, "train")


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Returns save(features): 30 training and 9 test images written by save_to_disk."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    datasets.disable_progress_bars()

    def save(image="img", label="label", extra=(), start=0):
        names = datasets.ClassLabel(names=["a", "b", "c"])
        features = {image: datasets.Image(), label: names, **dict.fromkeys(extra, names)}

        def part(count, offset):
            numbers = range(count)
            images = [{"bytes": encoded(i + offset + start), "path": None} for i in numbers]
            columns = {image: images, **{k: [i % 3 for i in numbers] for k in (label, *extra)}}
            return datasets.Dataset.from_dict(columns, features=datasets.Features(features))

        splits = datasets.DatasetDict({"train": part(30, 0), "test": part(9, 100)})
        splits.save_to_disk(str(tmp_path / f"saved{start}"))
        return str(tmp_path / f"saved{start}")

    return save


@pytest.mark.interop
@pytest.mark.filterwarnings("ignore")
class TestReal:
    """With the package itself."""

    def test_a_saved_dataset_is_a_source(self, saved):
        source = HuggingFaceSource("tiny", "train[10:20]+test", saved())
        assert isinstance(source, LabelledSource)
        assert source.class_names == ("a", "b", "c")
        assert len(source) == 19
        found = source.read([0, 10, 3])
        assert [number_of(e.image) for e in found] == [10, 100, 13]
        assert [e.label for e in found] == [1, 0, 1]
        assert source.read([3]) == [source[3]]
        expected = [i % 3 for i in range(10, 20)] + [i % 3 for i in range(9)]
        assert source.labels().tolist() == expected
        # The bytes are those that were stored.
        assert source[0].image == encoded(10)

    @pytest.mark.parametrize(
        ("values", "names"),
        [
            ([10, 2, None], ("2", "10")),
            ([10, 2, -1], ("2", "10")),
            (["cow", "ant", None], ("ant", "cow")),
        ],
    )
    def test_labels_of_integers_and_texts(self, saved, tmp_path, values, names):
        import datasets

        def part(count):
            images = [{"bytes": encoded(i), "path": None} for i in range(count)]
            columns = {"img": images, "label": [values[i % 3] for i in range(count)]}
            return datasets.Dataset.from_dict(columns).cast_column("img", datasets.Image())

        # The training split has one of the two classes.
        datasets.DatasetDict({"train": part(1), "test": part(3)}).save_to_disk(str(tmp_path / "d"))
        train, test = (HuggingFaceSource("d", s, str(tmp_path / "d")) for s in ("train", "test"))
        assert train.class_names == test.class_names == names
        assert [e.label for e in test.read([0, 1, 2])] == test.labels().tolist() == [1, 0, -1]
        assert train[0].label == 1

    def test_a_config_opens_it(self, saved):
        data = DataConfig(source="huggingface", name="tiny", data_dir=saved(), global_batch_size=1)
        assert len(open_source(data, "train[:50%]")) == 15

    def test_fingerprint_is_stable_and_differs_by_split_and_content(self, saved):
        one, other = saved(), saved(start=40)
        same = [HuggingFaceSource("tiny", "train", one).fingerprint for _ in range(2)]
        assert same[0] == same[1]
        prints = {
            *same,
            HuggingFaceSource("tiny", "test", one).fingerprint,
            HuggingFaceSource("tiny", "train", other).fingerprint,
        }
        assert len(prints) == 3

    def test_one_of_several_class_features_must_be_named(self, saved):
        folder = saved(label="fine", extra=["coarse"])
        with pytest.raises(DataError) as caught:
            HuggingFaceSource("tiny", "train", folder)
        assert caught.value.expected == "one of coarse, fine"
        assert caught.value.fix == "set data.label_key"
        source = HuggingFaceSource("tiny", "train", folder, label_key="coarse")
        np.testing.assert_array_equal(source.labels(), np.arange(30) % 3)

    def test_all_splits_can_be_opened(self, saved):
        found = open_splits("tiny", saved(), image_key=None, label_key=None)
        assert {name: len(source) for name, source in found.items()} == {"train": 30, "test": 9}

    def test_a_folder_without_a_dataset_and_a_missing_split_are_errors(self, saved, tmp_path):
        with pytest.raises(DataError, match="no dataset in"):
            HuggingFaceSource("tiny", "train", str(tmp_path / "gone"))
        with pytest.raises(DataError, match="Unknown split 'val'"):
            HuggingFaceSource("tiny", "val", saved())

    def test_missing_images_and_labels_are_bad_examples(self, tmp_path):
        datasets = pytest.importorskip("datasets")
        features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
        columns = {"image": [{"bytes": encoded(0), "path": None}, None], "label": [None, 1]}
        rows = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        rows.save_to_disk(str(tmp_path / "odd"))
        source = HuggingFaceSource("odd", "train", str(tmp_path / "odd"))
        assert [(e.image == b"", e.label) for e in source.read([0, 1])] == [(False, -1), (True, 1)]
        assert source.labels().tolist() == [-1, 1]

    def test_an_empty_dataset_is_a_one_line_error(self, tmp_path):
        datasets = pytest.importorskip("datasets")
        features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
        empty = {"image": [], "label": []}
        rows = datasets.Dataset.from_dict(empty, features=datasets.Features(features))
        rows.save_to_disk(str(tmp_path / "empty"))
        with pytest.raises(DataError, match="empty"):
            HuggingFaceSource("empty", "train", str(tmp_path / "empty"))
