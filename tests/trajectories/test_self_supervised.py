"""MAE, its fine-tuning, DINO and iBOT train what their authors' code trains, step by step."""

import numpy as np
from trajectories.replay import SMALL, Replay, draw_images, read_golden

# The authors' code draws the dropped paths in another way.
NO_DROPPED_PATHS = {"model.stochastic_depth": 0.0}
NO_WARMUP = {"optimizer.schedule.warmup_epochs": None}
FINETUNED = {"model.name": "ViT-B/4", **SMALL, **NO_DROPPED_PATHS}
CROPS = {
    **SMALL,
    **NO_DROPPED_PATHS,
    "dino.local_size": 32,
    "dino.prototypes": 128,
    "dino.head_width": 96,
    "dino.bottleneck": 32,
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


def test_ibot_with_sinkhorn():
    replay = ibot("ibot_sinkhorn", {})
    check_ibot(replay)


def ibot(name, overrides):
    return Replay(
        read_golden(name),
        "dino.py:B/16,ibot",
        {
            "model.name": "ViT-B/4",
            **CROPS,
            **NO_WARMUP,
            "dino.local_crops": 2,
            "dino.temperature_warmup_epochs": None,
            "dino.teacher_temperature": 0.04,
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
        "dino.temperature_warmup_epochs": None,
        "dino.teacher_temperature": 0.04,
        "dino.prototype_scale": False,
        **NO_WARMUP,
    }
    check_dino("dino", overrides)


def check_dino(name, overrides):
    golden = read_golden(name)
    sizes = {"model.name": "ViT-S/4", **CROPS, "dino.local_crops": 3, "train_epochs": 10.0}
    replay = Replay(golden, "dino.py:S/16", {**sizes, **overrides}, num_examples=24)
    losses, state = replay.train(at(draw_crops(replay, 30, 3)))
    replay.check(state.params, losses)
    np.testing.assert_allclose(state.extra["centre"], golden["centre"], atol=1e-5)
    assert max(replay.differences(state.ema, "teacher").values()) < 2e-4
