"""Masked autoencoder and self-distillation on eight devices are those on one.

Run as a program, this file prints what its tests look at.
"""

import json
from typing import Any

import pytest
from eight_devices import run_on_eight

pytestmark = [pytest.mark.multidevice, pytest.mark.slow]
STEPS = 3
_DINO = {
    "local_crops": 1, "local_size": 8, "prototypes": 16, "head_width": 32, "bottleneck": 8,
    "momentum": 0.9, "teacher_temperature": 0.2,
}  # fmt: skip
TASKS = {
    "mae": {"task": "mae", "mae": {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}},
    "dino": {"task": "dino", "dino": _DINO},
    "dino with Sinkhorn and iBOT": {
        "task": "dino",
        "dino": {**_DINO, "centring": "sinkhorn", "ibot_weight": 1.0},
    },
}


@pytest.fixture(scope="module")
def found(once):
    return once("no-labels", lambda: run_on_eight(__file__))


@pytest.mark.parametrize("task", TASKS)
def test_the_losses_and_features_are_the_same(found, task):
    one, eight = found[task]["one"], found[task]["eight"]
    assert eight["losses"] == pytest.approx(one["losses"], abs=1e-4)
    assert eight["features"] == pytest.approx(one["features"], abs=1e-4)
    assert abs(one["losses"][-1] - one["losses"][0]) > 1e-3


@pytest.mark.parametrize("task", ["dino", "dino with Sinkhorn and iBOT"])
def test_the_teacher_is_the_same(found, task):
    one, eight = found[task]["one"], found[task]["eight"]
    assert eight["teacher"] == pytest.approx(one["teacher"], abs=1e-4)
    assert eight["centre"] == pytest.approx(one["centre"], abs=1e-4)


@pytest.mark.parametrize("task", ["mae", "dino"])
def test_microbatches_have_the_gradient_of_the_batch(found, task):
    whole, parts = found[task]["one"], found[task]["parts"]
    assert parts["losses"] == pytest.approx(whole["losses"], abs=1e-4)


def main() -> None:
    import jax

    from vit_jax.config.mesh import MeshConfig
    from vit_jax.parallel.mesh import make_mesh

    section = {"data": 2, "fsdp": 2, "tensor": 2}
    one, eight = make_mesh(MeshConfig(), jax.devices()[:1]), make_mesh(MeshConfig(**section))
    found = {}
    for name, task in TASKS.items():
        found[name] = {
            "one": train_on(task, {}, one, 1),
            "eight": train_on(task, section, eight, 1),
        }
        if name in ("mae", "dino"):
            found[name]["parts"] = train_on(task, {}, one, 2)
    print(json.dumps(found))


def train_on(task: dict[str, Any], mesh_section: dict, mesh: Any, parts: int) -> dict[str, Any]:
    import jax
    import numpy as np

    from vit_jax.config.run import Config
    from vit_jax.parallel.mesh import to_devices
    from vit_jax.train.program import build_program

    config = Config.from_mapping(
        {
            **task,
            "model": {
                "name": "ViT-Ti/4", "width": 32, "depth": 1, "mlp_dim": 64, "num_heads": 2,
            },
            "data": {"name": "none", "image_size": 16, "global_batch_size": 16},
            "optimizer": {"name": "sgd", "learning_rate": 0.05},
            "accumulation_steps": parts,
            "train_steps": 8,
            "mesh": mesh_section,
        }
    )  # fmt: skip
    program = build_program(config, mesh, num_classes=10, num_examples=100)
    step_fn, state = program.lower().compile(), program.init()
    batch = program.example_batch()
    if "masked" in batch:
        batch["masked"] = np.random.default_rng(1).random(batch["masked"].shape) < 0.3
    losses, features = [], []
    for _ in range(STEPS):
        state, metrics = step_fn(state, to_devices(batch, mesh))
        losses.append(metrics["train/loss"].item())
        features.append(metrics["train/feature_std"].item())
    teacher = (
        [] if state.ema is None else [float(abs(x).mean()) for x in jax.tree.leaves(state.ema)]
    )
    centre = [] if state.extra is None else np.asarray(state.extra["centre"]).tolist()
    return {"losses": losses, "features": features, "teacher": teacher, "centre": centre}


if __name__ == "__main__":
    main()
