"""MAE, its fine-tuning, DINO and iBOT train what their authors' code trains, step by step."""

import numpy as np
import pytest
from trajectories.replay import SMALL, Replay, draw_images, mixed_labels, read_golden

from vit_jax.models.embedding import sincos_2d_mae

TABLE = "position_embedding/table"
# The authors' code draws the dropped paths in another way.
NO_DROPPED_PATHS = {"model.stochastic_depth": 0.0}
NO_WARMUP = {"optimizer.schedule.warmup_epochs": None}
FINETUNED = {"model.name": "ViT-B/4", **SMALL, **NO_DROPPED_PATHS}
CROPS = {
    **SMALL,
    **NO_DROPPED_PATHS,
    "task.local_size": 32,
    "task.prototypes": 128,
    "task.head_width": 96,
    "task.bottleneck": 32,
    "optimizer.learning_rate": 2e-3,
}


def draw_crops(replay, steps, local_crops):
    """Returns the global crops and the small ones, here of the same size."""
    crops = {name: draw_images(replay.rng, steps, 8) for name in ("image", "second_image")}
    local = [draw_images(replay.rng, steps, 8) for _ in range(local_crops)]
    return crops | {"local_images": np.stack(local, axis=2)}


def at(arrays):
    """Returns step -> batch."""
    return lambda step: {name: array[step] for name, array in arrays.items()}


def test_mae():
    golden = read_golden("mae")
    sizes = {
        "model.name": "ViT-B/4",
        **SMALL,
        "task.decoder_width": 32,
        "task.decoder_depth": 2,
        "task.decoder_heads": 4,
        "train_epochs": 15.0,
        "optimizer.schedule.warmup_epochs": 3.0,
        "optimizer.learning_rate": float(golden["learning_rate"]),
    }
    replay = Replay(golden, "mae.py:B/16", sizes)
    images = draw_images(replay.rng, 30, 8)
    noise = replay.rng.rand(30, 8, 64).astype(np.float32)
    order = np.argsort(noise, axis=-1).astype(np.int32)
    losses, state = replay.train(at({"image": images, "target_image": images, "order": order}))
    replay.check(state.params, losses)


def test_mae_finetune():
    check_mae_finetune("mae_finetune", {})


@pytest.mark.slow
def test_mae_finetune_with_the_norm_before_pooling_and_fixed_positions():
    overrides = {
        "model.norm_after_pooling": False,
        "model.position_embedding": "sincos_2d_mae",
        "optimizer.weight_decay_mask": ((".*(bias|scale)", False), (".*", True)),
    }
    check_mae_finetune("mae_finetune_aligned", overrides)


def check_mae_finetune(name, overrides):
    golden = read_golden(name)
    rate = {"optimizer.learning_rate": float(golden["learning_rate"])}
    durations = {"train_epochs": 15.0, "optimizer.schedule.warmup_epochs": 3.0}
    changes = {**FINETUNED, **rate, **durations, **overrides}
    replay = Replay(golden, "mae.py:B/16,finetune", changes)
    if TABLE in replay.arrays:
        put_fixed_table(replay)
    images, labels = draw_images(replay.rng, 30, 8), mixed_labels(golden, 10)
    losses, state = replay.train(at({"image": images, "label": labels}))
    replay.check(state.params, losses)


def put_fixed_table(replay):
    """Starts the learned positions at MAE's table; the class token's row is zero."""
    table = sincos_2d_mae((8, 8), 64)
    replay.arrays[TABLE] = np.pad(table, ((0, 0), (1, 0), (0, 0)))


def test_layer_decay_of_mae_finetune():
    """The optimizer alone, on random gradients; the golden has none of the positions."""
    constant = {"train_epochs": 10.0, "optimizer.schedule.decay": "constant", **NO_WARMUP}
    replay = Replay(read_golden("layer_decay"), "mae.py:B/16,finetune", {**FINETUNED, **constant})
    params = replay.apply(still=[TABLE])
    replay.check(params)
    moved = np.asarray(params["position_embedding"]["table"]) - replay.arrays[TABLE]
    np.testing.assert_array_equal(moved, 0)  # Positions are not decayed.


@pytest.mark.slow
def test_ibot_with_sinkhorn():
    check_ibot(ibot("ibot_sinkhorn", {}))


@pytest.mark.slow
def test_ibot_with_a_centre():
    """The centre of patches is the mean of all patches, masked or not."""
    check_ibot(ibot("ibot_centre", {"task.centring": "mean"}))


def ibot(name, overrides):
    return Replay(
        read_golden(name),
        "dino.py:B/16,ibot",
        {
            "model.name": "ViT-B/4",
            **CROPS,
            **NO_WARMUP,
            "task.local_crops": 2,
            "task.temperature_warmup_epochs": None,
            "task.teacher_temperature": 0.04,
            "train_epochs": 8.0,
            "optimizer.clip_global_norm": None,
            "optimizer.freeze_epochs": 1.0,
            **overrides,
        },
        num_examples=24,
    )


def check_ibot(replay):
    arrays, rng = draw_crops(replay, 24, 2), replay.rng
    counts = rng.randint(6, 33, (24, 8, 2)) * (rng.rand(24, 8, 2) < 0.5)
    order = np.argsort(np.argsort(rng.rand(24, 8, 2, 64), -1), -1)
    losses, state = replay.train(at(arrays | {"masked": order < counts[..., None]}))
    replay.check(state.params, losses)


def test_dino():
    overrides = {
        "task.temperature_warmup_epochs": None,
        "task.teacher_temperature": 0.04,
        "task.prototype_scale": False,
        **NO_WARMUP,
    }
    check_dino("dino", overrides)


def check_dino(name, overrides):
    golden = read_golden(name)
    sizes = {"model.name": "ViT-S/4", **CROPS, "task.local_crops": 3, "train_epochs": 10.0}
    replay = Replay(golden, "dino.py:S/16", {**sizes, **overrides}, num_examples=24)
    losses, state = replay.train(at(draw_crops(replay, 30, 3)))
    replay.check(state.params, losses)
    np.testing.assert_allclose(state.extra["centre"], golden["centre"], atol=1e-5)
    assert max(replay.differences(state.ema, "teacher").values()) < 2e-4


@pytest.mark.slow
def test_dino_with_learned_lengths_of_prototypes_and_warmups():
    """The reference had the warmups of this project: linear in steps, of 4 and of 2 epochs."""
    overrides = {
        "task.temperature_warmup_epochs": None,
        "task.temperature_warmup_steps": 12,
        "optimizer.schedule.warmup_epochs": 2.0,
    }
    check_dino("dino_scale", overrides)
