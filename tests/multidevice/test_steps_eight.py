"""Five steps on eight devices, on every kind of mesh, against the same steps on one.

Run as a program, this file trains one model on all meshes and prints what its tests look at. With
"pallas" it trains the ViT with this kernel on two meshes, which takes as long.
"""

import collections
import json
import math
import sys
from typing import Any

import pytest
from eight_devices import collectives, run_on_eight, shapes, small_program

pytestmark = [pytest.mark.multidevice, pytest.mark.slow]

MESHES = {
    "data": {"preset": "replicated"},
    "fsdp": {"data": 1, "fsdp": 8, "preset": "fsdp"},
    "tensor": {"data": 2, "tensor": 4},
    # Two slices of four devices, divided along data.
    "mixed": {"data": 2, "fsdp": 2, "tensor": 2, "slices": 2},
}
STEPS, SIDE = 5, 8
PALLAS = {"attention_implementation": "pallas"}
VIT = "ViT-Mini/4"
FAMILIES = [VIT, "R+ViT-Mini/4", "BiT-R-Mini"]
# Instructions of each kind in the compiled step of the ViT: what is inside the loop over its blocks
# counts once. Of fsdp's gathers, four are in the forward and four in the backward loop.
GOLDEN_JAX = "0.10.2"
GOLDEN = {
    "data": {"all-reduce": 2, "collective-permute": 2},
    "fsdp": {"all-gather": 6, "all-reduce": 5, "collective-permute": 2},
    "tensor": {"all-gather": 1, "all-reduce": 12, "collective-permute": 2},
    "mixed": {"all-gather": 12, "all-reduce": 23, "collective-permute": 4},
}


@pytest.fixture(scope="module")
def found_of(once):
    return lambda name: once(f"steps-{name}", lambda: run_on_eight(__file__, name))


@pytest.mark.parametrize("name", FAMILIES)
def test_loss_and_parameters_after_five_steps_do_not_depend_on_the_mesh(found_of, name):
    found = found_of(name)
    one = found["one"]["losses"]
    # log 16 with a head at zero.
    assert abs(one[0] - 2.7725887) < 1e-5
    # Losses and parameters have moved much further than they differ.
    assert min(abs(loss - one[0]) for loss in one[1:]) > 1e-4
    assert found["moved"] > 1e-2
    for mesh in MESHES:
        losses = found[mesh]["losses"]
        assert max(abs(a - b) for a, b in zip(one, losses, strict=True)) < 1e-5, mesh
        assert found[mesh]["difference"] < 1e-5, mesh


@pytest.mark.parametrize("mesh", ["fsdp", "mixed"])
def test_the_pallas_kernel_computes_the_same_on_a_mesh(found_of, mesh):
    """Each device runs it for its own images and heads."""
    found = found_of("pallas")
    losses = found[mesh]["losses"]
    assert max(abs(a - b) for a, b in zip(found["one"]["losses"], losses, strict=True)) < 1e-5
    assert 0 < found[mesh]["difference"] < 1e-5


@pytest.mark.parametrize("name", FAMILIES)
def test_the_whole_donated_state_is_reused(found_of, name):
    """Parameters, momentum and average of the new state lie in the memory of the old one."""
    for mesh in ("one", *MESHES):
        found = found_of(name)[mesh]
        assert found["aliased"] == found["born_bytes"][0], mesh


@pytest.mark.parametrize("name", FAMILIES)
def test_each_device_creates_only_its_shard(found_of, name):
    found = found_of(name)
    (whole,) = found["one"]["born_bytes"]
    assert found["data"]["born_bytes"] == [whole] * 8
    for mesh, least, most in (("fsdp", 1 / 8, 1 / 7), ("tensor", 1 / 4, 1), ("mixed", 1 / 4, 0.6)):
        (part,) = set(found[mesh]["born_bytes"])
        assert len(found[mesh]["born_bytes"]) == 8
        assert whole * least < part < whole * most, mesh


def assert_only_mixup_partners_move(rows):
    """An image is mixed with its neighbour, which for one a device lies on the next device."""
    assert shapes(rows, "collective-permute") == [[1, 16], [1, SIDE, SIDE, 3]]


@pytest.mark.parametrize("name", FAMILIES)
def test_on_a_data_mesh_nothing_is_gathered(found_of, name):
    rows = found_of(name)["data"]["collectives"]
    assert {row["kind"] for row in rows} <= {"all-reduce", "collective-permute"}
    assert_only_mixup_partners_move(rows)


@pytest.mark.parametrize("name", FAMILIES)
def test_on_an_fsdp_mesh_parameters_are_gathered_and_activations_stay(found_of, name):
    found = found_of(name)
    kernels = [plain(shape) for shape in found["kernels"]]
    rows = found["fsdp"]["collectives"]
    assert "all-to-all" not in {row["kind"] for row in rows}
    assert_only_mixup_partners_move(rows)
    gathered = [plain(shape) for shape in shapes(rows, "all-gather")]
    for shape in gathered:
        assert shape in kernels, f"all-gather of {shape}, which is no kernel"
    # Once forward and once backward at most.
    count, allowed = collections.Counter(gathered), collections.Counter(kernels)
    assert all(count[shape] <= 2 * allowed[shape] for shape in count)
    # What is summed is a gradient or a norm of one: nothing has a row for each example.
    parameters = {*kernels, *(plain(shape) for shape in found["others"]), ()}
    # On CPUs the gradient of a convolution is that of a matmul: all axes but the last as one.
    convolutions = [shape[-4:] for shape in found["kernels"] if len(shape) >= 4]
    parameters |= {plain([math.prod(shape[:-1]), shape[-1]]) for shape in convolutions}
    for shape in map(plain, shapes(rows, "all-reduce", "reduce-scatter")):
        assert shape in parameters, f"sum of {shape}"


def plain(shape: list[int]) -> tuple[int, ...]:
    """A shape whatever its order, without dimensions of one."""
    return tuple(sorted(size for size in shape if size != 1))


def test_tensor_parallelism_of_a_block_takes_two_all_reduces_forward_and_two_backward(found_of):
    """As in Megatron-LM (arXiv:1909.08053): of tokens, [8 examples a device, 5, 128]."""
    rows = found_of(VIT)["tensor"]["collectives"]
    tokens = [row["kind"] for row in rows for v in row["values"] if v["shape"] == [8, 5, 128]]
    assert tokens == ["all-reduce"] * 4
    # The bias of the head alone, which is added to logits that are cut by class.
    assert shapes(rows, "all-gather") == [[16]]


@pytest.mark.parametrize("name", FAMILIES)
def test_between_slices_only_gradients_are_summed_each_device_its_shard(found_of, name):
    """Parameters are gathered, and gradients first summed, inside a slice."""
    found = found_of(name)["mixed"]
    crossing = [row for row in found["between"] if row["between"]]
    assert {row["kind"] for row in crossing} == {"all-reduce", "collective-permute"}
    assert {row["kind"] for row in found["between"]} > {"all-reduce", "collective-permute"}
    # An all-reduce over two slices receives the value once: the gradients of a device's parameters,
    # which are a third of its parameters, momentum and average.
    summed = sum(row["between"] for row in crossing if row["kind"] == "all-reduce")
    assert 0.5 < summed / (found["born_bytes"][0] / 3) < 1.1


@pytest.mark.parametrize("mesh", MESHES)
def test_the_step_has_the_golden_number_of_collectives(found_of, mesh):
    import jax

    found = collections.Counter(row["kind"] for row in found_of(VIT)[mesh]["collectives"])
    golden = GOLDEN[mesh]
    if jax.__version__ == GOLDEN_JAX:
        assert dict(found) == golden
    # Others may join sums or split them, and make a sum of which each keeps a part another kind.
    for kind in ("all-gather", "all-to-all", "collective-permute"):
        assert found[kind] <= golden.get(kind, 0) + 2


def main() -> None:
    import numpy as np

    kernel = sys.argv[1] == "pallas"
    name = VIT if kernel else sys.argv[1]
    rng = np.random.default_rng(0)
    batches = [
        {
            "image": rng.integers(256, size=(16, SIDE, SIDE, 3), dtype=np.uint8),
            "label": rng.integers(16, size=16, dtype=np.int32),
            "mask": np.ones(16, bool),
        }
        for _ in range(STEPS)
    ]
    meshes = {"one": {}} | {key: MESHES[key] for key in (("fsdp", "mixed") if kernel else MESHES)}
    runs = {
        key: train_on(name, mesh, batches, PALLAS if kernel and key != "one" else {})
        for key, mesh in meshes.items()
    }
    found: dict[str, Any] = {key: figures for key, (figures, _, _) in runs.items()}
    _, first, last = runs["one"]
    found["moved"] = apart(first, last)
    for figures, _, params in runs.values():
        figures["difference"] = apart(last, params)
    found["kernels"], found["others"] = layer_shapes(first)
    print(json.dumps(found))


def train_on(
    name: str, mesh: dict[str, Any], batches: list[Any], options: dict[str, Any]
) -> tuple[dict[str, Any], Any, Any]:
    """Returns figures of a run, its first and its last parameters."""
    import jax

    from vit_jax.parallel.mesh import to_devices
    from vit_jax.parallel.slices import slice_of_devices
    from vit_jax.plan.hlo import parse
    from vit_jax.plan.traffic import find_collectives

    vit = {"dropout": 0.1, "stochastic_depth": 0.1} if "ViT" in name else {}
    program = small_program(
        mesh,
        num_classes=16,
        model={"name": name, **vit, **options},
        data={"image_size": SIDE, "augment": {"flip": True, "mix": {"mixup_alpha": 0.2}}},
        optimizer={"name": "sgd", "learning_rate": 0.05, "clip_global_norm": 1.0},
        ema_decay=0.9,
        train_steps=2 * STEPS,
    )
    step_fn, state, devices = program.compiled, program.init(), program.mesh.devices
    first = jax.device_get(state.params)
    held = collections.Counter()
    for leaf in jax.tree.leaves(state):
        for shard in leaf.addressable_shards:
            held[shard.device] += shard.data.nbytes
    losses = []
    for batch in batches:
        state, metrics = step_fn(state, to_devices(batch, program.mesh))
        losses.append(metrics["train/loss"].item())
    figures = {
        "losses": losses,
        "aliased": getattr(step_fn.memory_analysis(), "alias_size_in_bytes", None),
        "born_bytes": list(held.values()),
        "collectives": collectives(step_fn.as_text() or ""),
        "between": [
            {"kind": one.kind, "between": one.between}
            for one in find_collectives(
                parse(step_fn.as_text() or ""),
                devices.size,
                slice_of_devices(list(devices.flat), program.config.mesh.slices),
            )
        ],
    }
    return figures, first, jax.device_get(state.params)


def apart(one: Any, other: Any) -> float:
    import jax
    import numpy as np

    gaps = jax.tree.map(lambda a, b: np.abs(a - b).max().item(), one, other)
    return max(jax.tree.leaves(gaps))


def layer_shapes(params: Any) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the shapes of kernels, as a layer multiplies by them, and of all other parameters."""
    import jax

    from vit_jax.named_tree import leaf_names

    kernels, others = [], []
    for name, leaf in zip(leaf_names(params), jax.tree.leaves(params), strict=True):
        shape = leaf.shape[1:] if "/blocks/" in name else leaf.shape
        if name == "patch_embedding/kernel":
            shape = (shape[0] * shape[1] * shape[2], shape[3])
        if name.endswith("attention/qkv/kernel"):
            shape = (shape[0], math.prod(shape[1:]))
        if name.endswith("attention/qkv/bias"):
            shape = (math.prod(shape),)
        if name.endswith("attention/out/kernel"):
            shape = (math.prod(shape[:-1]), shape[-1])
        (kernels if name.endswith("kernel") else others).append(list(shape))
    return kernels, others


if __name__ == "__main__":
    main()
