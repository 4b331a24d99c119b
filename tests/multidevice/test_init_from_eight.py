"""Parameters of a file come to eight devices cut as the mesh says, and are the file's.

Run as a program, this file prints what its tests look at.
"""

import json
import sys
from typing import Any

import pytest
from eight_devices import run_on_eight, small_program

pytestmark = pytest.mark.multidevice


@pytest.mark.slow
def test_parameters_equal_those_of_the_file_and_each_device_holds_its_shard(once, tmp_path):
    found = once("init-from", lambda: run_on_eight(__file__, str(tmp_path / "ours")))
    assert found["largest_difference"] == found["ema_difference"] == found["head"] == 0.0
    # Two layers of kernels 24 x 36: over fsdp of 4 and tensor of 2.
    assert found["kernel"] == [[2, 24, 36], [2, 6, 18]]
    assert found["same_shardings"]
    assert found["loss"] == pytest.approx(1.9459101, abs=1e-5)  # log 7, after a step


def main(path: str) -> None:
    from pathlib import Path

    import jax
    import numpy as np
    from flax import nnx
    from weight_files import random_weights

    from vit_jax.interop.load import load
    from vit_jax.named_tree import named_leaves
    from vit_jax.parallel.mesh import to_devices
    from vit_jax.train.init_from import start_from_weights

    model = random_weights(Path(path)).options.to_mapping()
    program = small_program(
        {"data": 1, "fsdp": 4, "tensor": 2},
        num_classes=7,
        model=dict(model),
        data={"image_size": 48},
        ema_decay=0.9,
        init_from=path,
    )
    state, _ = start_from_weights(program)

    def largest_gap(one: Any, other: Any) -> float:
        gaps = jax.tree.map(
            lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), one, other
        )
        return max(jax.tree.leaves(gaps))

    wanted = nnx.to_pure_dict(nnx.state(load(path, image_size=48, num_classes=7).model))
    head, kernel = (
        named_leaves(state.params)[name]
        for name in ("head/linear/kernel", "encoder/blocks/mlp/expand/kernel")
    )
    same = jax.tree.map(
        lambda a, b: a.sharding.is_equivalent_to(b.sharding, a.ndim), state, program.abstract
    )
    found = {
        "largest_difference": largest_gap(state.params, wanted),
        "head": float(np.abs(np.asarray(head)).max()),
        "ema_difference": largest_gap(state.params, state.ema),
        "kernel": [list(kernel.shape), list(kernel.addressable_shards[0].data.shape)],
        "same_shardings": all(jax.tree.leaves(same)),
    }
    _, metrics = program.compiled(state, to_devices(program.example_batch(), program.mesh))
    found["loss"] = float(metrics["train/loss"])
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
