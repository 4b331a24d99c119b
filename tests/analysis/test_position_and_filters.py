import numpy as np
import pytest
from random_models import random_model

from vit_jax.analysis import (
    cosine_similarity,
    embedding_filters,
    position_similarity,
    principal_components,
)
from vit_jax.analysis.batches import check_attention
from vit_jax.analysis.filters import as_images
from vit_jax.errors import ModelError

TINY = {"width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_cosines_by_hand():
    vectors = np.asarray([[3, 0], [0, 2], [-1, 0], [1, 1], [0, 0], [2, 2]], np.float32)
    found = cosine_similarity(vectors, (2, 3))
    assert found.shape == (2, 3, 2, 3)
    half = 0.5**0.5
    np.testing.assert_allclose(found[0, 0], [[1, 0, -1], [half, 0, half]], atol=1e-6)
    np.testing.assert_allclose(found[1, 0, 1], [1, 0, 1], atol=1e-6)  # A zero vector.


@pytest.mark.parametrize("placement", ["stem", "shared"])
def test_the_class_token_is_left_out_of_a_table(placement):
    model = random_model(
        "ViT-Ti/4", image_size=(8, 16), num_registers=1, position_placement=placement, **TINY
    )
    found = position_similarity(model)
    rows = np.asarray(model.position_embedding.table[...])[0]
    assert len(rows) == 1 + 8  # The registers have none.
    assert found.similarity.shape == (1, 2, 4, 2, 4)
    assert found.similarity[0, 0, 0, 1, 2] == pytest.approx(cosine(rows[1], rows[7]), abs=1e-6)
    assert found.kind == "learned_1d"


def test_tables_of_every_layer_are_compared_one_by_one():
    model = random_model(
        "ViT-Ti/4", position_embedding="learned_2d", position_placement="every_layer", **TINY
    )
    found = position_similarity(model)
    assert found.similarity.shape == (2, 4, 4, 4, 4)
    table = model.encoder.blocks.position_embedding
    for layer in range(2):
        across, down = table.by_column[...][layer], table.by_row[...][layer]
        a, b = np.concatenate([across[2], down[1]]), np.concatenate([across[0], down[3]])
        assert found.similarity[layer, 1, 2, 3, 0] == pytest.approx(cosine(a, b), abs=1e-6)


@pytest.mark.parametrize("placement", ["stem", "every_layer"])
def test_fixed_tables_are_reported_as_not_learned(placement):
    options = {"position_embedding": "sincos_2d", "position_placement": placement, **TINY}
    found = position_similarity(random_model("ViT-Ti/4", image_size=16, pooling="gap", **options))
    assert found.similarity.shape == (1, 4, 4, 4, 4)
    assert found.kind == "sincos_2d (not learned)"
    # Patches with the same offset are equally similar.
    near = found.similarity[0, 0, 0, 0, 1], found.similarity[0, 2, 1, 2, 2]
    assert near[0] == pytest.approx(near[1], abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("none", "position_embedding=none"),
        ("relative", "position_embedding=relative, which biases the attention"),
        ("rope_2d", "rope_2d, which rotates queries and keys"),
    ],
)
def test_the_error_names_the_position_embedding_that_cannot_be_analysed(kind, message):
    model = random_model("ViT-Ti/4", image_size=16, position_embedding=kind, **TINY)
    with pytest.raises(ModelError, match=message):
        position_similarity(model)


def test_principal_components_equal_the_svd_of_numpy():
    kernel = np.random.default_rng(0).standard_normal((4, 4, 3, 40)).astype(np.float32)
    kernel[0] *= 5
    found, share = principal_components(kernel, 28)
    filters = kernel.reshape(48, 40).T.astype(np.float64)
    _, singular, rows = np.linalg.svd(filters - filters.mean(0), full_matrices=False)
    np.testing.assert_allclose(share, (singular**2 / (singular**2).sum())[:28], rtol=1e-5)
    flat = found.reshape(28, 48)
    np.testing.assert_allclose(np.abs((flat * rows[:28]).sum(1)), 1, rtol=1e-5)
    np.testing.assert_allclose(flat @ flat.T, np.eye(28), atol=1e-5)
    assert (flat[np.arange(28), np.abs(flat).argmax(1)] > 0).all()


def test_filters_made_of_two_patterns_have_these_components():
    """Filters a * x + b * y of two orthogonal patterns, x with twice the spread."""
    patterns = np.zeros((2, 2, 2, 3), np.float32)
    patterns[0, :, :, 0], patterns[1, 0, 0, 2] = 0.5, 1
    weights = np.asarray([[2, -2, 0, 0], [0, 0, 1, -1]], np.float32)
    kernel = np.einsum("kijc,kd->ijcd", patterns, weights) + np.float32(7)
    found, share = principal_components(kernel, 2)
    np.testing.assert_allclose(found, patterns, atol=1e-5)
    np.testing.assert_allclose(share, [0.8, 0.2], rtol=1e-4)
    pictures = as_images(found)
    np.testing.assert_allclose(pictures[0, 0, 0], [1, 0.5, 0.5], atol=1e-4)
    np.testing.assert_allclose(pictures[1, 1, 1], [0.5, 0.5, 0.5], atol=1e-4)


def test_filters_are_those_of_the_layer_that_reads_the_image():
    found = embedding_filters(random_model("ViT-Ti/4", **TINY))
    # 16 filters about their mean span 15 dimensions of 48; the 16th component is noise.
    assert found.components.shape == (16, 4, 4, 3)
    assert found.variance_share[-1] < 1e-9
    assert (found.layer, found.filters) == ("patch embedding", 16)
    hybrid = random_model("R+ViT-Nano/4", image_size=8)
    found = embedding_filters(hybrid, count=5)
    kernel = hybrid.stem.style.standardize(hybrid.stem.conv_root.kernel[...])
    np.testing.assert_array_equal(found.components, principal_components(np.asarray(kernel), 5)[0])
    assert (found.layer, found.filters) == ("root convolution", 6)
    resnet = random_model("BiT-R-Nano", image_size=8)
    assert embedding_filters(resnet).components.shape == (6, 3, 3, 3)


def test_a_mixer_has_filters_but_neither_attention_nor_positions():
    sizes = {"width": 16, "depth": 2, "token_mlp_dim": 8, "channel_mlp_dim": 32}
    mixer = random_model("Mixer-S/4", image_size=16, **sizes)
    assert embedding_filters(mixer).components.shape == (16, 4, 4, 3)
    with pytest.raises(ModelError, match="positions of a Mixer, which has no position embedding"):
        position_similarity(mixer)
    for analysis in ("distance", "rollout"):
        with pytest.raises(ModelError, match=f"{analysis} of a Mixer, which has no attention"):
            check_attention(mixer, analysis)
