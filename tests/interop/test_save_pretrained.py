"""A model that was trained outside the trainer is saved from Python and read again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from weight_files import TINY

import vit_jax
from vit_jax.errors import WeightsError
from vit_jax.models.family import EvalView

FORMATS = ("orbax", "timm", "transformers", "vision_transformer")
VIEWS = (EvalView("central", 0.9, False), EvalView("central", 0.9), EvalView("resize"))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("view", VIEWS)
def test_weights_names_and_preprocessing_are_read_as_they_were_saved(view, format, tmp_path):
    path = tmp_path / ("tuned.npz" if format == "vision_transformer" else "tuned")
    model = vit_jax.create_model("ViT-Ti/8", num_classes=3, image_size=16, **TINY)
    head = model.head.linear.kernel
    head[...] = jax.random.normal(jax.random.key(0), head.shape)
    model.class_names, model.view = ("Kätzchen", "dog", "owl"), view
    vit_jax.save_pretrained(model, path, format=format)
    again = vit_jax.load_pretrained(path)
    assert (again.image_size, again.class_names) == ((16, 16), model.class_names)
    assert vit_jax.preprocess_of(again) == vit_jax.preprocess_of(model)
    assert again.config == model.config
    np.testing.assert_array_equal(again.head.linear.kernel[...], head[...])
    images = jax.random.uniform(jax.random.key(1), (2, 16, 16, 3), minval=-1)
    assert jnp.array_equal(again(images), model(images))


def test_a_model_without_a_head_stays_without_one(tmp_path):
    model = vit_jax.create_model("ViT-Ti/8", num_classes=0, image_size=16, **TINY)
    vit_jax.save_pretrained(model, tmp_path / "features")
    assert vit_jax.load_pretrained(tmp_path / "features").head.linear is None
    with pytest.raises(WeightsError, match="exists"):
        vit_jax.save_pretrained(model, tmp_path / "features")


def test_every_class_has_a_name_or_none_has(tmp_path):
    model = vit_jax.create_model("ViT-Ti/8", num_classes=3, image_size=16, **TINY)
    model.class_names = ("cat", "dog")
    with pytest.raises(WeightsError, match=r"2 names in model.class_names; expected .* 3 classes"):
        vit_jax.save_pretrained(model, tmp_path / "tuned")
    assert not (tmp_path / "tuned").exists()
