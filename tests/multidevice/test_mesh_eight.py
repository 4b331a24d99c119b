"""Run as a program on eight devices, this file prints as JSON what its tests look at."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.multidevice

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    # Without optimization the program compiles in half the time.
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    done = subprocess.run(
        [sys.executable, __file__],
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(_ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_meshes_have_the_shapes_asked_for(found):
    assert found["meshes"] == [[8, 1, 1], [4, 2, 1], [2, 2, 2], [1, 8, 1]]


def test_one_host_holds_all_rows_on_any_mesh(found):
    assert found["host_rows"] == [[0, 16]] * 4


def test_rows_lie_on_devices_in_order_and_equal_ones_where_only_tensor_differs(found):
    # Eight rows over data x fsdp = 4 places, each held by two devices along tensor.
    assert found["rows_by_device"] == [[0, 1]] * 2 + [[2, 3]] * 2 + [[4, 5]] * 2 + [[6, 7]] * 2
    assert found["rows_together"] == list(range(8))


@pytest.mark.parametrize(
    ("name", "shape", "spec", "shard"),
    [
        # Three heads do not divide by tensor=2: only the width is cut.
        ("encoder/blocks/attention/qkv/kernel", [12, 192, 3, 3, 64],
         [None, "fsdp", None, None, None], [12, 96, 3, 3, 64]),
        ("encoder/blocks/attention/out/kernel", [12, 3, 64, 192],
         [None, None, None, "fsdp"], [12, 3, 64, 96]),
        ("encoder/blocks/mlp/expand/kernel", [12, 192, 768],
         [None, "fsdp", "tensor"], [12, 96, 384]),
        ("encoder/blocks/mlp/expand/bias", [12, 768], [None, "tensor"], [12, 384]),
        ("encoder/blocks/mlp/contract/kernel", [12, 768, 192],
         [None, "tensor", "fsdp"], [12, 384, 96]),
        ("patch_embedding/kernel", [16, 16, 3, 192],
         [None, None, None, "fsdp"], [16, 16, 3, 96]),
        ("head/linear/kernel", [192, 10], ["fsdp", "tensor"], [96, 5]),
        ("encoder/blocks/mlp_norm/scale", [12, 192], [None, None], [12, 192]),
        ("class_token", [1, 1, 192], [None, None, None], [1, 1, 192]),
    ],
)  # fmt: skip
def test_parameters_of_vit_ti_16_are_cut(found, name, shape, spec, shard):
    assert found["parameters"][name] == [shape, spec, shard]


def test_initial_values_are_born_cut_and_do_not_depend_on_the_mesh(found):
    assert found["born"] == [[2, 32, 64], [2, 16, 32]]
    assert found["init_difference"] == 0.0


def test_loss_and_parameters_after_two_steps_do_not_depend_on_the_mesh(found):
    one, eight = found["losses"]
    # log 10 with a head at zero, and less after a step.
    assert abs(one[0] - 2.302585) < 1e-5
    assert one[1] < one[0] - 0.01
    assert max(abs(a - b) for a, b in zip(one, eight, strict=True)) < 1e-5
    assert found["difference"] < 1e-5
    # Parameters have moved much further than they differ.
    assert found["moved"] > 1e-2


def main() -> None:
    import jax
    import numpy as np

    from vit_jax.config import Config, MeshConfig
    from vit_jax.parallel.mesh import host_rows, make_mesh, to_devices
    from vit_jax.parallel.sharding import parameter_names
    from vit_jax.train.program import build_program

    def config(model: dict[str, Any], image_size: int) -> Config:
        return Config.from_mapping(
            {
                "model": model,
                "data": {"name": "digits", "image_size": image_size, "global_batch_size": 16},
                "optimizer": {"name": "sgd", "learning_rate": 0.2, "clip_global_norm": 1.0},
                "mixing": {"mixup_alpha": 0.2},
                "accumulation_steps": 2,
                "train_steps": 4,
            }
        )

    meshes = [
        make_mesh(MeshConfig(**sizes))
        for sizes in ({}, {"fsdp": 2}, {"fsdp": 2, "tensor": 2}, {"data": 1, "fsdp": 8})
    ]
    found: dict[str, Any] = {
        "meshes": [list(m.devices.shape) for m in meshes],
        "host_rows": [[r.start, r.stop] for r in (host_rows(m, 16) for m in meshes)],
    }

    cube = meshes[2]
    rows = to_devices({"x": np.arange(8)}, cube)["x"]
    held = {s.device: s.data.tolist() for s in rows.addressable_shards}
    found["rows_by_device"] = [held[d] for d in cube.devices.ravel()]
    found["rows_together"] = np.asarray(rows).tolist()

    sizes = {"num_classes": 10, "num_examples": 100}
    plain = config({"name": "ViT-Ti/16"}, 32)
    params = build_program(plain, cube, **sizes).abstract.params
    found["parameters"] = {
        name: [leaf.shape, list(leaf.sharding.spec), leaf.sharding.shard_shape(leaf.shape)]
        for name, leaf in zip(parameter_names(params), jax.tree.leaves(params), strict=True)
    }

    small = config(
        {
            "name": "ViT-Ti/4", "width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64,
            "dropout": 0.1, "stochastic_depth": 0.1,
        },
        8,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    batch = {
        "image": rng.integers(256, size=(16, 8, 8, 3), dtype=np.uint8),
        "label": rng.integers(10, size=16, dtype=np.int32),
        "mask": np.ones(16, bool),
    }
    first, last, losses = [], [], []
    for mesh in [make_mesh(MeshConfig(), jax.devices()[:1]), cube]:
        program = build_program(small, mesh, **sizes)
        state, step_fn = program.init(), program.lower().compile()
        kernel = state.params["encoder"]["blocks"]["mlp"]["expand"]["kernel"]
        found["born"] = [kernel.shape, kernel.addressable_shards[0].data.shape]
        first.append(jax.device_get(state.params))
        losses.append([])
        for _ in range(2):
            state, metrics = step_fn(state, to_devices(batch, mesh))
            losses[-1].append(metrics["train/loss"].item())
        last.append(jax.device_get(state.params))

    def apart(one: Any, other: Any) -> float:
        gaps = jax.tree.map(lambda a, b: np.abs(a - b).max().item(), one, other)
        return max(jax.tree.leaves(gaps))

    found["losses"] = losses
    found["init_difference"] = apart(*first)
    found["difference"] = apart(*last)
    found["moved"] = apart(first[0], last[0])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
