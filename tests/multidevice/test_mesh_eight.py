"""Run as a program on eight devices, this file prints as JSON what its tests look at."""

import collections
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from eight_devices import collectives, run_on_eight

pytestmark = pytest.mark.multidevice

SMALL = {"name": "ViT-Ti/4", "width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64}
# Sizes of its kernels, as the matrices that the step makes of them: queries, keys and values; out;
# expand; contract; embedding; head.
KERNELS = [(32, 96), (32, 32), (32, 64), (32, 64), (32, 48), (10, 32)]


@pytest.fixture(scope="module")
def found(once) -> dict[str, Any]:
    return once("mesh", lambda: run_on_eight(__file__))


def test_meshes_have_the_configured_shapes(found):
    assert found["meshes"] == [[8, 1, 1], [4, 2, 1], [2, 2, 2], [1, 8, 1]]


def test_one_host_holds_all_rows_on_any_mesh(found):
    assert found["host_rows"] == [[0, 16]] * 4


def test_rows_are_on_devices_in_order_and_repeated_along_the_tensor_axis(found):
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
def test_parameters_of_vit_ti_16_are_sharded(found, name, shape, spec, shard):
    assert found["parameters"][name] == [shape, spec, shard]


def test_initial_values_are_created_sharded_and_do_not_depend_on_the_mesh(found):
    assert found["born"] == [[2, 32, 64], [2, 16, 32]]
    assert found["init_difference"] == 0.0


def test_gradients_are_summed_over_devices_in_the_dtype_of_their_layer(found):
    kernels, rest = found["sums"]
    assert kernels == {"bf16": len(KERNELS) - 1, "f32": 1}  # The head computes in float32.
    assert rest.keys() == {"f32", "bf16"}  # Norms do as well, biases do not.


def main() -> None:
    import jax

    from vit_jax.config.mesh import MeshConfig
    from vit_jax.parallel.mesh import host_rows, make_mesh

    sections = (
        MeshConfig(),
        MeshConfig(fsdp=2),
        MeshConfig(fsdp=2, tensor=2),
        MeshConfig(data=1, fsdp=8),
    )
    meshes = [make_mesh(section) for section in sections]
    cube = meshes[2]
    found = {
        "meshes": [list(m.devices.shape) for m in meshes],
        "host_rows": [[r.start, r.stop] for r in (host_rows(m, 16) for m in meshes)],
    }
    found |= find_rows(cube)
    found |= find_parameters(cube)
    found |= find_initial_values(make_mesh(MeshConfig(), jax.devices()[:1]), cube)
    fsdp = meshes[3]
    found["sums"] = find_sums(fsdp)
    print(json.dumps(found))


def find_rows(mesh: Any) -> dict[str, Any]:
    """Returns the rows of a batch of eight on each device, and together."""
    import numpy as np

    from vit_jax.parallel.mesh import to_devices

    rows = to_devices({"x": np.arange(8)}, mesh)["x"]
    held = {s.device: s.data.tolist() for s in rows.addressable_shards}
    return {
        "rows_by_device": [held[d] for d in mesh.devices.ravel()],
        "rows_together": np.asarray(rows).tolist(),
    }


def find_parameters(mesh: Any) -> dict[str, Any]:
    """Returns shape, axes and shape on a device of the parameters of ViT-Ti/16."""
    import jax

    from vit_jax.named_tree import leaf_names

    params = program({"name": "ViT-Ti/16"}, 32, mesh).abstract.params
    return {
        "parameters": {
            name: [leaf.shape, list(leaf.sharding.spec), leaf.sharding.shard_shape(leaf.shape)]
            for name, leaf in zip(leaf_names(params), jax.tree.leaves(params), strict=True)
        }
    }


def find_initial_values(one: Any, eight: Any) -> dict[str, Any]:
    """Returns how a kernel of a new state is sharded, and how the states of two meshes differ."""
    import jax
    import numpy as np

    first, second = (program(SMALL, 8, mesh).init().params for mesh in (one, eight))
    kernel = second["encoder"]["blocks"]["mlp"]["expand"]["kernel"]
    gaps = jax.tree.map(
        lambda a, b: np.abs(a - b).max().item(), *map(jax.device_get, (first, second))
    )
    return {
        "born": [kernel.shape, kernel.addressable_shards[0].data.shape],
        "init_difference": max(jax.tree.leaves(gaps)),
    }


def find_sums(mesh: Any) -> list[dict[str, int]]:
    """Returns how many sums over devices there are of each type: of kernels, of all else.

    Counted as the partitioner writes them: afterwards a CPU does all its sums in float32.
    """
    with tempfile.TemporaryDirectory() as folder:
        program(
            SMALL | {"dtype": "bfloat16"},
            8,
            mesh,
            compiler_options={
                "xla_dump_to": folder,
                "xla_dump_hlo_as_text": True,
                "xla_dump_hlo_pass_re": "spmd-partitioning",
            },
        ).compile()
        (file,) = Path(folder).glob("*step_fn*after_spmd-partitioning*")
        rows = collectives(file.read_text())
    values = [value for row in rows if row["kind"] == "all-reduce" for value in row["values"]]
    is_kernel = [tuple(sorted(value["shape"])) in KERNELS for value in values]
    return [
        collections.Counter(v["dtype"] for v, k in zip(values, is_kernel, strict=True) if k is want)
        for want in (True, False)
    ]


def program(model: dict[str, Any], image_size: int, devices: Any, **sections: Any) -> Any:
    from vit_jax.config.run import Config
    from vit_jax.train.program import build_program

    config = Config.from_mapping(
        {
            "model": model,
            "data": {"name": "none", "image_size": image_size, "global_batch_size": 16},
            "optimizer": {"name": "sgd", "learning_rate": 0.2},
            "train_steps": 4,
            **sections,
        }
    )
    return build_program(config, devices, num_classes=10, num_examples=100)


if __name__ == "__main__":
    main()
