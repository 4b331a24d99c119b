import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.augment.randaugment import OPERATIONS

_GOLDEN = np.load(Path(__file__).parent / "goldens" / "randaugment.npz")
_PHOTOS = [
    np.asarray(Image.open(io.BytesIO(_GOLDEN[name].tobytes())))
    for name in sorted(_GOLDEN)
    if name.startswith("jpeg/")
]


def test_the_photos_decode_to_tensorflows_pixels():
    assert [int(photo.sum()) for photo in _PHOTOS] == _GOLDEN["decoded_sums"].tolist()


@pytest.mark.parametrize("key", sorted(name for name in _GOLDEN if name.startswith("pixels")))
def test_operations_equal_the_authors_code_in_tensorflow(key):
    """Keys are pixels/NAME_MAGNITUDE, and pixels_of_tiled/... for photos tiled to 224 x 224.

    Contrast depends on the number of pixels. Of tiled photos the golden has the first 64 x 64.
    """
    kind, case = key.split("/")
    name, magnitude = case.rsplit("_", 1)
    photos = _PHOTOS
    if kind == "pixels_of_tiled":
        photos = [np.tile(photo, (4, 4, 1))[:224, :224] for photo in _PHOTOS]
    rng = np.random.default_rng(0)
    found = [OPERATIONS[name](Image.fromarray(p), int(magnitude) / 10, rng) for p in photos]
    pixels = np.stack([np.asarray(image)[:64, :64] for image in found])
    np.testing.assert_array_equal(pixels, _GOLDEN[key])
