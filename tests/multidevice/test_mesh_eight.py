"""Run as a program on eight devices, this file prints as JSON what its tests look at."""

import collections
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from eight_devices import CUBE, collectives, run_on_eight, small_program

pytestmark = pytest.mark.multidevice

SMALL = {
    "model": {"name": "ViT-Ti/4", "width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64},
    "data": {"image_size": 8},
}
# Sizes of its kernels, as the matrices that the step makes of them: queries, keys and values; out;
# expand; contract; embedding; head.
KERNELS = [(32, 96), (32, 32), (32, 64), (32, 64), (32, 48), (10, 32)]


@pytest.fixture(scope="module")
def found(once) -> dict[str, Any]:
    return once("mesh", lambda: run_on_eight(__file__))


def test_rows_are_on_devices_in_order_and_repeated_along_the_tensor_axis(found):
    # Eight rows over data x fsdp = 4 places, each held by two devices along tensor.
    assert found["rows_by_device"] == [[0, 1]] * 2 + [[2, 3]] * 2 + [[4, 5]] * 2 + [[6, 7]] * 2
    assert found["rows_together"] == list(range(8))


def test_initial_values_are_created_sharded_and_do_not_depend_on_the_mesh(found):
    assert found["born"] == [[2, 32, 64], [2, 16, 32]]
    assert found["init_difference"] == 0.0


def test_gradients_are_summed_over_devices_in_the_dtype_of_their_layer(found):
    kernels, rest = found["sums"]
    assert kernels == {"bf16": len(KERNELS) - 1, "f32": 1}  # The head computes in float32.
    assert rest.keys() == {"f32", "bf16"}  # Norms do as well, biases do not.


def main() -> None:
    found = find_rows() | find_initial_values() | {"sums": find_sums()}
    print(json.dumps(found))


def find_rows() -> dict[str, Any]:
    """Returns the rows of a batch of eight on each device, and together."""
    import numpy as np

    from vit_jax.config.mesh import MeshConfig
    from vit_jax.parallel.mesh import make_mesh, to_devices

    mesh = make_mesh(MeshConfig(**CUBE))
    rows = to_devices({"x": np.arange(8)}, mesh)["x"]
    held = {s.device: s.data.tolist() for s in rows.addressable_shards}
    return {
        "rows_by_device": [held[d] for d in mesh.devices.ravel()],
        "rows_together": np.asarray(rows).tolist(),
    }


def find_initial_values() -> dict[str, Any]:
    """Returns how a kernel of a new state is sharded, and how the states of two meshes differ."""
    import jax
    import numpy as np

    first, second = (small_program(mesh, **SMALL).init().params for mesh in ({}, CUBE))
    kernel = second["encoder"]["blocks"]["mlp"]["expand"]["kernel"]
    gaps = jax.tree.map(
        lambda a, b: np.abs(a - b).max().item(), *map(jax.device_get, (first, second))
    )
    return {
        "born": [kernel.shape, kernel.addressable_shards[0].data.shape],
        "init_difference": max(jax.tree.leaves(gaps)),
    }


def find_sums() -> list[dict[str, int]]:
    """Returns how many sums over devices there are of each type: of kernels, of all else.

    Counted as the partitioner writes them: afterwards a CPU does all its sums in float32.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = SMALL["model"] | {"dtype": "bfloat16"}
        _ = small_program(
            {"data": 1, "fsdp": 8},
            **{**SMALL, "model": model},
            compiler_options={
                "xla_dump_to": folder,
                "xla_dump_hlo_as_text": True,
                "xla_dump_hlo_pass_re": "spmd-partitioning",
            },
        ).compiled
        (file,) = Path(folder).glob("*step_fn*after_spmd-partitioning*")
        rows = collectives(file.read_text())
    values = [value for row in rows if row["kind"] == "all-reduce" for value in row["values"]]
    is_kernel = [tuple(sorted(value["shape"])) in KERNELS for value in values]
    return [
        collections.Counter(v["dtype"] for v, k in zip(values, is_kernel, strict=True) if k is want)
        for want in (True, False)
    ]


if __name__ == "__main__":
    main()
