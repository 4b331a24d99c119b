"""The choice of loop, remat policy and microbatches, by hand-made tables and on a CPU."""

import dataclasses

import jax
import numpy as np
import pytest

from vit_jax.config.run import Config
from vit_jax.models.registry import family_of, model_options
from vit_jax.models.stacking import LayerLoop, Stack
from vit_jax.parallel.mesh import make_mesh
from vit_jax.train.program import build_program
from vit_jax.train.step_choice import (
    Device,
    Row,
    StepWork,
    Wanted,
    choose,
    read_table,
)

# 10 layers x 10 tokens x 10 features x 10 images: 10,000 values.
WORK = StepWork(
    stack=Stack(depth=10, width=10, tokens=10, layer_values=300),
    images=10,
    itemsize=2,
    flops=1000.0,
    state_bytes=1000.0,
    param_bytes=100.0,
    splits_exactly=True,
    total_steps=100,
)
# One second a FLOP and a byte, so that bounds are FLOPs or bytes.
DEVICE = Device("tpu", memory_bytes=200_000.0, peak_flops=1.0, memory_bandwidth=1.0)


def row(scan, remat, kept, moved, recomputed=0.0, compile_s=1.0, per_layer=0.0, width=10):
    return Row("tpu", "toy", width, scan, remat, kept, moved, recomputed, compile_s, per_layer)


TABLE = (
    row(False, "none", 12, 6, per_layer=1.0),
    row(False, "dots", 8, 8, per_layer=1.0),
    row(True, "none", 14, 10),
    row(True, "dots", 9, 9),
    row(True, "full", 1, 11),
)


def chosen(wanted=None, device=DEVICE, table=TABLE, **work):
    found = choose(device, dataclasses.replace(WORK, **work), wanted or Wanted(), table)
    return found.loop.scan, found.loop.remat, found.microbatches


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        # State and gradients are 1,100 bytes; nine tenths of the memory may be used.
        (121_100 / 0.9 + 1, (False, "none", 1)),
        (121_100 / 0.9 - 1, (False, "dots", 1)),
        (81_100 / 0.9 - 1, (True, "full", 1)),
        (11_100 / 0.9 + 1, (True, "full", 1)),
        # Two microbatches: gradients twice, half the activations.
        (11_100 / 0.9 - 1, (True, "full", 2)),
        (6_200 / 0.9 - 1, (True, "full", 5)),
        # Nothing fits: the least memory.
        (2_000, (True, "full", 10)),
        (None, (False, "none", 1)),
    ],
)
def test_the_least_traffic_that_fits_is_chosen(memory, expected):
    device = dataclasses.replace(DEVICE, memory_bytes=memory)
    assert chosen(device=device) == expected


def test_a_step_bound_by_compute_recomputes_nothing():
    # Traffic is 62,000 to 112,000 bytes, or less than the FLOPs. All bounds are then equal but for
    # recomputation, the scanned step compiles faster, and "dots" moves less of the two.
    table = (*TABLE, row(False, "full", 1, 1, recomputed=0.3))
    assert chosen(table=table, flops=1e6) == (True, "dots", 1)
    assert chosen(table=table) == (False, "full", 1)


def test_layers_that_compile_too_long_are_not_unrolled():
    slow = (row(False, "none", 1, 1, compile_s=20.0, per_layer=10.0), row(True, "dots", 1, 2))
    assert chosen(table=slow) == (False, "none", 1)  # 120 s.
    deep = dataclasses.replace(WORK.stack, depth=11)
    assert chosen(table=slow, stack=deep) == (True, "dots", 1)
    assert chosen(Wanted(scan=False), table=slow, stack=deep) == (False, "none", 1)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(True, "none", 5), (True, "none", 5)),
        (Wanted(scan=True), (True, "dots", 1)),
        (Wanted(remat="full"), (True, "full", 1)),
        (Wanted(scan=False, microbatches=2), (False, "none", 2)),
        # No row: the other value is a default.
        (Wanted(scan=False, remat="full"), (False, "full", 1)),
    ],
)
def test_values_of_the_config_win(wanted, expected):
    assert chosen(wanted) == expected


def test_the_row_of_the_nearest_width_counts():
    table = (row(True, "none", 1, 1, width=20), row(True, "full", 1, 2, width=100))
    small, large = (dataclasses.replace(WORK.stack, width=width) for width in (40, 50))
    assert chosen(table=table, stack=small) == (True, "none", 1)
    assert chosen(table=table, stack=large) == (True, "full", 1)


def test_a_step_with_random_draws_is_never_split():
    device = dataclasses.replace(DEVICE, memory_bytes=2000.0)
    assert chosen(device=device, splits_exactly=False) == (True, "full", 1)
    cpu = Device("cpu")
    assert chosen(device=cpu, images=1000, stack=big(12)) == (False, "none", 1000)
    assert chosen(device=cpu, images=1000, stack=big(12), splits_exactly=False)[2] == 1


def big(mib):
    """A stack that keeps this many MiB of an image in two bytes a value, and has much to do."""
    return Stack(depth=1, width=1, tokens=1, layer_values=mib * 2**19)


@pytest.mark.parametrize(
    ("images", "mib", "expected"),
    [(32, 3, 8), (30, 3, 6), (31, 3, 1), (4, 3, 1), (32, 24, 32), (6, 12, 6)],
)
def test_a_microbatch_on_a_cpu_keeps_12_mib_of_a_layer(images, mib, expected):
    assert chosen(device=Device("cpu"), images=images, stack=big(mib))[2] == expected


def test_a_cpu_unrolls_if_the_run_repays_the_compilation():
    # 9 more layers take 4.5 s, a tenth of 2.25e12 FLOPs at 5e10 a second.
    cpu = Device("cpu")
    assert chosen(device=cpu, flops=2.3e10)[0] is False
    assert chosen(device=cpu, flops=2.2e10)[0] is True
    assert chosen(device=cpu, flops=2.2e10, total_steps=105)[0] is False
    assert chosen(Wanted(scan=False), device=cpu, flops=1.0)[0] is False


def test_the_reason_is_one_line():
    found = choose(DEVICE, WORK, Wanted(), TABLE)
    assert str(found) == (
        "unrolled, remat none, 1 microbatch"
        " (least step bound that fits: 62000000.0 ms of memory, about 0.0 of 0.0 GiB)"
    )


@pytest.mark.parametrize(
    ("name", "side", "batch", "expected"),
    [
        ("ViT-Ti/16", 224, 32, 8),
        ("ViT-S/16", 224, 16, 8),
        ("ViT-Micro/4", 32, 64, 2),
        ("Mixer-B/16", 224, 8, 4),
    ],
)
def test_microbatches_of_known_models_on_a_cpu(name, side, batch, expected):
    options = model_options(name)
    stack = family_of(name).stack(options, (side, side))
    assert chosen(device=Device("cpu"), stack=stack, images=batch, itemsize=4)[2] == expected


def test_the_committed_table_has_every_policy_of_each_loop():
    rows = read_table()
    assert len({(row.platform, row.width, row.scan, row.remat) for row in rows}) == len(rows) >= 3
    for one in rows:
        alike = [
            r for r in rows if (r.platform, r.width, r.scan) == (one.platform, one.width, one.scan)
        ]
        assert {row.remat for row in alike} == {"none", "dots", "full"}
        assert one.kept_bytes > 0
        assert one.moved_bytes > 0
        assert one.remat != "none" or abs(one.recomputed) < 0.01


def tiny(**changes):
    mapping = {
        "model": {"name": "ViT-Ti/4", "width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2},
        "data": {"name": "synthetic", "image_size": 8, "global_batch_size": 8,
                 "augment": {"flip": False}},
        "optimizer": {"learning_rate": 0.1},
        "train_steps": 3,
    }  # fmt: skip
    mapping["model"] |= changes.pop("model", {})
    config = Config.from_mapping({**mapping, **changes})
    return build_program(config, make_mesh(config.mesh), num_classes=3, num_examples=8)


def test_a_program_says_what_it_has_chosen():
    program = tiny()
    assert program.choice.loop == LayerLoop(True, "none")
    assert program.choice.microbatches == 1
    assert tiny(model={"scan": False}).choice.loop == LayerLoop(False, "none")
    assert tiny(accumulation_steps=2).choice.microbatches == 2


@pytest.mark.parametrize(
    ("model", "task", "exact"),
    [
        ({}, "classification", True),
        ({"dropout": 0.1}, "classification", False),
        ({"stochastic_depth": 0.1}, "classification", False),
        ({}, "masked_patches", True),  # The corruption is drawn before the batch is split.
    ],
)
def test_a_task_says_whether_its_loss_splits_exactly(model, task, exact):
    assert tiny(model=model, task=task).task.splits_exactly is exact


@pytest.mark.slow
def test_what_auto_chooses_on_a_cpu_gives_the_same_parameters():
    """Ti/16 at 64 pixels for many steps: unrolled, in microbatches. Equal to float32 rounding."""
    model = {"name": "ViT-Ti/4", "width": 64, "depth": 3, "mlp_dim": 256}
    data = {"name": "synthetic", "image_size": 64, "global_batch_size": 16,
            "augment": {"flip": False}}  # fmt: skip
    programs = [
        tiny(model=model | own, data=data, train_steps=10_000, **more)
        for own, more in (({}, {}), ({"scan": True, "remat": "none"}, {"accumulation_steps": 1}))
    ]
    assert programs[0].choice.loop == LayerLoop(False, "none")
    assert programs[0].choice.microbatches > 1
    batch = programs[0].example_batch()
    states = [program.compiled(program.init(), batch)[0] for program in programs]
    for one, other in zip(*(jax.tree.leaves(state.params) for state in states), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
