"""Tasks without labels, and models for several sizes, learn on eight devices what they do on one.

Run as a program, this file prints what its tests look at.
"""

import functools
import json
from typing import Any

import pytest
from eight_devices import CUBE, run_on_eight, small_program, train

pytestmark = [pytest.mark.multidevice, pytest.mark.slow]
STEPS = 3
VIT = {"name": "ViT-Ti/4", "width": 32, "depth": 2, "mlp_dim": 64, "num_heads": 2}
DINO = {
    "name": "dino",
    "local_crops": 1, "local_size": 8, "prototypes": 16, "head_width": 32, "bottleneck": 8,
    "momentum": 0.9, "teacher_temperature": 0.2,
}  # fmt: skip
FAST = {"name": "sgd", "learning_rate": 0.5}
TASKS = {
    "flexivit": {
        "model": {**VIT, "patch_kernel_size": 4, "position_grid": 2},
        "flexible": {"patch_sizes": [4, 8]},
        "optimizer": FAST,
    },
    "naflex": {
        "model": {**VIT, "pooling": "map", "position_grid": 2},
        "flexible": {"sequence_lengths": [4, 16]},
        "data": {"sequence_length": 16, "eval_crop": "resize"},
        "optimizer": FAST,
    },
    "masked_patches": {
        "task": {"name": "masked_patches"},
        "accumulation_steps": 2,
        "optimizer": FAST,
    },
    "mae": {"task": {"name": "mae", "decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}},
    "dino": {"task": DINO},
    "dino with Sinkhorn and iBOT": {
        "task": {**DINO, "centring": "sinkhorn", "ibot_weight": 1.0},
    },
}


@pytest.fixture(scope="module")
def found(once):
    return once("tasks", lambda: run_on_eight(__file__))


@pytest.mark.parametrize("task", TASKS)
def test_losses_and_what_else_is_learned_are_the_same(found, task):
    one, eight = found[task]["one"], found[task]["eight"]
    assert one.keys() == eight.keys()
    for name, values in one.items():
        assert eight[name] == pytest.approx(values, abs=2e-5), name
    assert abs(one["losses"][-1] - one["losses"][0]) > 1e-3
    assert len(set(one["drawn"])) == (2 if task in ("flexivit", "naflex") else 1)


@pytest.mark.parametrize("task", ["mae", "dino"])
def test_microbatches_have_the_gradient_of_the_batch(found, task):
    assert found[task]["parts"]["losses"] == pytest.approx(found[task]["one"]["losses"], abs=2e-5)


def test_the_same_patches_are_scored_in_evaluation(found):
    """Batches of 16 and of 8 of 20 examples, filled up and masked."""
    one, eight = found["evaluation"]
    assert one["examples"] == eight["examples"] == 20
    assert eight["accuracy_top1"] == one["accuracy_top1"]
    assert eight["loss"] == pytest.approx(one["loss"], abs=2e-5)


def main() -> None:
    found: dict[str, Any] = {}
    for name, task in TASKS.items():
        found[name] = {"one": learned(task, {}), "eight": learned(task, CUBE)}
        if name in ("mae", "dino"):
            found[name]["parts"] = learned({**task, "accumulation_steps": 2}, {})
    found["evaluation"] = [evaluated({}, 16), evaluated(CUBE, 8)]
    print(json.dumps(found))


def learned(task: dict[str, Any], mesh: dict[str, int]) -> dict[str, Any]:
    """Returns losses and whatever else a task has: the sizes drawn, features, a teacher."""
    import jax
    import numpy as np

    from vit_jax.train.feed import program_of_batch

    program = small_program(mesh, **{"model": VIT, **task})
    state, metrics = train(program, [batch_of(program, step) for step in range(STEPS)])
    sizes = list(program.variants.values()) or [program]
    return {
        "losses": metrics["train/loss"],
        "features": metrics.get("train/feature_std", []),
        "drawn": [sizes.index(program_of_batch(program, step)) for step in range(STEPS)],
        "teacher": [float(abs(leaf).mean()) for leaf in jax.tree.leaves(state.ema)],
        "centre": np.ravel((state.extra or {}).get("centre", [])).tolist(),
    }


def batch_of(program: Any, step: int) -> dict[str, Any]:
    import numpy as np

    from vit_jax.train.feed import program_of_batch

    batch, rng = program_of_batch(program, step).example_batch(step), np.random.default_rng(step)
    if program.config.task.name == "masked_patches":
        batch["image"] = few_colours()[:16]
    if "masked" in batch:
        batch["masked"] = rng.random(batch["masked"].shape) < 0.3
    if "grid" in batch:  # Some rows of patches, and so some padding.
        batch["grid"] = np.stack([np.full(16, 2), 1 + np.arange(16) % 2], 1).astype(np.int32)
    return batch


def few_colours() -> Any:
    """Images of which two steps learn something."""
    import numpy as np

    return (np.random.default_rng(0).integers(0, 2, (20, 16, 16, 3)) * 40).astype(np.uint8)


def evaluated(mesh: dict[str, int], size: int) -> dict[str, float]:
    """Returns the figures of masked patch prediction on 20 images in batches of `size`."""
    import numpy as np

    from vit_jax.evaluation.loop import evaluate

    program = small_program(mesh, model=VIT, **TASKS["masked_patches"])
    state, _ = train(program, [batch_of(program, 0)] * 2)
    batches = []
    for start in range(0, 20, size):
        rows = np.arange(start, start + size)
        images = few_colours()[np.where(rows < 20, rows, 0)]
        batches.append({"image": images, "label": np.zeros(size, np.int32), "mask": rows < 20})
    totals = program.task.totals(())
    step = functools.partial(program.eval_step, state.eval_params)
    return evaluate(step, batches, program.mesh, totals)


if __name__ == "__main__":
    main()
