import io

import numpy as np
import pytest
from images import photo
from PIL import Image

from vit_jax.config.data import DataConfig
from vit_jax.data.cache import DecodedSource, cached
from vit_jax.data.decode import decode
from vit_jax.data.jpeg import library
from vit_jax.data.sources import Example
from vit_jax.data.transforms import make_eval_transform
from vit_jax.errors import DataError
from vit_jax.schema import differences


class Counting:
    """JPEG images of 20x10 pixels; counts how often each is read."""

    name, class_names, fingerprint = "counting", ("a", "b"), "0"

    def __init__(self, count, bad=()):
        self.reads = np.zeros(count, int)
        rng = np.random.default_rng(0)
        self.examples = []
        for i in range(count):
            file = io.BytesIO()
            pixels = rng.integers(0, 256, (10, 20, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(file, "JPEG")
            encoded = b"no image" if i in bad else file.getvalue()
            self.examples.append(Example(encoded, i % 2, f"number {i}"))

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        return self.read([index])[0]

    def read(self, indices):
        self.reads[indices] += 1
        return [self.examples[i] for i in indices]


def test_cached_examples_are_equal_and_read_once():
    source = Counting(5)
    kept = DecodedSource(source)
    for indices in ([3, 1], [1, 4, 3], [0]):
        for index, example in zip(indices, kept.read(indices), strict=True):
            want = source.examples[index]
            assert (example.label, example.id) == (want.label, want.id)
            np.testing.assert_array_equal(decode(example.image), decode(want.image))
    np.testing.assert_array_equal(source.reads, [1, 1, 0, 1, 1])
    assert (kept.name, kept.class_names, kept.fingerprint) == ("counting", ("a", "b"), "0")


def test_an_unreadable_image_is_reported_by_the_transform():
    kept = DecodedSource(Counting(3, bad=[1]))
    assert kept[1].image == b"no image"
    with pytest.raises(DataError):
        decode(kept[1].image)


@pytest.mark.parametrize(
    ("count", "cap_mb", "kept"), [(1666, 1, True), (1667, 1, False), (3, 0, False)]
)
def test_a_dataset_is_cached_only_if_all_images_fit(count, cap_mb, kept):
    """20 x 10 pixels are 600 bytes: 1,666 of them make 999,600."""
    source = Counting(3)
    source.examples = (source.examples * (count // 3 + 1))[:count]
    source.reads = np.zeros(count, int)
    found = cached(source, cap_mb)
    assert isinstance(found, DecodedSource) is kept
    assert kept or found is source


def test_images_beyond_the_cap_are_decoded_but_not_kept():
    """Each image has 600 bytes of pixels."""
    source = Counting(4)
    kept = DecodedSource(source, cap_mb=2 * 600 / 1e6)
    first = kept.read([0, 1, 2, 3])
    assert kept.read([0, 1, 2, 3, 3]) == [*first, first[3]]
    assert all(example.image.startswith(b"P6 20 10 255") for example in first)
    np.testing.assert_array_equal(source.reads, [1, 1, 2, 2])




@pytest.mark.skipif(library() is None, reason="needs libjpeg-turbo")
def test_caching_changes_pixels_of_shrunk_jpegs_so_a_resumed_run_may_not_change_it():
    file = io.BytesIO()
    Image.fromarray(photo()).save(file, "JPEG")
    source = Counting(1)
    source.examples = [Example(file.getvalue(), 0, "a photo")]
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
