"""Masked patch prediction: loss, evaluation, resume, and fine-tuning from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_models import randomize
from task_runs import assert_resumes, program_of, run_mapping, steps_of
from tasks.pretraining import evaluate_padded, fine_tune, tiles_of

from experiments.masked_patches import pictures
from vit_jax.config.run import Config
from vit_jax.errors import WeightsError
from vit_jax.interop.load import load
from vit_jax.models.flops import traced_macs
from vit_jax.parallel.mesh import to_devices
from vit_jax.run.folder import read_config
from vit_jax.tasks.masked_patches.task import corrupted_loss, evaluation_batch

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.
MODEL = {
    "name": "ViT-Ti/4", "width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2, "dropout": 0.1,
}  # fmt: skip


def mapping(**changes):
    return run_mapping(60, task={"name": "masked_patches"}, model=MODEL) | changes


@pytest.fixture(scope="module")
def config(digits_dir):
    found = Config.from_mapping(mapping())
    return found.replace(data=found.data.replace(data_dir=str(digits_dir)))


@pytest.fixture(scope="module")
def program(config):
    """The program of the finished run."""
    return program_of(config)


@pytest.fixture(scope="module")
def prepare(program):
    return jax.jit(program.task.prepare)


def pixels(count, side=16):
    found = np.random.default_rng(0).integers(0, 256, (count, side, side, 3))
    return jnp.asarray(found, jnp.uint8)


def test_only_corrupted_patches_count_in_the_loss():
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.standard_normal((2, 4, 5)), jnp.float32)
    colour = jnp.asarray(rng.integers(0, 5, (2, 4)), jnp.int32)
    corrupted = jnp.array([[True, False, True, False], [False, False, True, True]])
    loss = corrupted_loss(logits, colour, corrupted)
    log_softmax = np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    rows = [-log_softmax[i, n, colour[i, n]] for i, n in zip(*np.nonzero(corrupted), strict=True)]
    assert float(loss) == pytest.approx(np.mean(rows), rel=1e-6)
    assert float(corrupted_loss(logits.at[0, 1, 2].add(9.0), colour, corrupted)) == float(loss)
    assert float(corrupted_loss(logits.at[0, 2, 2].add(9.0), colour, corrupted)) != float(loss)


def test_the_head_counts_once_for_each_patch(program):
    task, image = program.task, jnp.zeros((1, 16, 16, 3))
    batch = {"source": jnp.arange(16)[None], "hidden": jnp.zeros((1, 16), bool), "image": image}
    params = nnx.to_pure_dict(nnx.state(task.abstract))
    macs = traced_macs(lambda params: task.model(params).predict(batch), params)
    moved = 16 * 16 * task.abstract.head.num_features  # `corrupt` is a matmul of zeros and ones.
    assert task.flops_per_image == 6 * (macs - moved)


def test_a_new_model_predicts_all_colours_equally(program, prepare):
    """The head is zero at first, so the loss is the log of its 512 classes."""
    batch = {"image": pixels(16)}
    params = program.init().params
    assert params["head"]["linear"]["kernel"].shape == (16, 512)
    assert params["mask_token"].shape == (1, 1, 16)
    assert np.abs(params["mask_token"]).max() > 0
    ready = prepare(batch, jnp.int32(3))
    batch_loss = jax.jit(program.task.batch_loss)
    loss, _ = batch_loss(params, ready, jax.random.key(0))
    assert float(loss) == pytest.approx(np.log(512), rel=1e-5)
    assert (ready["corrupted"].sum(1) == 8).all()
    other = prepare(batch, jnp.int32(4))
    assert (ready["corrupted"] != other["corrupted"]).any()


def test_colours_are_of_the_augmented_image(prepare):
    """Flipped images have flipped colours."""
    images = jnp.zeros((16, 16, 16, 3), jnp.uint8).at[:, :, :8].set(255)
    ready = prepare({"image": images}, jnp.int32(0))
    left = np.asarray(ready["image"][:, 0, 0, 0]) > 0
    assert 0 < left.sum() < 16
    colour = np.asarray(ready["colour"]).reshape(16, 4, 4)
    assert (colour[:, :, 0] == np.where(left, 511, 0)[:, None]).all()
    assert (colour[:, :, 3] == np.where(left, 0, 511)[:, None]).all()


@pytest.mark.slow
def test_training_learns_to_predict_hidden_colours(program):
    """Images are black or white. Without visible patches the loss is at least log 2 = 0.69."""
    state = program.init()
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(60):
        white = rng.integers(0, 2, (16, 1, 1, 1)) * np.ones((1, 16, 16, 3))
        batch = program.example_batch() | {"image": (255 * white).astype(np.uint8)}
        state, metrics = program.compiled(state, to_devices(batch, program.mesh))
        losses.append(float(metrics["train/loss"]))
    assert losses[0] == pytest.approx(np.log(512), rel=1e-5)
    assert max(losses[-5:]) < 0.3


@pytest.mark.slow
def test_evaluation_depends_on_neither_batches_nor_order_nor_padding(program):
    model = randomize(lambda: program.task.build(jax.random.key(0)))
    params = nnx.to_pure_dict(nnx.state(model))
    images = np.asarray(pixels(24))

    want = evaluate_padded(program, params, images, np.arange(24), 24, 0)
    shuffled = np.random.default_rng(1).permutation(24)
    found = evaluate_padded(program, params, images, shuffled, 8, 3)
    assert want["examples"] == found["examples"] == 24
    assert found["accuracy_top5"] == want["accuracy_top5"]
    assert found["accuracy_top1"] == want["accuracy_top1"]
    assert found["loss"] == pytest.approx(want["loss"], rel=1e-5)
    section = program.config.task

    @jax.jit
    def look(params, images):
        ready = evaluation_batch(images, section, 4)
        return ready, program.task.model(params).predict(ready)

    ready, logits = look(params, jnp.asarray(images))
    logits = np.asarray(logits)
    right = (logits.argmax(-1) == ready["colour"]) & ready["corrupted"]
    assert want["accuracy_top1"] == right.sum() / (24 * 8)


@pytest.mark.slow
def test_a_stopped_run_resumes_bit_for_bit(config, finished, tmp_path, monkeypatch):
    folder, want = finished
    assert_resumes(config, folder, want, tmp_path, monkeypatch)
    rows = steps_of(folder)
    assert rows[-1]["train/loss"] < rows[0]["train/loss"] - 0.5
    assert want["eval/test/loss"] < np.log(512)
    assert want["eval/test/examples"] == 360


@pytest.mark.slow
def test_fine_tuning_leaves_out_the_mask_token_and_the_head(config, finished, tmp_path):
    """It also makes a new head and resizes the position table for another image size."""
    found, report = fine_tune(mapping(), config, finished[0], tmp_path)
    assert (found.model.name, found.model.width, found.model.pooling) == ("ViT-Ti/4", 16, "token")
    head = ["head/linear/bias", "head/linear/kernel"]
    assert sorted(report["left_out"]) == [*head, "mask_token"]
    assert report["reinitialised"] == head
    assert report["resized"] == {"position_embedding/table": "(1, 17, 16) -> (1, 65, 16)"}
    assert report["missing"] == report["unexpected"] == []
    loaded = load(finished[0])
    assert loaded.num_classes == 0
    assert not hasattr(loaded.model, "mask_token")
    with pytest.raises(WeightsError, match="keep_head with num_classes 10 and a head of 0"):
        load(finished[0], num_classes=10, keep_head=True)


@pytest.mark.slow
def test_pictures_show_the_corruption_and_the_colours(finished, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3)).astype(np.uint8)
    rows = pictures.predict(read_config(finished[0]), finished[0], pixels)
    assert list(rows) == ["input", "shown", "predicted", "true colours"]
    tiles = tiles_of(rows)
    gray = (tiles["shown"] == 128).all(-1)
    painted = (tiles["true colours"] != tiles["input"]).any(-1)
    assert painted.sum(1).tolist() == [8, 8, 8]  # Half of 16 patches.
    assert not (gray & ~painted).any()
    assert ((tiles["predicted"] != tiles["input"]).any(-1) == painted).all()
    means = tiles["input"].reshape(3, 16, 16, 3).mean(2) // 32 * 32 + 15
    np.testing.assert_array_equal(tiles["true colours"][painted][:, :3], means[painted])
    pictures.draw_rows(rows, tmp_path / "made.png")
    assert (tmp_path / "made.png").stat().st_size > 5_000
