import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_models import random_images, random_model

from vit_jax.errors import ConfigError, ModelError
from vit_jax.models.registry import (
    build_model,
    create_model,
    layer_indices,
    list_models,
    model_options,
)
from vit_jax.models.text import TextTower
from vit_jax.models.two_towers import TwoTowers, TwoTowersConfig

TEXT = {"vocabulary_size": 20, "context_length": 8}
# Published counts at 224 pixels: of transformers' `num_parameters` for CLIP and SigLIP B/16, and of
# the sizes in the papers for the rest. Our patch embedding has a bias in CLIP too.
PUBLISHED = {
    "CLIP-ViT-B/32": 151_277_313 + 768,
    "CLIP-ViT-B/16": 149_620_737 + 768,
    "CLIP-ViT-L/14": 427_616_513 + 1024,
    "SigLIP-ViT-B/16": 203_155_970,
    "SigLIP-ViT-L/16": 652_089_346,
    "SigLIP-ViT-So400m/14": 877_415_602,
    "SigLIP2-ViT-B/32": 376_844_546,
    "SigLIP2-ViT-B/16": 375_187_970,
    "SigLIP2-ViT-L/16": 881_465_346,
    "SigLIP2-ViT-So400m/14": 1_135_463_602,
    "SigLIP2-ViT-So400m/16": 1_135_601_842,
    "LiT-B16B": 195_871_489,
    "LiT-B16B_2": 195_280_897,
    "LiT-L16L": 638_443_521,
    "LiT-L16S": 331_140_353,
    "LiT-L16Ti": 311_913_089,
}


def abstract(name, **options):
    config = model_options(name, **options)
    return nnx.eval_shape(
        lambda: build_model(config, num_classes=0, image_size=224, key=jax.random.key(0))
    )


def leaves(model):
    return jax.tree.leaves(nnx.to_pure_dict(nnx.state(model)))


@pytest.mark.parametrize("name", PUBLISHED)
def test_pairs_have_the_published_parameter_counts(name):
    assert sum(leaf.size for leaf in leaves(abstract(name))) == PUBLISHED[name]


def test_the_table_covers_every_listed_pair():
    pairs = [n for n in list_models() if n.startswith(("CLIP", "SigLIP", "LiT"))]
    assert sorted(pairs) == sorted(PUBLISHED)


def small(name="CLIP-ViT-Nano/4", **options):
    return random_model(name, num_classes=0, **{"text": TEXT, **options})


def tokens(*rows):
    return np.array(rows, np.int32)


def embed(model, texts):
    return np.asarray(jax.jit(model.encode_text)(texts))


def test_embeddings_have_length_one_and_logits_are_scaled_cosines():
    model = small("SigLIP-ViT-Nano/4")
    texts = tokens([1, 2, 3], [4, 5, 6], [7, 8, 9])
    images, found = jax.jit(lambda i, t: model(i, t))(random_images(2), texts)
    np.testing.assert_allclose(np.linalg.norm(images, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    want = np.exp(model.log_temperature[...]) * images @ found.T + model.bias[...]
    np.testing.assert_allclose(model.logits(images, found), want, atol=1e-5)


def test_the_initial_temperature_and_bias_are_those_of_the_papers():
    clip, siglip = (
        create_model(f"{m}-ViT-Nano/4", image_size=8, text=TEXT) for m in ("CLIP", "SigLIP")
    )
    np.testing.assert_allclose(clip.temperature, 1 / 0.07, rtol=1e-6)
    assert clip.bias is None
    np.testing.assert_allclose(siglip.temperature, 10, rtol=1e-6)
    assert siglip.bias[...] == -10


def test_a_causal_tower_ignores_what_follows_the_end_token():
    model = small(text={**TEXT, "end_token": 9})
    found = embed(model, tokens([1, 2, 9, 0, 0], [1, 2, 9, 7, 9], [1, 3, 9, 0, 0]))
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    assert np.abs(found[0] - found[2]).max() > 1e-3


def test_without_an_end_token_the_largest_token_is_pooled():
    by_value, by_name = (small(text={**TEXT, "end_token": end}) for end in (None, 19))
    texts = tokens([1, 2, 19, 0], [3, 19, 0, 0])
    np.testing.assert_array_equal(embed(by_value, texts), embed(by_name, texts))


@pytest.mark.parametrize("pooling", ["first", "mean", "map"])
def test_padding_changes_nothing(pooling):
    text = {**TEXT, "pad_token": 0, "pooling": pooling}
    model = small("SigLIP-ViT-Nano/4", text=text)
    short, padded = embed(model, tokens([5, 6, 7])), embed(model, tokens([5, 6, 7, 0, 0]))
    np.testing.assert_allclose(short, padded, atol=1e-5)


def test_map_and_last_pooling_differ_and_see_all_tokens():
    for pooling in ("map", "last"):
        model = small("SigLIP-ViT-Nano/4", text={**TEXT, "pooling": pooling})
        found = embed(model, tokens([5, 6, 7], [4, 6, 7]))
        assert np.abs(found[0] - found[1]).max() > 1e-3


@pytest.mark.parametrize("image", ["BiT-R-Nano", "Mixer-S/8", "R+ViT-Nano/4"])
def test_any_image_model_can_be_the_image_tower(image):
    options = {"text": {**TEXT, "name": "Text-Nano"}}
    model = abstract(f"CLIP-{image}", **options)
    assert isinstance(model, TwoTowers)
    assert model.image.head.linear is None


def test_every_parameter_gets_a_gradient():
    model = small("SigLIP-ViT-Nano/4")
    graphdef, params = nnx.split(model)
    images, texts = random_images(3), tokens([1, 2, 3], [4, 5, 6], [7, 8, 9])

    def loss(params):
        model = nnx.merge(graphdef, params)
        logits = model.logits(*model(images, texts))
        return jnp.sum(jax.nn.softplus(logits * jnp.arange(1.0, 4)[None]))

    grads = jax.jit(jax.grad(loss))(nnx.to_pure_dict(params))
    text = grads["text"]
    used = text.pop("token_embedding")[1:10]
    assert np.abs(used).max(1).min() > 0
    assert np.abs(text.pop("positions")[:3]).max(1).min() > 0
    for leaf in jax.tree.leaves(grads):
        assert np.abs(leaf).max() > 0


def test_layers_of_each_tower_are_numbered_on_their_own():
    model = abstract("CLIP-ViT-Nano/4", text={"depth": 2})
    found = layer_indices(nnx.to_pure_dict(nnx.state(model)), model.config)
    assert found["image/patch_embedding/kernel"] == found["text/token_embedding"] == 0
    assert found["text/encoder/blocks/mlp/expand/bias"].ravel().tolist() == [1, 2]
    assert found["image/encoder/blocks/mlp/expand/bias"].ravel().tolist() == [1, 2, 3, 4]
    assert (found["text/norm/scale"], found["image/norm/scale"]) == (3, 5)
    assert found["log_temperature"] == 5


def test_options_of_the_towers_override_those_of_the_name():
    options = model_options(
        "CLIP-ViT-B/16", dtype="bfloat16", image={"pooling": "gap"}, text={"depth": 3}
    )
    assert (options.image.pooling, options.image.mlp, options.image.dtype) == (
        "gap", "quick_gelu", "bfloat16"
    )  # fmt: skip
    assert (options.text.depth, options.text.vocabulary_size) == (3, 49_408)
    assert TwoTowersConfig.from_mapping(options.to_mapping()) == options
    assert options.replace(dtype="float32").image.dtype == "float32"


def test_embeddings_of_different_widths_are_refused():
    options = model_options("SigLIP-ViT-Nano/4", text=TEXT)
    rngs = nnx.Rngs(0)
    image = create_model("ViT-Nano/4", num_classes=0, image_size=8)
    text = TextTower(options.text, embedding_size=24, pair=options, rngs=rngs)
    with pytest.raises(ModelError, match="embeddings of 32 features and a text tower with 24"):
        TwoTowers(image, text, options, rngs=rngs)
    with pytest.raises(ModelError, match="an image tower with 10 classes"):
        TwoTowers(
            create_model("ViT-Nano/4", num_classes=10, image_size=8), text, options, rngs=rngs
        )


def test_a_text_longer_than_the_tower_is_refused():
    model = create_model("CLIP-ViT-Nano/4", image_size=8, text=TEXT)
    with pytest.raises(ModelError, match=r"texts of 9 tokens for a text tower of 8; .*at most 8"):
        model.encode_text(np.zeros((1, 9), np.int32))
    with pytest.raises(ModelError, match="tokens of shape"):
        model.encode_text(np.zeros((1, 9), np.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 10}, r"no classes; .*ViT-Nano/4"),
        ({"text": {"width": 30, "num_heads": 4}}, "width 30 with 4 heads"),
        ({"text": {"end_token": 20, **TEXT}}, "text.end_token.*is 20.*below vocabulary_size 20"),
        ({"text": {"name": "Text-XL"}}, "text.name.*did you mean"),
        ({"text": {"widht": 3}}, "unknown config key 'text.widht' for a text tower"),
        ({"image": {"dtype": "bfloat16"}}, "image.dtype.*set model.dtype"),
        ({"image": {"patches": 3}}, "unknown config key 'image.patches' for a ViT"),
    ],
)
def test_wrong_options_are_errors(options, message):
    with pytest.raises((ConfigError, ModelError), match=message):
        create_model("CLIP-ViT-Nano/4", image_size=8, **options)


def test_features_of_a_pair_are_those_of_its_image_tower():
    model = random_model("LiT-ViT-Nano/4", num_classes=0, image_size=8, text=TEXT)
    images = random_images(2, 8)
    found = model.features(images, layers=(1, -1), normalise=True)
    own = model.image.features(images, layers=(1, -1), normalise=True)
    assert [x.shape for x in found] == [(2, 2, 2, 32)] * 2
    for one, other in zip(found, own, strict=True):
        np.testing.assert_array_equal(one, other)
