"""Parameters of a file come to eight devices cut as the mesh says, and are the file's.

Run as a program, this file prints what its tests look at.
"""

import json
import sys
from typing import Any

import pytest
from eight_devices import run_on_eight

pytestmark = pytest.mark.multidevice


@pytest.fixture(scope="module")
def found(once, tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights") / "ours"
    return once("init-from", lambda: run_on_eight(__file__, str(folder)))


@pytest.mark.slow
def test_parameters_equal_those_of_the_file_and_the_head_is_zero(found):
    assert found["largest_difference"] == 0.0
    assert found["head"] == 0.0
    assert found["ema_difference"] == 0.0


@pytest.mark.slow
def test_each_device_holds_only_its_shard_from_the_start(found):
    """Two layers of kernels 24 x 36: over fsdp of 4 and tensor of 2."""
    assert found["kernel"] == [[2, 24, 36], [2, 6, 18]]
    assert found["same_shardings"]


@pytest.mark.slow
def test_the_training_step_accepts_the_loaded_state(found):
    assert found["loss"] == pytest.approx(1.9459101, abs=1e-5)  # log 7


def main(path: str) -> None:
    from pathlib import Path

    import jax
    import numpy as np
    from flax import nnx
    from weight_files import random_weights

    from vit_jax.config.run import Config
    from vit_jax.interop.load import load
    from vit_jax.named_tree import named_leaves
    from vit_jax.parallel.mesh import make_mesh, to_devices
    from vit_jax.train.init_from import model_of_weights, start_from_weights
    from vit_jax.train.program import build_program

    random_weights(Path(path))
    content: dict[str, Any] = {
        "model": {"name": "auto"},
        "data": {"name": "none", "image_size": 48, "global_batch_size": 8},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train_steps": 2,
        "ema_decay": 0.9,
        "init_from": path,
        "mesh": {"data": 1, "fsdp": 4, "tensor": 2},
    }
    model = model_of_weights(Config.from_mapping(content))
    config = Config.from_mapping(content | {"model": model})
    mesh = make_mesh(config.mesh)
    program = build_program(config, mesh, num_classes=7, num_examples=8)
    state, _ = start_from_weights(program)

    def named(params: Any) -> dict[str, Any]:
        return named_leaves(params)

    wanted = named(nnx.to_pure_dict(nnx.state(load(path, image_size=48, num_classes=7).model)))
    got, ema = named(state.params), named(state.ema)
    gaps = [float(np.abs(np.asarray(got[n]) - np.asarray(wanted[n])).max()) for n in wanted]
    kernel = got["encoder/blocks/mlp/expand/kernel"]
    same = jax.tree.map(
        lambda a, b: a.sharding.is_equivalent_to(b.sharding, a.ndim), state, program.abstract
    )
    found = {
        "largest_difference": max(gaps),
        "head": float(np.abs(np.asarray(got["head/linear/kernel"])).max()),
        "ema_difference": max(
            float(np.abs(np.asarray(got[n]) - np.asarray(ema[n])).max()) for n in got
        ),
        "kernel": [list(kernel.shape), list(kernel.addressable_shards[0].data.shape)],
        "same_shardings": all(jax.tree.leaves(same)),
    }
    batch = {
        "image": np.zeros((8, 48, 48, 3), np.uint8),
        "label": np.arange(8, dtype=np.int32) % 7,
        "mask": np.ones(8, bool),
    }
    _, metrics = program.lower().compile()(state, to_devices(batch, mesh))
    found["loss"] = float(metrics["train/loss"])
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
