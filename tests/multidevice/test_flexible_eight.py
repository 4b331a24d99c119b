"""Models for several sizes on eight devices are those on one: draws and losses, padding included.

Run as a program, this file prints what its tests look at.
"""

import json
from typing import Any

import pytest
from eight_devices import run_on_eight

pytestmark = [pytest.mark.multidevice, pytest.mark.slow]
STEPS = 3


@pytest.fixture(scope="module")
def found(once):
    return once("flexible", lambda: run_on_eight(__file__))


@pytest.mark.parametrize("method", ["flexivit", "naflex"])
def test_the_losses_are_the_same(found, method):
    one, eight = found["one"][method], found["eight"][method]
    assert eight["drawn"] == one["drawn"]
    assert len(set(one["drawn"])) == 2
    assert eight["losses"] == pytest.approx(one["losses"], abs=2e-5)
    assert abs(one["losses"][-1] - one["losses"][0]) > 1e-3


def main() -> None:
    import jax

    from vit_jax.config.mesh import MeshConfig
    from vit_jax.parallel.mesh import make_mesh

    section = {"data": 2, "fsdp": 2, "tensor": 2}
    one, eight = make_mesh(MeshConfig(), jax.devices()[:1]), make_mesh(MeshConfig(**section))
    print(json.dumps({"one": train_on({}, one), "eight": train_on(section, eight)}))


def train_on(mesh_section: dict[str, Any], mesh: Any) -> dict[str, Any]:
    model = {"name": "ViT-Ti/4", "width": 32, "depth": 2, "mlp_dim": 64, "num_heads": 2}
    flexivit = {
        "model": {**model, "patch_kernel_size": 4, "position_grid": 2},
        "flexible": {"patch_sizes": [4, 8]},
    }
    naflex = {
        "model": {**model, "pooling": "map", "position_grid": 2},
        "flexible": {"sequence_lengths": [4, 16]},
        "data": {"sequence_length": 16, "eval_crop": "resize"},
    }
    return {
        name: losses_of({**content, "mesh": mesh_section}, mesh)
        for name, content in (("flexivit", flexivit), ("naflex", naflex))
    }


def losses_of(content: dict[str, Any], mesh: Any) -> dict[str, Any]:
    import numpy as np

    from vit_jax.config.run import Config
    from vit_jax.parallel.mesh import to_devices
    from vit_jax.train.program import build_program

    data = {"name": "none", "image_size": 16, "global_batch_size": 16, "augment": {"flip": False}}
    config = Config.from_mapping(
        {
            **content,
            "data": {**data, **content.get("data", {})},
            "optimizer": {"name": "sgd", "learning_rate": 0.5},
            "train_steps": 4,
        }
    )
    program = build_program(config, mesh, num_classes=10, num_examples=100)
    state, losses, drawn = program.init(), [], []
    for step in range(STEPS):
        variant, rng = program.at(step), np.random.default_rng(step)
        batch = {name: np.zeros(s.shape, s.dtype) for name, s in variant.batch_shapes().items()}
        for name in batch.keys() & {"image", "patches"}:
            batch[name][:] = rng.integers(0, 256, batch[name].shape)
        batch["label"][:] = rng.integers(0, 10, 16)
        if "grid" in batch:  # Some rows of patches, and so some padding.
            batch["grid"][:] = np.stack([np.full(16, 2), 1 + np.arange(16) % 2], axis=1)
        state, metrics = variant.compiled(state, to_devices(batch, mesh))
        losses.append(metrics["train/loss"].item())
        drawn.append(next(name for name, p in program.variants.items() if p is variant))
    return {"losses": losses, "drawn": drawn}


if __name__ == "__main__":
    main()
