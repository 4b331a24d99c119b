"""Classes made of other features, by hand and read from a dataset as TFDS stores it."""

import io

import numpy as np
import pytest
import tensorflow_datasets as tfds
from images import encode
from tfds_stand_ins import write_tfds

from vit_jax.config.run import Config
from vit_jax.data.decode import decode
from vit_jax.data.sources import TfdsSource, open_source
from vit_jax.data.sources.label_rules import RULES
from vit_jax.errors import ConfigError, DataError


def kitti(*objects):
    return {
        "objects": {
            "type": np.array([kind for kind, _ in objects], np.int64),
            "location": np.array([[0, 1, z] for _, z in objects], np.float32).reshape(-1, 3),
        }
    }


@pytest.mark.parametrize(
    ("objects", "label"),
    [
        ([(0, 5.0), (1, 30.0)], 0),
        ([(2, 8.0)], 0),  # Intervals hold their upper ends.
        ([(2, 8.1)], 1),
        ([(0, 20.5)], 2),
        ([(3, 2.0), (0, 50.0)], 2),  # A pedestrian is no vehicle.
        ([(3, 2.0)], 3),
        ([], 3),
    ],
)
def test_the_distance_to_the_nearest_vehicle(objects, label):
    assert RULES["kitti_distance"].label(kitti(*objects)) == label


@pytest.mark.parametrize(
    ("nearest", "label"), [(7.9, 0), (8.0, 0), (8.2, 1), (9.4, 3), (9.7, 4), (12.0, 5)]
)
def test_the_distance_to_the_nearest_object_in_clevr(nearest, label):
    coordinates = np.array([[3, 4, 20.0], [1, 2, nearest]], np.float32)
    assert RULES["clevr_distance"].label({"objects": {"pixel_coords": coordinates}}) == label


def test_the_number_of_objects_in_clevr():
    for count in range(3, 11):
        assert RULES["clevr_count"].label({"objects": {"size": np.zeros(count)}}) == count - 3


def test_the_bins_of_dsprites():
    place = [RULES["dsprites_location"].label({"label_x_position": x}) for x in range(32)]
    assert place == [x // 2 for x in range(32)]
    angle = [RULES["dsprites_orientation"].label({"label_orientation": a}) for a in range(40)]
    assert angle[:8] == [0, 0, 0, 1, 1, 2, 2, 2]  # floor(a / 2.5)
    assert (angle[-1], len(set(angle))) == (15, 16)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """CLEVR's and dSprites' features that rules read: i + 3 objects, the nearest 8 + i / 4 away."""
    folder = str(tmp_path_factory.mktemp("scenes"))
    size = tfds.features.ClassLabel(names=["small", "large"])
    place = tfds.features.Tensor(shape=(3,), dtype=np.float32)
    features = {
        "image": tfds.features.Image(shape=(4, 4, 1), encoding_format="png"),
        "label_x_position": tfds.features.ClassLabel(num_classes=32),
        "objects": tfds.features.Sequence({"size": size, "pixel_coords": place}),
    }
    examples = [
        {
            "image": io.BytesIO(encode(np.eye(4, dtype=np.uint8))),
            "label_x_position": 4 * i,
            "objects": [
                {"size": "small", "pixel_coords": [1.0, 2.0, 8 + i / 4 + k]} for k in range(i + 3)
            ],
        }
        for i in range(8)
    ]
    write_tfds(folder, "scenes", features, {"train": examples})
    return folder


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("clevr_count", lambda i: i),
        ("clevr_distance", lambda i: [0, 1, 1, 2, 2, 3, 3, 4][i]),
        ("dsprites_location", lambda i: 2 * i),
    ],
)
def test_a_label_rule_sets_the_labels_of_a_dataset(scenes, rule, wanted):
    source = TfdsSource("scenes", "train", scenes, label_rule=rule)
    stored = TfdsSource("scenes", "train", scenes, label_key="label_x_position")
    # By their images' order in the files, which is not that of writing.
    numbers = [stored[k].label // 4 for k in range(8)]
    assert sorted(numbers) == list(range(8))
    assert [example.label for example in source.read(range(8))] == [wanted(i) for i in numbers]
    assert source.labels().tolist() == [wanted(i) for i in numbers]
    assert source.class_names == RULES[rule].class_names
    assert source.fingerprint != stored.fingerprint


def test_dsprites_pixels_become_black_and_white(scenes):
    stored = TfdsSource("scenes", "train", scenes, label_rule="clevr_count")[0]
    assert np.asarray(decode(stored.image)).max() == 1
    assert isinstance(stored.image, bytes)
    seen = TfdsSource("scenes", "train", scenes, label_rule="dsprites_location")[0]
    np.testing.assert_array_equal(np.asarray(decode(seen.image))[..., 0], 255 * np.eye(4))


def test_a_rule_for_another_dataset_is_a_one_line_error(digits_dir):
    with pytest.raises(DataError, match=r"objects, which data\.label_rule=clevr_count"):
        TfdsSource("digits", "train", str(digits_dir), label_rule="clevr_count")


def config_of(**data):
    return Config.from_mapping(
        {
            "model": {"name": "ViT-Ti/4"},
            "data": {"global_batch_size": 8, **data},
            "optimizer": {"learning_rate": 0.1},
            "train_steps": 1,
        }
    )


def test_the_config_names_the_rule(scenes):
    data = {"name": "scenes", "data_dir": scenes, "label_rule": "clevr_count"}
    assert open_source(config_of(**data).data, "train").class_names[0] == "3 objects"
    with pytest.raises(ConfigError, match=r"label_rule' is 'clevr_count', but source=folder does"):
        config_of(**data, source="folder")
