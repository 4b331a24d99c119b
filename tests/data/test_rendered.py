"""Rendered images: classes are found again in the pixels, by matching all patterns everywhere."""

import hashlib
import itertools
import json
import pickle

import numpy as np
import pytest
from scipy.stats import chisquare

from vit_jax.__main__ import main
from vit_jax.config.data import DataConfig, SubsetConfig
from vit_jax.data.arrays import labelled_image
from vit_jax.data.decode import decode
from vit_jax.data.loader import BatchSpec, train_batches
from vit_jax.data.renderer import GLYPHS, MIN_DISTANCE, TASKS, TEXTURES, pair_places, render
from vit_jax.data.sources import LabelledSource, open_source, open_training_data
from vit_jax.data.sources.base import SplitSource, has_quick_labels
from vit_jax.data.sources.rendered import RenderedSource
from vit_jax.data.suspicious import training_warnings
from vit_jax.data.transforms import make_eval_transform
from vit_jax.errors import ConfigError, DataError

NAMES = ("rendered:texture", "rendered:same", "rendered:place", "rendered:mixture@0.25")


def pixels_of(source, indices) -> np.ndarray:
    return np.stack([np.asarray(decode(e.image)) for e in source.read(list(indices))])


def matches(images, patterns) -> np.ndarray:
    """Returns each image's correlation with each pattern at each place: [N, P, tops, lefts]."""
    side = patterns.shape[1]
    gray = images.astype(np.float32).mean(axis=3) - 127.5
    windows = np.lib.stride_tricks.sliding_window_view(gray, (side, side), axis=(1, 2))
    signs = 2 * patterns.astype(np.float32) - 1
    found = windows.reshape(*windows.shape[:3], -1) @ signs.reshape(len(signs), -1).T
    return found.transpose(0, 3, 1, 2) / side


def best(found) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns pattern, top and left of each image's best match."""
    return np.unravel_index(found.reshape(len(found), -1).argmax(axis=1), found.shape[1:])


def two_best(found) -> np.ndarray:
    """Returns (pattern, top, left) of two glyphs that do not overlap: i[N, 2, 3]."""
    first = np.stack(best(found), axis=1)
    places = np.arange(found.shape[2])
    near = [np.abs(places - first[:, axis, None]) < GLYPHS.shape[1] for axis in (1, 2)]
    covered = near[0][:, None, :, None] & near[1][:, None, None, :]
    return np.stack([first, np.stack(best(np.where(covered, -np.inf, found)), axis=1)], axis=1)


def distances(pairs) -> np.ndarray:
    """Returns the distances of centres in pixels; both glyphs have the same size."""
    return np.linalg.norm(pairs[:, 0, 1:] - pairs[:, 1, 1:], axis=1)


def test_the_class_of_texture_is_the_pattern_in_the_pixels():
    source = RenderedSource("rendered:texture", "train")
    shown, tops, lefts = best(matches(pixels_of(source, range(800)), TEXTURES))
    np.testing.assert_array_equal(shown, source.labels()[:800])
    for places in (tops, lefts):  # Everywhere from 0 to 28, equally often.
        assert (places.min(), places.max()) == (0, 28)
        assert chisquare(np.bincount(places, minlength=29)).pvalue > 1e-3


def test_the_class_of_same_says_whether_two_distant_glyphs_are_equal():
    source = RenderedSource("rendered:same", "test")
    pairs = two_best(matches(pixels_of(source, range(800)), GLYPHS))
    labels = source.labels()[:800]
    np.testing.assert_array_equal(pairs[:, 0, 0] == pairs[:, 1, 0], labels)
    assert distances(pairs).min() >= MIN_DISTANCE == 16
    # One glyph says nothing of the class.
    for label in (0, 1):
        assert chisquare(np.bincount(pairs[labels == label, :, 0].ravel())).pvalue > 1e-3


def test_pair_places_are_all_with_distant_centres():
    side = range(26)
    corners = list(itertools.product(side, side))
    far = sum((a - c) ** 2 + (b - d) ** 2 >= 256 for a, b in corners for c, d in corners)
    places = pair_places()
    assert len(places) == len(np.unique(places, axis=0)) == far == 167_100


def test_the_class_of_place_is_the_cell_of_the_centre():
    source = RenderedSource("rendered:place", "train[1000:1900]")
    glyphs, tops, lefts = best(matches(pixels_of(source, range(900)), GLYPHS))
    rows, columns = ((3 * (corner + 3.5) / 32).astype(int) for corner in (tops, lefts))
    np.testing.assert_array_equal(3 * rows + columns, source.labels())
    assert source.class_names[5] == "middle right"
    # All glyphs are equally frequent, and all places in a cell: 8, 10 and 8 in each direction.
    assert chisquare(np.bincount(glyphs, minlength=16)).pvalue > 1e-3
    for corner in (tops, lefts):
        expected = 300 / np.repeat([8, 10, 8], [8, 10, 8])
        assert chisquare(np.bincount(corner, minlength=26), expected).pvalue > 1e-3


@pytest.mark.parametrize("share", ["0.1", "0.25", "0.5"])
def test_a_mixture_has_the_share_of_textures_and_both_rules(share):
    source = RenderedSource(f"rendered:mixture@{share}", "train")
    images = pixels_of(source, range(400))
    labels = source.labels()[:400]
    with_glyphs, with_textures = matches(images, GLYPHS), matches(images, TEXTURES[[1, 4]])
    # A glyph matches with about 7 x 64; the noise has a standard deviation of 21.
    glyphs_seen = with_glyphs.reshape(400, -1).max(axis=1) > 320
    assert (~glyphs_seen).sum() == float(share) * 400
    pairs = two_best(with_glyphs[glyphs_seen])
    np.testing.assert_array_equal(pairs[:, 0, 0] == pairs[:, 1, 0], labels[glyphs_seen])
    np.testing.assert_array_equal(best(with_textures[~glyphs_seen])[0], labels[~glyphs_seen])
    for kind in (glyphs_seen, ~glyphs_seen):  # Both kinds have balanced classes.
        assert 2 * labels[kind].sum() == kind.sum()


@pytest.mark.parametrize(("share", "task"), [("0", "same"), ("1", "texture")])
def test_a_mixture_of_one_kind_shows_only_that(share, task):
    images = pixels_of(RenderedSource(f"rendered:mixture@{share}", "train"), range(100))
    has_glyph = matches(images, GLYPHS).reshape(100, -1).max(axis=1) > 320
    assert (has_glyph == (task == "same")).all()


def test_another_share_keeps_the_images_of_the_same_kind():
    few, many = (
        pixels_of(RenderedSource(f"rendered:mixture@{share}", "train"), range(400))
        for share in ("0.25", "0.75")
    )
    assert (few == many).all(axis=(1, 2, 3)).sum() == 200


def test_noise_is_uniform_and_brightness_says_nothing():
    source = RenderedSource("rendered:texture", "train")
    images = pixels_of(source, range(800)).astype(int)
    means = images.mean(axis=(1, 2, 3))
    # The mean of a value is 64 + 63.5; its variance is (128^2 - 1) / 12, and 64^2 more in the
    # 16 pixels of the texture.
    error = np.sqrt((128**2 - 1) / 12 / 3072)
    by_class = [means[source.labels()[:800] == label].mean() for label in range(8)]
    assert np.abs(np.array(by_class) - 127.5).max() < 4 * error / 10
    corners = images[:, 0, 0][np.stack([*best(matches(images, TEXTURES))])[1:].min(axis=0) > 0]
    assert chisquare(np.bincount(corners.ravel() - 64, minlength=128)).pvalue > 1e-3
    outside = ((images < 64) | (images > 191)).any(axis=3).sum(axis=(1, 2))
    assert outside.max() <= 16


def test_patterns_differ_and_are_half_ones():
    for patterns, ones, least in ((GLYPHS, 24, 20), (TEXTURES, 8, 8)):
        assert (patterns.sum(axis=(1, 2)) == ones).all()
        pairs = itertools.combinations(patterns, 2)
        assert min((a != b).sum() for a, b in pairs) >= least


@pytest.mark.parametrize("name", NAMES)
def test_every_part_of_a_split_has_balanced_classes(name):
    for split in ("train", "test", "train[1234:5677]", "train[99%:]"):
        source = RenderedSource(name, split)
        counts = np.bincount(source.labels(), minlength=len(source.class_names))
        assert len(source) == counts.sum()
        assert counts.max() - counts.min() <= 1
    assert len(RenderedSource(name, "train")) == 10_000_000
    assert len(RenderedSource(name, "test")) == 10_000


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_the_same_in_any_batch_order_and_split(name):
    source = RenderedSource(name, "train")
    wanted = [9_999_999, 5, 123_456, 5]
    together = source.read(wanted)
    assert together == [source[i] for i in wanted]
    assert [e.label for e in together] == source.labels()[wanted].tolist()
    assert together[1] == RenderedSource(name, "test[:7]+train[3:10]")[9]
    assert together[0].id == "train 9999999"
    assert pickle.loads(pickle.dumps(source)).read(wanted) == together  # As worker processes do.
    assert len({e.image for e in together}) == 3
    assert source.read([]) == []
    for index in (-1, 10_000_000):
        with pytest.raises(IndexError, match="10,000,000 examples"):
            source.read([0, index])


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("rendered:texture", "54798a77538e5f29"),
        ("rendered:same", "f17690630d5def63"),
        ("rendered:place", "aeaa1f9c362ab905"),
        ("rendered:mixture@0.25", "e5b0e798205ab5b4"),
    ],
)
def test_pixels_and_labels_never_change(name, digest):
    """A change needs another `renderer.VERSION`, which changes the fingerprints."""
    examples = RenderedSource(name, "train[:8]+train[-8:]+test[:8]").read(range(24))
    found = hashlib.sha256(b"".join(e.image + bytes([e.label]) for e in examples))
    assert found.hexdigest()[:16] == digest


@pytest.mark.parametrize("name", NAMES)
def test_no_two_images_are_equal_within_or_across_splits(name):
    images = [e.image for e in RenderedSource(name, "train[:2000]+test[:2000]").read(range(4000))]
    assert len(set(images)) == 4000


def test_another_seed_gives_other_images_of_the_same_classes():
    one, other = (RenderedSource(f"rendered:place{seed}", "test") for seed in ("", ":1"))
    assert not {e.image for e in one.read(range(500))} & {e.image for e in other.read(range(500))}
    np.testing.assert_array_equal(one.labels(), other.labels())
    assert RenderedSource("rendered:place:0", "test")[3] == one[3]


def test_tasks_share_no_noise():
    first = [render(task, 0, np.arange(1), np.arange(1), 500_000)[0] for task in TASKS]
    for a, b in itertools.combinations(first, 2):
        assert (a == b).mean() < 0.02  # By chance 1 / 128.


def test_fingerprints_differ_by_task_share_seed_and_split():
    names = [*NAMES, "rendered:mixture@0.5", "rendered:same:1"]
    splits = ["train", "test", "train[:50%]"]
    prints = {RenderedSource(n, s).fingerprint for n in names for s in splits}
    assert len(prints) == len(names) * len(splits)
    same = [
        ("rendered:same", "train[:1%]"),
        ("rendered:same:0", "train[:100000]"),
    ]
    assert len({RenderedSource(*one).fingerprint for one in same}) == 1
    presets = [RenderedSource("rendered:same", s) for s in ("minival_1_percent", "train[99%:]")]
    assert presets[0].fingerprint == presets[1].fingerprint


def config(name="rendered:texture", **changes) -> DataConfig:
    return DataConfig(name=name, global_batch_size=8, image_size=32, **changes)


def test_a_config_opens_it_and_subsets_are_nested_and_balanced():
    small, large = (open_training_data(config(subset=SubsetConfig(per_class=n))) for n in (3, 10))
    assert large.manifest is not None
    assert large.manifest["examples_per_class"] == [10] * 8
    assert large.manifest["of"] == 10_000_000
    ids = [{e.id for e in t.source.read(range(len(t.source)))} for t in (small, large)]
    assert [len(i) for i in ids] == [24, 80]
    assert ids[0] < ids[1]
    source = open_source(config(), "test")
    assert isinstance(source, RenderedSource)
    assert isinstance(source, LabelledSource)
    assert isinstance(source, SplitSource)
    assert has_quick_labels(source)


def test_evaluated_training_examples_are_told():
    train, test = (open_source(config(), split) for split in ("train", "test"))
    assert training_warnings(train, {"test": test}, uses_labels=True) == []
    held_out = open_source(config(), "train[99%:]")
    (warning,) = training_warnings(train, {"held_out": held_out}, uses_labels=True)
    assert warning.startswith("100,000 of the 100,000 examples of evaluation split 'held_out'")


def test_the_loader_passes_the_pixels_on_unchanged():
    source = RenderedSource("rendered:same", "train")
    transform = make_eval_transform(32, "resize")
    spec = BatchSpec(64, range(64), num_threads=2, num_workers=0)
    steps = {"start_step": 5, "end_step": 6}
    with train_batches(source, labelled_image(transform, 32, 2), spec, seed=0, **steps) as feed:
        batch = next(feed)
    np.testing.assert_array_equal(batch["image"], pixels_of(source, batch["index"].tolist()))
    np.testing.assert_array_equal(batch["label"], source.labels()[batch["index"]])


@pytest.mark.parametrize(
    ("name", "got", "fix"),
    [
        ("rendered:textur", "no task 'textur'", "did you mean 'rendered:texture'?"),
        ("rendered:", "no task ''", "did you mean"),
        ("rendered:mixture", "no share of textures", "write rendered:mixture@0.5"),
        ("rendered:same@0.5", "a share, '0.5'", "write rendered:same"),
        ("rendered:mixture@1.5", "the share '1.5'", "write rendered:mixture@0.5"),
        ("rendered:mixture@", "the share ''", "write rendered:mixture@0.5"),
        ("rendered:mixture@nan", "the share 'nan'", "write rendered:mixture@0.5"),
        ("rendered:mixture@inf", "the share 'inf'", "write rendered:mixture@0.5"),
        ("rendered:mixture@-0.1", "the share '-0.1'", "write rendered:mixture@0.5"),
        ("rendered:same:x", "the seed 'x'", "write a number such as :1"),
        ("rendered:same:-1", "the seed '-1'", "write a number such as :1"),
    ],
)
def test_wrong_names_are_errors_that_say_what_to_write(name, got, fix):
    with pytest.raises(DataError) as caught:
        RenderedSource(name, "train")
    assert got in caught.value.got
    assert fix in caught.value.fix


def test_a_wrong_split_feature_and_label_rule_are_errors():
    with pytest.raises(DataError, match="Unknown split 'validation'"):
        open_source(config(), "validation")
    with pytest.raises(DataError, match="no feature 'depth'"):
        open_source(config(), "train", ("label", "depth"))
    with pytest.raises(ConfigError, match="'dsprites_location' for rendered images"):
        config(label_rule="dsprites_location")


class TestCommands:
    def test_info_shows_sizes_and_classes(self, capsys):
        assert main(["data", "info", "rendered:place", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["source"], found["classes"]) == ("rendered", 9)
        sizes = {split: facts["examples"] for split, facts in found["splits"].items()}
        assert sizes == {"train": 10_000_000, "test": 10_000}

    def test_check_reads_the_first_examples_of_each_split(self, capsys, monkeypatch):
        monkeypatch.setattr("vit_jax.commands.data._RENDERED_CHECKED", 90)
        assert main(["data", "check", "rendered:place", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["warnings"] == []
        wanted = {"examples": 90, "per_class": [10] * 9, "formats": {"PPM": 90}, "bad": {}}
        assert found["splits"] == {"train": wanted, "test": wanted}

    def test_list_names_the_tasks(self, capsys, tmp_path):
        assert main(["data", "list", f"--data_dir={tmp_path}"]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        names = [words[0] for words in lines if words and words[0].startswith("rendered:")]
        assert names == [
            "rendered:texture", "rendered:same", "rendered:place", "rendered:mixture@SHARE",
        ]  # fmt: skip

    def test_the_feed_can_be_measured(self, capsys):
        arguments = ["--image_size=32", "--seconds=0.05", "--rounds=1", "--processes=0"]
        assert main(["bench", "feed", "--source=rendered:same", *arguments]) == 0
        assert "feed: rendered:same train" in capsys.readouterr().out

    def test_few_shot_accuracies_of_two_tasks_have_two_names(self, capsys, ours_path):
        small = ["--train_split=train[:100]", "--test_split=test[:50]", "--shots=1", "--seeds=0"]
        datasets = ["--dataset=rendered:texture", "--dataset=rendered:mixture@0.5"]
        arguments = ["fewshot", str(ours_path), *datasets, *small, "--crop=resize", "--l2=4"]
        assert main([*arguments, "--json"]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        for name in ("rendered_texture", "rendered_mixture@0.5"):
            assert 0 <= found[f"fewshot/{name}/1_shot/accuracy_top1"] <= 1
