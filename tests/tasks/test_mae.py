"""The masked autoencoder: masks, targets, loss, decoder, resume, and fine-tuning from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_models import random_images, randomize
from task_runs import assert_resumes, program_of, run_mapping, steps_of
from tasks.pretraining import evaluate_padded, fine_tune, tiles_of

from experiments.masked_patches import pictures
from vit_jax.config.run import Config
from vit_jax.interop.load import load
from vit_jax.interop.native import open_native
from vit_jax.models.embedding import sincos_2d_mae
from vit_jax.run.folder import read_config
from vit_jax.tasks.mae.model import num_visible
from vit_jax.tasks.mae.task import (
    Mae,
    from_target,
    hidden_patches,
    masked_batch,
    pixel_targets,
)
from vit_jax.tasks.task import DataInfo

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.
MODEL = {
    "name": "ViT-Ti/4", "width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2,
    "position_embedding": "sincos_2d_mae",
}  # fmt: skip
SECTION = {"decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}


def mapping(**changes):
    return run_mapping(30, task={"name": "mae", **SECTION}, model=MODEL) | changes


@pytest.fixture(scope="module")
def config(digits_dir):
    found = Config.from_mapping(mapping())
    return found.replace(data=found.data.replace(data_dir=str(digits_dir)))


@pytest.fixture(scope="module")
def program(config):
    return program_of(config)


@pytest.fixture(scope="module")
def model(program):
    """A model with random values, also where they start at zero."""
    return randomize(lambda: program.task.build(jax.random.key(0)))


@pytest.fixture(scope="module")
def reconstruct(model):
    graphdef, state = nnx.split(model)
    jitted = jax.jit(lambda state, *args: nnx.merge(graphdef, state).reconstruct(*args)[0])
    return lambda images, order: np.asarray(jitted(state, images, order))


def images(count=2):
    return jnp.asarray(random_images(count, seed=0))


def order(*rows):
    return jnp.asarray(rows, jnp.int32)


@pytest.mark.parametrize("position", ["learned_1d", "rope_2d"])
def test_only_visible_patches_are_computed(config, position):
    """All patches in another order give the same class token; dropped pixels change nothing."""
    options = config.model.replace(position_embedding=position, num_heads=1, num_registers=1)
    changed = config.replace(model=options)
    task = Mae(changed, DataInfo(10), platform="cpu")
    graphdef, state = nnx.split(randomize(lambda: task.build(jax.random.key(0))))
    encode = jax.jit(lambda *args: nnx.merge(graphdef, state).encode_visible(*args))
    pixels, every = images(), jnp.stack([jnp.arange(16)[::-1], jnp.roll(jnp.arange(16), 5)])
    with jax.default_matmul_precision("highest"):
        _, found = nnx.merge(graphdef, state)(pixels, return_intermediates=("encoded",))
        whole, reordered = found["encoded"], encode(pixels, every)
        np.testing.assert_allclose(reordered[:, :2], whole[:, :2], rtol=2e-4, atol=2e-4)
        np.testing.assert_allclose(reordered[0, 2], whole[0, 2 + 15], rtol=2e-4, atol=2e-4)
        some = every[:, :3]  # Patches 15, 14 and 13 of the first image.
        before, after = (encode(x, some) for x in (pixels, pixels.at[0, :4, :4].add(1.0)))
    assert before.shape == (2, 2 + 3, 16)
    np.testing.assert_array_equal(after, before)
    assert np.abs(before[:, :2] - whole[:, :2]).max() > 1e-3


def test_the_number_of_visible_patches_is_that_of_the_authors():
    assert [num_visible(n, 0.75) for n in (196, 256, 64, 7)] == [49, 64, 16, 1]
    assert num_visible(10, 0.9) == 1  # 10 * (1 - 0.9) is 0.99999...


def test_each_patch_is_in_the_order_exactly_once(program):
    keys = jax.random.split(jax.random.key(1), 5)
    found = np.asarray(masked_batch(images(5), keys, 16)["order"])
    assert (np.sort(found, axis=1) == np.arange(16)).all()
    assert len({tuple(row) for row in found}) == 5
    hidden = np.asarray(hidden_patches(jnp.asarray(found), 4))
    assert (hidden.sum(1) == 12).all()
    assert all(hidden[i, found[i, :4]].sum() == 0 for i in range(5))
    prepare = jax.jit(program.task.prepare)
    batch = {"image": jnp.zeros((16, 16, 16, 3), jnp.uint8)}
    first, again, later = (prepare(batch, jnp.int32(step))["order"] for step in (3, 3, 4))
    assert (first == again).all()
    assert (first != later).any()


def test_targets_of_gray_by_hand():
    """A gray pixel has three values after ImageNet's normalisation, with a pattern of colours."""
    batch = masked_batch(jnp.zeros((1, 1, 1, 3)), jax.random.split(jax.random.key(0), 1), 1)
    # 0.5 minus 0.485, 0.456, 0.406, divided by 0.229, 0.224, 0.225.
    gray = batch["target_image"][0, 0, 0]
    np.testing.assert_allclose(gray, [0.0655022, 0.1964286, 0.4177778], rtol=1e-5)
    target = pixel_targets(batch["target_image"], 1, normalize=True)
    np.testing.assert_allclose(target[0, 0], [-0.904544, -0.169271, 1.073815], rtol=1e-4)
    plain = pixel_targets(batch["target_image"], 1, normalize=False)
    np.testing.assert_allclose(from_target(plain), np.zeros((1, 1, 3)), atol=1e-6)


def test_the_loss_is_that_of_the_target_images(program, model, reconstruct):
    params = nnx.to_pure_dict(nnx.state(model))
    loss = jax.jit(lambda batch: program.task.batch_loss(params, batch, jax.random.key(0))[0])
    batch = masked_batch(images(4), jax.random.split(jax.random.key(1), 4), 16)
    pixels = np.asarray(pixel_targets(batch["target_image"], 4, normalize=True))
    predicted = reconstruct(batch["image"], batch["order"])
    errors = np.square(predicted - pixels).mean(-1)
    want = np.mean([errors[i, np.asarray(batch["order"])[i, 4:]].mean() for i in range(4)])
    assert float(loss(batch)) == pytest.approx(want, rel=1e-5)
    assert float(loss(batch | {"target_image": batch["image"]})) != pytest.approx(want, rel=1e-3)


def test_hidden_pixels_do_not_reach_the_prediction(reconstruct):
    rows = order([3, 9, 0, 14, *(n for n in range(16) if n not in (3, 9, 0, 14))])
    before = reconstruct(images(1), rows)
    assert before.shape == (1, 16, 48)
    hidden = images(1).at[0, 4:8, 0:4].add(1.0)  # Patch 4.
    np.testing.assert_array_equal(reconstruct(hidden, rows), before)
    visible = images(1).at[0, 0:4, 12:16].add(1.0)  # Patch 3.
    assert np.abs(reconstruct(visible, rows) - before).max() > 1e-3


def test_only_visible_tokens_are_counted_as_work(program):
    """Multiply-accumulates by hand: 4 visible patches and the class token in the encoder."""

    def blocks(tokens, width, mlp):
        return tokens * (4 * width**2 + 2 * width * mlp) + 2 * tokens**2 * width

    encoder = 4 * 48 * 16 + blocks(5, 16, 32)
    decoder = 5 * 16 * 8 + blocks(17, 8, 32) + 16 * 8 * 48
    assert program.flops_per_image == 6 * (encoder + decoder)
    assert program.task.activations == pytest.approx(5 / 17 + 8 / 16)


def test_evaluation_depends_on_neither_batches_nor_order_nor_padding(program, model):
    params = nnx.to_pure_dict(nnx.state(model))
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3)).astype(np.uint8)

    want = evaluate_padded(program, params, pixels, np.arange(12), 8, 2)
    shuffled = np.random.default_rng(1).permutation(12)
    found = evaluate_padded(program, params, pixels, shuffled, 8, 4)
    assert want["examples"] == found["examples"] == 12
    assert found["loss"] == pytest.approx(want["loss"], rel=1e-5)


@pytest.mark.slow
def test_a_stopped_run_resumes_bit_for_bit(config, finished, tmp_path, monkeypatch):
    folder, want = finished
    assert_resumes(config, folder, want, tmp_path, monkeypatch)
    rows = steps_of(folder)
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]
    assert all(0 < row["train/feature_std"] <= 1 for row in rows)
    assert want["eval/test/loss"] < rows[0]["train/loss"]


@pytest.mark.slow
def test_fine_tuning_leaves_out_the_decoder(config, finished, tmp_path):
    _, report = fine_tune(mapping(), config, finished[0], tmp_path)
    assert {name.split("/")[0] for name in report["left_out"]} == {"decoder"}
    assert report["reinitialised"] == ["head/linear/bias", "head/linear/kernel"]
    assert report["missing"] == report["unexpected"] == []
    encoder = load(finished[0])
    assert encoder.num_classes == 0
    assert not hasattr(encoder.model, "decoder")


@pytest.mark.slow
def test_fine_tuning_of_the_recipe_starts_its_positions_at_the_fixed_table(
    config, finished, tmp_path
):
    learned = {"position_embedding": "learned_1d", "pooling": "gap", "class_token": True}
    _, report = fine_tune(
        mapping(),
        config,
        finished[0],
        tmp_path,
        model={**MODEL, **learned, "norm_after_pooling": True},
        # One step at a rate that changes nothing.
        optimizer={"learning_rate": 1e-30},
    )
    assert {name.split("/")[0] for name in report["left_out"]} == {"decoder", "norm"}
    assert set(report["reinitialised"]) == {
        "head/linear/bias", "head/linear/kernel", "norm/bias", "norm/scale",
    }  # fmt: skip
    file, _ = open_native(tmp_path / "tuned")
    table = np.asarray(file.read("position_embedding/table"))
    assert table.shape == (1, 1 + 64, 16)
    np.testing.assert_array_equal(table[0, 0], 0)
    # 8 x 8 positions between the corners of the fixed 4 x 4.
    corners, fixed = table[0, 1:].reshape(8, 8, 16)[::7, ::7], sincos_2d_mae((4, 4), 16)
    np.testing.assert_allclose(corners, fixed.reshape(4, 4, 16)[::3, ::3], atol=1e-6)
    np.testing.assert_array_equal(file.read("norm/scale"), 1)


@pytest.mark.slow
def test_pictures_keep_the_visible_patches(finished):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3)).astype(np.uint8)
    rows = pictures.predict(read_config(finished[0]), finished[0], pixels)
    assert list(rows) == ["input", "visible", "reconstructed"]
    tiles = tiles_of(rows)
    hidden = (tiles["visible"] == 128).all(-1)
    assert hidden.sum() == 3 * 12
    changed = (tiles["reconstructed"] != tiles["input"]).any(-1)
    np.testing.assert_array_equal(changed, hidden)
