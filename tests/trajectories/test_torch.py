"""Recipes against PyTorch code, step by step.

DeiT and DeiT III (7e160fe), MAE (efb2a80), DINO (7c446df), iBOT (da316d8), open_clip (89fb801),
Muon (857d1ad), LAMB of timm (aa4b585) and schedule-free (70785b5).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trajectories.replay import (
    Replay,
    check_moved,
    exact_matmuls,
    load,
    normal_weights,
    pictures,
)
from vit_jax.tasks.distillation import task as distillation
from vit_jax.tasks.task import Frozen

# The recipes at a small size, without stochastic depth, whose random numbers differ.
SMALL = {
    "model.name": "ViT-B/4",
    "model.width": 64,
    "model.depth": 3,
    "model.num_heads": 2,
    "model.mlp_dim": 256,
    "model.dtype": "float32",
    "data.image_size": 32,
    "data.global_batch_size": 8,
}
NO_DEPTH = {"model.stochastic_depth": 0.0}
CONSTANT_RATE = {
    "optimizer.schedule.decay": "constant",
    "optimizer.schedule.warmup_epochs": None,
}


def start(golden, ours):
    """Returns the weights, and the generator of the inputs."""
    seed = int(golden["seed"])
    return normal_weights(ours.shapes, seed), np.random.RandomState(seed + 1)


def labelled_batches(golden, rng, classes):
    """Returns a function of the step: images, and labels mixed with those in reverse order."""
    images = pictures(rng, 8, 32, int(golden["steps"]))
    one_hot = np.eye(classes, dtype=np.float32)[golden["labels"]]
    share = golden["lams"][:, None, None]
    labels = (share * one_hot + (1 - share) * one_hot[:, ::-1]).astype(np.float32)
    return lambda step: {"image": images[step], "label": labels[step]}


def test_deit3():
    golden = load("deit3")
    overrides = SMALL | NO_DEPTH | CONSTANT_RATE
    overrides |= {"data.augment.repeats": 1, "train_epochs": 20.0}
    with exact_matmuls():
        ours = Replay("deit3.py:B/16", overrides, num_classes=100, num_examples=8)
        weights, rng = start(golden, ours)
        state = ours.train(golden, weights, labelled_batches(golden, rng, 100))
    check_moved(golden, state.params, weights)


@pytest.mark.slow
def test_deit_with_hard_labels(monkeypatch):
    matrix = np.random.RandomState(5).standard_normal((192, 10)).astype(np.float32)

    def logits(params, x):
        return x.reshape(len(x), 8, 4, 8, 4, 3).mean((2, 4)).reshape(len(x), -1) @ matrix

    frozen = Frozen({"w": jax.ShapeDtypeStruct((1,), jnp.float32)}, lambda: {})
    monkeypatch.setattr(distillation, "_read_teacher", lambda config, classes: (frozen, logits, 0))
    golden = load("deit_hard")
    overrides = SMALL | NO_DEPTH | CONSTANT_RATE | {"distillation.teacher": "-"}
    overrides |= {
        "data.augment.repeats": 1,
        "train_epochs": 15.0,
        "optimizer.learning_rate": float(golden["learning_rate"]),
    }
    with exact_matmuls():
        ours = Replay("distillation.py:deit", overrides)
        weights, rng = start(golden, ours)
        batch_of = labelled_batches(golden, rng, 10)
        state = ours.train(golden, weights, batch_of, {"w": jnp.zeros(1)})
    check_moved(golden, state.params, weights)


@pytest.mark.slow
def test_clip():
    golden = load("clip")
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
    with exact_matmuls():
        ours = Replay("clip.py:B/32", overrides)
        weights, rng = start(golden, ours)
        weights["log_temperature"] = np.float32(4.595)
        weights["image/patch_embedding/bias"] = np.zeros(64, np.float32)  # CLIP has none.
        images, words = pictures(rng, 8, 32, 30), rng.randint(1, 63, (30, 8, 16))
        ends, place = rng.randint(4, 16, (30, 8))[..., None], np.arange(16)
        tokens = np.where(place == ends, 63, np.where(place > ends, 0, words)).astype(np.int32)
        state = ours.train(
            golden, weights, lambda step: {"image": images[step], "tokens": tokens[step]}
        )
    assert not np.asarray(state.params["image"]["patch_embedding"]["bias"]).any()
    check_moved(golden, state.params, weights)


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
    "lamb": ("deit3.py:B/16", {"data.augment.repeats": 1}),
    "lamb_always_adapt": (
        "deit3.py:B/16",
        {"data.augment.repeats": 1, "optimizer.options": {"eps": 1e-8, "always_adapt": True}},
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
def test_an_optimizer_with_given_gradients(name):
    golden, (recipe, own) = load(name), OPTIMIZERS[name]
    overrides = SMALL | CONSTANT_RATE | {"train_epochs": 10.0} | own
    with exact_matmuls():
        ours = Replay(recipe, overrides)
        weights, rng = start(golden, ours)

        def gradients_of(step):
            scale = 0.01 * (1 + step % 3)
            return {
                n: (scale * rng.standard_normal(ours.shapes[n])).astype(np.float32)
                for n in sorted(ours.shapes)
            }

        params = ours.update(golden, weights, gradients_of)
    check_moved(golden, params, weights)
