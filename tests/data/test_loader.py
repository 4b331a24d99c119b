import dataclasses
import itertools
import os

import jax
import numpy as np
import pytest
from data.files import InMemory, assert_same_batches
from image_files import write_folder
from images import encode

from vit_jax.config.data import DataConfig
from vit_jax.data import batch_buffers
from vit_jax.data.arrays import ArraySpec, Preprocessing, batch_shapes, labelled_image
from vit_jax.data.decode import decode
from vit_jax.data.loader import BatchSpec, eval_batches, on_device, reader_counts, train_batches
from vit_jax.data.prepare.pack import PackOptions, pack
from vit_jax.data.sources import Example, open_source
from vit_jax.data.sources.listing import list_images
from vit_jax.errors import DataError


def memory(count: int, changes: dict[int, Example] | None = None, **options) -> InMemory:
    """Examples in memory: image i has every pixel at i, label i % 10."""
    images = (encode(np.full((4, 4, 3), index, np.uint8)) for index in range(count))
    examples = {i: Example(image, i % 10, f"number {i}") for i, image in enumerate(images)}
    return InMemory((examples | (changes or {})).values(), "0123456789", **options)


def plain(encoded: bytes, rng: np.random.Generator) -> np.ndarray:
    return np.asarray(decode(encoded))


def noisy(encoded: bytes, rng: np.random.Generator) -> np.ndarray:
    """The example's number, and a drawn one."""
    return np.stack([plain(encoded, rng)[0, 0], rng.integers(256, size=3, dtype=np.uint8)])


def with_image(transform, *shape: int) -> Preprocessing:
    """Labelled images of a shape, ten classes."""
    preprocessing = labelled_image(transform, 0, num_classes=10)
    arrays = {**preprocessing.arrays, "image": ArraySpec(shape, np.uint8)}
    return dataclasses.replace(preprocessing, arrays=arrays)


PLAIN, NOISY = with_image(plain, 4, 4, 3), with_image(noisy, 2, 3)


def spec(batch_size: int, rows: range | None = None, threads: int = 0, **changes) -> BatchSpec:
    return BatchSpec(
        global_batch_size=batch_size,
        rows=range(batch_size) if rows is None else rows,
        num_threads=threads,
        **changes,
    )


def train(source, spec, start=0, end=10, seed=0, preprocessing=NOISY):
    steps = {"seed": seed, "start_step": start, "end_step": end}
    return list(train_batches(source, lambda step: preprocessing, spec, **steps))


def numbers(batches) -> np.ndarray:
    """Numbers of the examples, batch after batch."""
    return np.concatenate(
        [b["image"][:, 0, 0, 0] if b["image"].ndim == 4 else b["image"][:, 0, 0] for b in batches]
    )


@pytest.fixture(scope="module")
def source():
    return memory(50)


@pytest.fixture(scope="module")
def batches(source):
    """Ten batches of eight: one and a half epochs."""
    return train(source, spec(8))


def test_a_batch_has_images_their_labels_their_places_in_the_source_and_a_true_mask(batches):
    assert len(batches) == 10
    for batch in batches:
        numbers = batch["image"][:, 0, 0]
        assert (batch["image"].shape, batch["image"].dtype) == ((8, 2, 3), np.uint8)
        for name, expected, dtype in (
            ("label", numbers % 10, np.int32),
            ("index", numbers, np.int64),
            ("mask", [True] * 8, np.bool_),
        ):
            np.testing.assert_array_equal(batch[name], expected)
            assert batch[name].dtype == dtype


def test_each_example_is_in_a_batch_several_times_with_different_augmentations(source):
    whole = train(source, spec(12, repeats=3))
    found = numbers(whole).reshape(10, 12)
    for batch in found:
        # Four examples, three copies, four rows apart.
        assert len(set(batch[:4])) == 4
        np.testing.assert_array_equal(batch, np.tile(batch[:4], 3))
    # 120 rows are 40 of the 50 examples of an epoch.
    assert len(set(found.ravel())) == 40
    drawn = np.concatenate([b["image"][:, 1] for b in whole])
    assert len(np.unique(drawn, axis=0)) == 120
    # After a resume, and on two hosts.
    assert_same_batches(train(source, spec(12, repeats=3), start=4), whole[4:])
    for rows in (range(6), range(6, 12)):
        part = train(source, spec(12, rows, repeats=3))
        np.testing.assert_array_equal(
            numbers(part).reshape(10, 6), found[:, rows.start : rows.stop]
        )


def test_copies_of_an_example_at_the_end_of_a_batch_continue_in_the_next(source):
    found = numbers(train(source, spec(8, repeats=3), end=3)).reshape(3, 8)
    counts = [int((found == number).sum()) for number in set(found.ravel())]
    assert counts == [3] * 8


@pytest.mark.parametrize("threads", [0, 1, 4, 16])
@pytest.mark.parametrize("start", [0, 1, 9])
def test_batches_are_the_same_with_any_number_of_threads_and_from_any_start(
    source, batches, threads, start
):
    assert_same_batches(train(source, spec(8, threads=threads), start=start), batches[start:])
    one_ahead = spec(8, threads=threads, prefetch=1)
    assert_same_batches(train(source, one_ahead, start=start), batches[start:])


@pytest.mark.parametrize("threads", [0, 4])
def test_each_step_may_have_a_preprocessing_of_its_own(source, batches, threads, monkeypatch):
    monkeypatch.setattr(batch_buffers, "_MIN_BYTES", 1)
    one_of = (NOISY, PLAIN)
    with train_batches(
        source, lambda step: one_of[step % 2], spec(8, threads=threads),
        seed=0, start_step=0, end_step=4,
    ) as feed:  # fmt: skip
        found = [{name: array.copy() for name, array in batch.items()} for batch in feed]
    assert [batch["image"].shape for batch in found] == [(8, 2, 3), (8, 4, 4, 3)] * 2
    assert_same_batches(found[::2], batches[:4:2])
    np.testing.assert_array_equal(found[1]["index"], batches[1]["index"])
    np.testing.assert_array_equal(found[1]["image"][:, 0, 0], batches[1]["image"][:, 0])


@pytest.mark.parametrize("threads", [0, 4])
def test_batch_memory_is_reused_and_device_arrays_keep_their_content(
    source, batches, threads, monkeypatch
):
    monkeypatch.setattr(batch_buffers, "_MIN_BYTES", 1)
    places, on_device = set(), []
    ahead = spec(8, threads=threads, prefetch=1)
    feed = train_batches(source, lambda step: NOISY, ahead, seed=0, start_step=0, end_step=10)
    for batch in feed:
        places.add(batch["image"].__array_interface__["data"][0])
        on_device.append(jax.device_put(batch["image"]))  # On a CPU it may be the same memory.
        np.testing.assert_array_equal(batch["image"], batches[len(on_device) - 1]["image"])
        if len(on_device) > 3:
            on_device[-4] = np.asarray(on_device[-4]).copy()
    for found, batch in zip(on_device, batches, strict=True):
        np.testing.assert_array_equal(found, batch["image"])
    assert threads or len(places) < 8


@pytest.mark.parametrize("hosts", [2, 4])
def test_rows_of_several_hosts_form_the_global_batch(source, batches, hosts):
    size = 8 // hosts
    parts = [train(source, spec(8, rows=range(h * size, (h + 1) * size))) for h in range(hosts)]
    together = [
        {name: np.concatenate([rows[name] for rows in step]) for name in step[0]}
        for step in zip(*parts, strict=True)
    ]
    assert_same_batches(together, batches)


def test_every_epoch_of_every_seed_is_another_permutation_of_all_examples(source):
    # Batches of 8 do not divide 50: epochs end inside a batch.
    orders = [numbers(train(source, spec(8), end=25, seed=seed)) for seed in range(3)]
    epochs = np.concatenate(orders).reshape(12, 50)
    for epoch in epochs:
        assert sorted(epoch) == list(range(50))
    for one, other in itertools.combinations([np.arange(50), *epochs], 2):
        # Two random permutations agree in one place on average.
        assert (one == other).sum() < 10


def test_a_batch_may_be_larger_than_an_epoch():
    order = numbers(train(memory(5), spec(12), end=5))
    for epoch in order.reshape(12, 5):
        assert sorted(epoch) == list(range(5))


def test_order_does_not_depend_on_the_batch_size(source):
    one, other = (numbers(train(source, spec(b), end=60 // b)) for b in (5, 20))
    np.testing.assert_array_equal(one, other)


def test_augmentation_differs_by_position_and_by_seed(source):
    def drawn(seed):
        return np.concatenate([b["image"][:, 1] for b in train(source, spec(8), seed=seed)])

    assert len(np.unique(drawn(0), axis=0)) == 80
    assert (drawn(0) != drawn(1)).any(axis=1).all()


def test_the_order_of_the_first_batch_equals_the_golden_one(source):
    # A change here changes the data of every run.
    assert numbers(train(source, spec(8), end=1)).tolist() == [24, 29, 14, 25, 19, 20, 13, 16]


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("batch_size", [1, 8, 23, 50, 64])
def test_evaluation_has_every_example_once_in_order(source, batch_size, threads):
    found = list(eval_batches(source, PLAIN, spec(batch_size, threads=threads)))
    assert len(found) == -(-50 // batch_size)
    assert all(len(b["mask"]) == len(b["image"]) == len(b["label"]) == batch_size for b in found)
    masks = np.concatenate([b["mask"] for b in found])
    assert masks.tolist() == [True] * 50 + [False] * (len(found) * batch_size - 50)
    assert numbers(found)[masks].tolist() == list(range(50))
    labels = np.concatenate([b["label"] for b in found])
    assert labels[masks].tolist() == [i % 10 for i in range(50)]


@pytest.mark.parametrize(("hosts", "batch_size"), [(2, 16), (4, 64), (4, 8)])
def test_evaluation_over_hosts_equals_one_host_with_the_same_number_of_batches(hosts, batch_size):
    # 50 examples in batches of 64: the last host has none of its own.
    source, size = memory(50), batch_size // hosts
    parts = [
        list(eval_batches(source, PLAIN, spec(batch_size, rows=range(h * size, (h + 1) * size))))
        for h in range(hosts)
    ]
    assert {len(p) for p in parts} == {-(-50 // batch_size)}
    seen = []
    for part in parts:
        for batch in part:
            assert batch["image"].shape == (size, 4, 4, 3)
            seen += batch["image"][batch["mask"], 0, 0, 0].tolist()
    assert sorted(seen) == list(range(50))


@pytest.mark.parametrize(
    ("image", "label", "got"),
    [
        (None, 10, "label 10; expected 0 to 9"),
        (None, -1, "label -1; expected 0 to 9"),
        (b"not a picture", 7, "unreadable image"),
    ],
)
@pytest.mark.parametrize("threads", [0, 2])
def test_a_bad_example_is_named(image, label, got, threads):
    bad = Example(image or memory(1)[0].image, label, "7 (the bad one)")
    source = memory(20, {7: bad})
    for run in (
        lambda: list(eval_batches(source, PLAIN, spec(8, threads=threads))),
        lambda: train(source, spec(8, threads=threads)),
    ):
        with pytest.raises(DataError) as caught:
            run()
        assert f"example 7 (the bad one) of memory: {got}" in str(caught.value)
        assert "data.on_bad_example=skip" in caught.value.fix


def test_batches_before_a_bad_example_are_returned():
    source = memory(20, {19: Example(b"", 7, "19")})
    feed = eval_batches(source, PLAIN, spec(4, threads=2))
    assert numbers([next(feed) for _ in range(4)]).tolist() == list(range(16))
    with pytest.raises(DataError):
        next(feed)


def test_positions_beyond_32_bits_work(source):
    # Position 5 * 10**10 is the first of an epoch.
    order = numbers(train(source, spec(10), start=5 * 10**9, end=5 * 10**9 + 5))
    assert sorted(order) == list(range(50))


NO_IMAGES = {7: Example(b"no image", 7, "number 7"), 8: Example(b"", 8, "number 8")}
OUT_OF_RANGE = {7: Example(memory(1)[0].image, 99, "number 7")}
SKIP = pytest.mark.parametrize(
    ("broken", "bad"),
    [
        (memory(50, NO_IMAGES), [7, 8]),
        (memory(50, OUT_OF_RANGE), [7]),
        (memory(50, unreadable=[7]), [7]),
    ],
    ids=["no images", "label out of range", "no permission"],
)


@SKIP
def test_the_next_good_example_replaces_a_bad_one(source, broken, bad):
    got, want = (train(s, spec(10, on_bad_example="skip"), end=5) for s in (broken, source))
    is_bad = np.isin(numbers(want), bad)
    replaced = np.where(is_bad, bad[-1] + 1, numbers(want))
    np.testing.assert_array_equal(numbers(got), replaced)
    for name, expected in (
        ("skipped", np.where(is_bad, numbers(want).astype(int), -1)),
        ("label", replaced % 10),
        ("index", replaced),
    ):
        np.testing.assert_array_equal(np.concatenate([batch[name] for batch in got]), expected)
    # Every other example draws what it would have drawn without the bad ones.
    for one, other in zip(got, want, strict=True):
        good = one["skipped"] < 0
        np.testing.assert_array_equal(one["image"][good], other["image"][good])


@SKIP
def test_evaluation_does_not_count_a_skipped_example(broken, bad):
    batches = list(eval_batches(broken, PLAIN, spec(16, on_bad_example="skip")))
    counted = np.concatenate([b["image"][b["mask"]][:, 0, 0, 0] for b in batches])
    np.testing.assert_array_equal(counted, [i for i in range(50) if i not in bad])


def test_a_file_that_cannot_be_read_is_named():
    with pytest.raises(DataError, match="a damaged file"):
        train(memory(50, unreadable=[7]), spec(10), end=5)


def test_a_dataset_of_only_bad_examples_is_an_error():
    broken = memory(3, {i: Example(b"no image", 0, str(i)) for i in range(3)})
    with pytest.raises(DataError, match="100 bad examples in a row in memory, starting at"):
        train(broken, spec(2, on_bad_example="skip"), end=1)


@pytest.mark.parametrize(
    ("cores", "in_memory", "asked", "got"),
    [
        (2, False, {}, (0, 2)),
        (8, False, {}, (0, 8)),
        (16, False, {}, (2, 8)),
        (100, False, {}, (13, 8)),
        (16, False, {"num_workers": 0}, (0, 16)),
        (16, False, {"num_workers": 4}, (4, 4)),
        (16, False, {"threads": 3, "num_workers": 1}, (1, 3)),
        (16, True, {}, (0, 16)),
        (16, True, {"num_workers": 2}, (2, 8)),
    ],
)
def test_processes_and_threads_follow_the_number_of_cores(
    cores, in_memory, asked, got, monkeypatch
):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert reader_counts(spec(8, **{"threads": None, **asked}), in_memory=in_memory) == got


@pytest.fixture
def captions(tmp_path):
    """A prepared dataset whose text feature "id" is the name of the image file."""
    photos = write_folder(tmp_path / "photos")
    pack(list_images(photos), tmp_path, PackOptions(name="photos"))
    return {"name": "photos", "data_dir": str(tmp_path), "global_batch_size": 8}


def test_a_task_can_read_other_features_into_other_arrays(captions):
    """Two views and the bytes of a caption, without labels."""

    def make_row(example, rng):
        text = np.frombuffer(example.features["id"], np.uint8)[:10]
        view = np.asarray(decode(example.image))[:2, :2]
        return {"view": view, "other": view // 2, "tokens": np.resize(text, 12)}

    arrays = {
        "view": ArraySpec((2, 2, 3), np.uint8),
        "other": ArraySpec((2, 2, 3), np.uint8),
        "tokens": ArraySpec((12,), np.int32, padding=-1),
    }
    source = open_source(DataConfig.from_mapping(captions), "train", features=("id",))
    assert source.class_names == ()
    assert source[0].label == -1
    found = list(eval_batches(source, Preprocessing(arrays, make_row), spec(16, threads=2)))
    assert [batch["mask"].sum() for batch in found] == [16, 4]
    assert (found[1]["tokens"][4:] == -1).all()
    texts = [bytes(row[:10].astype(np.uint8)).decode() for row in found[0]["tokens"]]
    assert texts == [source[i].features["id"].decode()[:10] for i in range(16)]
    np.testing.assert_array_equal(found[0]["other"], found[0]["view"] // 2)
    shapes = batch_shapes(arrays, 16)
    for name, array in on_device(found[0]).items():
        assert (shapes[name].shape, shapes[name].dtype) == (array.shape, array.dtype)
    labelled = open_source(DataConfig.from_mapping(captions), "train")
    assert labelled.fingerprint != source.fingerprint
    assert labelled[3].features == {}


def test_a_missing_feature_is_named(captions):
    with pytest.raises(DataError, match="has no feature 'caption', which the task reads"):
        open_source(DataConfig.from_mapping(captions), "train", features=("caption",))


def test_a_row_of_another_shape_than_its_spec_is_an_error(source):
    wrong = with_image(plain, 5, 4, 3)
    with pytest.raises(
        ValueError, match=r"'image' has shape \(4, 4, 3\), its ArraySpec has \(5, 4, 3\)"
    ):
        train(source, spec(8), end=1, preprocessing=wrong)
