"""Masked patch prediction on eight devices is that on one: what is corrupted, steps, evaluation.

Run as a program, this file prints what its tests look at.
"""

import json
from typing import Any

import pytest
from eight_devices import run_on_eight

pytestmark = [pytest.mark.multidevice, pytest.mark.slow]
STEPS = 2


@pytest.fixture(scope="module")
def found(once):
    return once("masked-patches", lambda: run_on_eight(__file__))


def test_the_losses_are_the_same(found):
    one, eight = found["one"], found["eight"]
    assert one["losses"][0] == pytest.approx(6.2383246, abs=1e-5)  # log 512
    assert eight["losses"] == pytest.approx(one["losses"], abs=2e-5)
    assert abs(one["losses"][1] - one["losses"][0]) > 1e-2


def test_the_same_patches_are_scored_in_evaluation(found):
    """Batches of 16 and of 8 of 20 examples, filled up and masked."""
    one, eight = found["one"]["figures"], found["eight"]["figures"]
    assert one["examples"] == eight["examples"] == 20
    assert eight["accuracy_top1"] == one["accuracy_top1"]
    assert eight["loss"] == pytest.approx(one["loss"], abs=2e-5)


def main() -> None:
    import jax

    from vit_jax.config.mesh import MeshConfig
    from vit_jax.parallel.mesh import make_mesh

    section = {"data": 2, "fsdp": 2, "tensor": 2}
    one, eight = make_mesh(MeshConfig(), jax.devices()[:1]), make_mesh(MeshConfig(**section))
    print(json.dumps({"one": train_on({}, one, 16), "eight": train_on(section, eight, 8)}))


def train_on(mesh_section: dict[str, Any], mesh: Any, eval_batch: int) -> dict[str, Any]:
    import numpy as np

    from vit_jax.config.run import Config
    from vit_jax.evaluation.loop import evaluate
    from vit_jax.parallel.mesh import to_devices
    from vit_jax.train.program import build_program

    model = {"name": "ViT-Ti/4", "width": 32, "depth": 2, "mlp_dim": 64, "num_heads": 2}
    config = Config.from_mapping(
        {
            "task": "masked_patches",
            "model": model,
            "data": {"name": "none", "image_size": 16, "global_batch_size": 16},
            "optimizer": {"name": "sgd", "learning_rate": 0.5},
            "accumulation_steps": 2,
            "train_steps": 4,
            "mesh": mesh_section,
        }
    )
    program = build_program(config, mesh, num_classes=10, num_examples=100)
    step_fn, state = program.lower().compile(), program.init()
    rng = np.random.default_rng(0)
    # Few colours, so that two steps learn something.
    images = (rng.integers(0, 2, (20, 16, 16, 3)) * 40).astype(np.uint8)
    labels = np.zeros(20, np.int32)
    losses = []
    for _ in range(STEPS):
        batch = {"image": images[:16], "label": labels[:16], "mask": np.ones(16, bool)}
        state, metrics = step_fn(state, to_devices(batch, mesh))
        losses.append(metrics["train/loss"].item())
    batches = []
    for start in range(0, 20, eval_batch):
        rows = np.arange(start, start + eval_batch)
        kept = rows < 20
        filled = np.where(kept, rows, 0)
        batches.append({"image": images[filled], "label": labels[filled], "mask": kept})
    figures = evaluate(
        program.eval_step, state.eval_params, batches, mesh, program.task.make_totals(())
    )
    return {"losses": losses, "figures": figures}


if __name__ == "__main__":
    main()
