import numpy as np
import pytest
from data.files import InMemory
from images import encode, noise, photo

from vit_jax.config.data import DataConfig
from vit_jax.data.cache import DecodedSource, cached
from vit_jax.data.decode import decode
from vit_jax.data.jpeg import library
from vit_jax.data.sources import Example
from vit_jax.data.transforms import make_eval_transform
from vit_jax.errors import DataError
from vit_jax.schema import differences


def counting(count, bad=()):
    """JPEG images of 20x10 pixels."""
    images = (b"no image" if i in bad else encode(noise(10, 20, i), "JPEG") for i in range(count))
    examples = [Example(image, i % 2, f"number {i}") for i, image in enumerate(images)]
    return InMemory(examples, "ab", "counting")


def test_cached_examples_are_equal_and_read_once():
    source = counting(5)
    kept = DecodedSource(source)
    for indices in ([3, 1], [1, 4, 3], [0]):
        for index, example in zip(indices, kept.read(indices), strict=True):
            want = source.examples[index]
            assert (example.label, example.id) == (want.label, want.id)
            np.testing.assert_array_equal(decode(example.image), decode(want.image))
    np.testing.assert_array_equal(source.reads, [1, 1, 0, 1, 1])
    assert (kept.name, kept.class_names, kept.fingerprint) == ("counting", ("a", "b"), "0")


def test_an_unreadable_image_is_reported_by_the_transform():
    kept = DecodedSource(counting(3, bad=[1]))
    assert kept[1].image == b"no image"
    with pytest.raises(DataError):
        decode(kept[1].image)


@pytest.mark.parametrize(
    ("count", "cap_mb", "kept"), [(1666, 1, True), (1667, 1, False), (3, 0, False)]
)
def test_a_dataset_is_cached_only_if_all_images_fit(count, cap_mb, kept):
    """20 x 10 pixels are 600 bytes: 1,666 of them make 999,600."""
    source = InMemory((counting(3).examples * (count // 3 + 1))[:count], "ab")
    found = cached(source, cap_mb)
    assert isinstance(found, DecodedSource) is kept
    assert kept or found is source


def test_images_beyond_the_cap_are_decoded_but_not_kept():
    """Each image has 600 bytes of pixels."""
    source = counting(4)
    kept = DecodedSource(source, cap_mb=2 * 600 / 1e6)
    first = kept.read([0, 1, 2, 3])
    again = kept.read([0, 1, 2, 3, 3])
    for one, other in zip([*first, first[3]], again, strict=True):
        np.testing.assert_array_equal(one.image, other.image)
        assert one.image.shape == (10, 20, 3)
    np.testing.assert_array_equal(source.reads, [1, 1, 2, 2])
    with pytest.raises(ValueError, match="read-only"):
        first[0].image[:] = 0


@pytest.mark.skipif(library() is None, reason="needs libjpeg-turbo")
def test_caching_changes_pixels_of_shrunk_jpegs_so_a_resumed_run_may_not_change_it():
    source = InMemory([Example(encode(photo(), "JPEG"), 0, "a photo")], "ab")
    transform = make_eval_transform(64, "central")
    direct, kept = (
        transform(s[0].image, np.random.default_rng(0)).astype(int)
        for s in (source, DecodedSource(source))
    )
    assert 0 < np.abs(direct - kept).max() <= 10
    one, other = (
        DataConfig.from_mapping({"name": "x", "global_batch_size": 1, "cache_mb": mb})
        for mb in (0, 512)
    )
    assert differences(one, other) == [("cache_mb", 0, 512)]
