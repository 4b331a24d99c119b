"""Recipes against PyTorch code, step by step.

DeiT and DeiT III (7e160fe), MAE (efb2a80), DINO (7c446df), iBOT (da316d8), open_clip (89fb801),
Muon (857d1ad), LAMB and NaFlexVit of timm (aa4b585) and schedule-free (70785b5).
"""

import jax.numpy as jnp
import numpy as np
import pytest
from trajectories.replay import SMALL, Replay, draw_images, mixed_labels, read_golden

from vit_jax.models.naflex import Patches

# Stochastic depth draws other random numbers.
VIT = {"model.name": "ViT-B/4", **SMALL}
NO_DEPTH = {"model.stochastic_depth": 0.0}
CONSTANT_RATE = {"optimizer.schedule.decay": "constant", "optimizer.schedule.warmup_epochs": None}


def labelled_batches(replay, classes):
    """Returns a function of the step: images, and labels mixed with those in reverse order."""
    images = draw_images(replay.rng, int(replay.golden["steps"]), 8)
    labels = mixed_labels(replay.golden, classes)
    return lambda step: {"image": images[step], "label": labels[step]}


def test_deit3():
    overrides = VIT | NO_DEPTH | CONSTANT_RATE
    overrides |= {"data.repeats": 1, "train_epochs": 20.0}
    replay = Replay(
        read_golden("deit3"), "deit3.py:B/16", overrides, num_classes=100, num_examples=8
    )
    losses, state = replay.train(labelled_batches(replay, 100))
    replay.check(state.params, losses)


@pytest.mark.slow
def test_deit_with_hard_labels(linear_teacher):
    golden = read_golden("deit_hard")
    overrides = VIT | NO_DEPTH | CONSTANT_RATE | {"task.teacher": "-"}
    overrides |= {
        "data.repeats": 1,
        "train_epochs": 15.0,
        "optimizer.learning_rate": float(golden["learning_rate"]),
    }
    replay = Replay(golden, "distillation.py:deit", overrides)
    losses, state = replay.train(labelled_batches(replay, 10), {"w": jnp.zeros(1)})
    replay.check(state.params, losses)


@pytest.mark.slow
def test_clip():
    tower = {"width": 64, "depth": 2, "num_heads": 1, "mlp_dim": 256}
    overrides = {
        "model.name": "CLIP-ViT-B/8",
        "model.dtype": "float32",
        "model.embedding_size": 32,
        "model.temperature_init": 1 / 0.07,
        "model.text.vocabulary_size": 64,
        "model.text.context_length": 16,
        **{f"model.{t}.{key}": size for t in ("image", "text") for key, size in tower.items()},
        "data.image_size": 32,
        "data.global_batch_size": 8,
        "train_epochs": 15.0,
        "optimizer.learning_rate": 2e-3,
        "optimizer.schedule.warmup_steps": 5,
    }
    replay = Replay(read_golden("clip"), "clip.py:B/32", overrides)
    replay.arrays["log_temperature"] = np.float32(4.595)
    replay.arrays["image/patch_embedding/bias"] = np.zeros(64, np.float32)  # CLIP has none.
    images, words = draw_images(replay.rng, 30, 8), replay.rng.randint(1, 63, (30, 8, 16))
    ends, place = replay.rng.randint(4, 16, (30, 8))[..., None], np.arange(16)
    tokens = np.where(place == ends, 63, np.where(place > ends, 0, words)).astype(np.int32)
    losses, state = replay.train(lambda step: {"image": images[step], "tokens": tokens[step]})
    assert not np.asarray(state.params["image"]["patch_embedding"]["bias"]).any()
    replay.check(state.params, losses)


@pytest.mark.slow
def test_naflex():
    lengths = (16, 36, 64)
    overrides = {key: value for key, value in VIT.items() if key != "data.image_size"} | {
        "model.position_grid": 4,
        "flexible.sequence_lengths": lengths,
        "data.sequence_length": 64,
        "train_epochs": 15.0,
        "optimizer.schedule.warmup_steps": 3,
    }
    replay = Replay(read_golden("naflex"), "naflex.py", overrides)
    rng, drawn, batches = replay.rng, replay.rng.choice(lengths, 30), []
    for length in drawn:
        rows = rng.randint(1, 9, 8)
        grid = np.stack([rows, np.minimum(rng.randint(1, 13, 8), length // rows)], 1)
        # Padding has random bytes, too: it must not change anything.
        patches = rng.randint(0, 256, (8, length, 48)).astype(np.float32) / np.float32(127.5) - 1
        image = Patches(patches, grid.astype(np.int32))
        batches.append({"image": image, "label": rng.randint(0, 10, 8).astype(np.int32)})
    losses, state = replay.train(batches.__getitem__, variant_of=lambda step: f"n{drawn[step]}")
    replay.check(state.params, losses)


MUON = {
    "model.name": "ViT-S/4",
    "optimizer.state_dtype": "float32",
    "optimizer.schedule.warmup_steps": None,
}
SCHEDULE_FREE = MUON | {
    "optimizer.name": "schedule_free_adamw",
    "optimizer.weight_decay": 0.05,
    "optimizer.clip_global_norm": None,
}
OPTIMIZERS = {
    "lamb": ("deit3.py:B/16", {"data.repeats": 1}),
    "lamb_always_adapt": (
        "deit3.py:B/16",
        {"data.repeats": 1, "optimizer.options": {"eps": 1e-8, "always_adapt": True}},
    ),
    "muon": ("muon.py:90", {**MUON, "optimizer.options": {}}),
    "muon_rms": ("muon.py:90", MUON),
    "schedule_free_0": ("better_plain_vit.py:90", SCHEDULE_FREE),
    "schedule_free_5": (
        "better_plain_vit.py:90",
        {**SCHEDULE_FREE, "optimizer.schedule.warmup_steps": 5},
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_with_random_gradients(name):
    recipe, own = OPTIMIZERS[name]
    overrides = VIT | CONSTANT_RATE | {"train_epochs": 10.0} | own
    replay = Replay(read_golden(name), recipe, overrides)
    replay.check(replay.apply())
