"""A model that was trained outside the trainer is saved from Python and read again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from weight_files import TINY

import vit_jax
from vit_jax.errors import WeightsError


@pytest.mark.parametrize(("format", "name"), [("orbax", "tuned"), ("vision_transformer", "t.npz")])
def test_a_changed_model_is_read_as_it_was_saved(format, name, tmp_path):
    model = vit_jax.create_model("ViT-Ti/8", num_classes=3, image_size=16, **TINY)
    kernel = jax.random.normal(jax.random.key(0), (24, 3))
    model.head.linear.kernel[...] = kernel
    model.class_names = ("cat", "dog", "owl")
    vit_jax.save_pretrained(model, tmp_path / name, format)
    again = vit_jax.load_pretrained(tmp_path / name)
    assert (again.image_size, again.class_names) == ((16, 16), ("cat", "dog", "owl"))
    np.testing.assert_array_equal(again.head.linear.kernel[...], kernel)
    images = jax.random.uniform(jax.random.key(1), (2, 16, 16, 3), minval=-1)
    assert jnp.array_equal(again(images), model(images))


def test_a_model_without_a_head_stays_without_one(tmp_path):
    model = vit_jax.create_model("ViT-Ti/8", num_classes=0, image_size=16, **TINY)
    vit_jax.save_pretrained(model, tmp_path / "features")
    assert vit_jax.load_pretrained(tmp_path / "features").head.linear is None
    with pytest.raises(WeightsError, match="exists"):
        vit_jax.save_pretrained(model, tmp_path / "features")
