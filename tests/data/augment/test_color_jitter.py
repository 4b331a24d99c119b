import numpy as np
from images import photo
from PIL import Image, ImageEnhance

from vit_jax.data.augment.color_jitter import ColorJitter

PIXELS = np.ascontiguousarray(photo()[100:164, 200:264])


def test_jitter_multiplies_brightness_contrast_and_saturation_in_a_drawn_order():
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    orders = set()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        factors = 0.7 + 0.6 * rng.random(3)
        order = rng.permutation(3)
        orders.add(tuple(order.tolist()))
        expected = Image.fromarray(PIXELS)
        for i in order:
            expected = kinds[i](expected).enhance(factors[i])
        found = ColorJitter(strength=0.3)(Image.fromarray(PIXELS), np.random.default_rng(seed))
        # The factors are rounded to 32 bits in other places.
        assert np.abs(np.asarray(found).astype(int) - np.asarray(expected)).max() <= 1
    assert len(orders) == 6
