"""Plans of a small run on this CPU, compared with figures counted by hand."""

import dataclasses

import jax
import pytest

from vit_jax.config.run import Config
from vit_jax.models.flops import forward_macs
from vit_jax.plan.estimate import CompilerError, Sizes, _requested_memory, find_sizes, make_plan
from vit_jax.train.chips import Chip
from vit_jax.train.program import Program

CHIP = Chip("toy", "cpu", 2**30, 1e12, 1e11, 1e10, "ours")
SIZES = Sizes(10, 1437, "as given")
WIDTH, DEPTH, MLP, BATCH, TOKENS = 32, 3, 64, 8, 5


def config(**changes):
    sizes = {"width": WIDTH, "depth": DEPTH, "mlp_dim": MLP, "num_heads": 2}
    return Config.from_mapping(
        {
            "model": {"name": "ViT-Ti/4", **sizes, **changes},
            "data": {"name": "digits", "image_size": 8, "global_batch_size": BATCH},
            "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.1},
            "train_epochs": 4.0,
        }
    )


@pytest.fixture(scope="module")
def plans():
    made = {}
    for remat in ("none", "full"):
        with jax.numpy_dtype_promotion("standard"):
            made[remat] = make_plan(config(remat=remat), jax.devices()[:1], CHIP, SIZES)
    return made


@pytest.mark.slow
def test_the_state_is_parameters_and_two_moments(plans):
    plan = plans["none"]
    block = 4 * WIDTH**2 + 4 * WIDTH + 2 * WIDTH * MLP + WIDTH + MLP + 4 * WIDTH
    stem = 4 * 4 * 3 * WIDTH + WIDTH + WIDTH + TOKENS * WIDTH
    count = DEPTH * block + stem + 2 * WIDTH + WIDTH * 10 + 10
    assert plan.parameters == count
    assert plan.memory.state["parameters"] == 4 * count
    # Counters of steps, i32, beside the moments.
    assert 0 <= plan.memory.state["optimizer"] - 8 * count <= 16
    # Bytes of images, labels i32, mask.
    assert plan.memory.state["batch"] == BATCH * (8 * 8 * 3 + 4 + 1)
    assert plan.memory.total > sum(plan.memory.state.values())
    assert plan.fits is True
    assert (plan.mesh, plan.collectives) == ({"data": 1, "fsdp": 1, "tensor": 1}, ())


def test_flops_are_counted_through_the_loop(plans):
    side = {"num_classes": 10, "image_size": (8, 8)}
    macs = forward_macs(config().model, **side)
    model = 6 * macs * BATCH
    # The patch embedding has no gradient to the images: 2 FLOPs less of each product there.
    no_gradient = 2 * BATCH * 4 * (4 * 4 * 3) * WIDTH
    assert plans["none"].work.model_flops == model
    assert plans["none"].work.executed_flops == model - no_gradient
    # Full remat computes the blocks' forward pass again, all but the last product: nothing needs
    # the result of a block's MLP.
    block = 4 * TOKENS * WIDTH**2 + 2 * TOKENS**2 * WIDTH + TOKENS * WIDTH * MLP
    again = 2 * BATCH * DEPTH * block
    assert plans["full"].work.executed_flops == model - no_gradient + again


def test_remat_needs_less_memory_and_more_flops(plans):
    none, full = plans["none"], plans["full"]
    assert full.memory.temporaries < none.memory.temporaries
    assert full.work.executed_flops > 1.1 * none.work.executed_flops


def test_the_bound_depends_on_the_chip(plans):
    plan = plans["none"]
    seconds = plan.roofline.overlapped_s
    traffic = plan.work.memory_bytes
    assert traffic is not None
    assert seconds == max(plan.work.executed_flops / 1e12, traffic / 1e11)
    assert plan.images_per_second == BATCH / seconds
    # All of the state is read, and parameters and moments are written.
    assert traffic > 2 * plan.memory.state["parameters"] + 2 * plan.memory.state["optimizer"]


def test_total_steps_follow_from_epochs_and_examples(plans):
    assert plans["none"].total_steps == round(4 * 1437 / BATCH)


def test_a_run_does_not_fit_on_a_device_with_one_byte_too_little(plans):
    plan = plans["none"]
    small = dataclasses.replace(CHIP, memory_bytes=float(plan.memory.total - 1))
    assert dataclasses.replace(plan, chip=small).fits is False


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO"
         " temporaries (43.50G) exceeds available HBM (15.75G).", 43.5 * 2**30),
        ("RESOURCE_EXHAUSTED: Used 512.0M of 256M hbm.", 2**29),
        ("RESOURCE_EXHAUSTED: no size", 0),
        ("INTERNAL: temporaries (43.50G)", None),
    ],
)  # fmt: skip
def test_requested_memory_is_read_from_the_compilers_message(message, size):
    assert _requested_memory(message) == size


def test_what_a_compiler_cannot_do_is_one_line(monkeypatch):
    def fail(self):
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: SomeFusion not implemented\n2. line")

    monkeypatch.setattr(Program, "compiled", property(fail))
    with (
        jax.numpy_dtype_promotion("standard"),
        pytest.raises(CompilerError) as caught,
    ):
        make_plan(config(), jax.devices()[:1], CHIP, SIZES)
    failure = "UNIMPLEMENTED: SomeFusion not implemented"
    assert caught.value.got == f"the compiler for toy fails on this step: {failure}"


def test_sizes_come_from_the_command_line_then_the_dataset():
    assert find_sizes(config(), None, None) == Sizes(10, 1437, "digits as published")
    assert find_sizes(config(), 5, 100) == Sizes(5, 100, "as given")
    assert find_sizes(config(), None, 100).num_examples == 100


def test_the_error_for_an_unknown_dataset_names_the_missing_flags(tmp_path):
    from vit_jax.errors import DataError

    data = config().data.replace(name="photos", data_dir=str(tmp_path))
    unknown = config().replace(data=data)
    with pytest.raises(DataError, match=r"add --num_classes=N and --num_examples=N"):
        find_sizes(unknown, None, None)
    with pytest.raises(DataError, match=r"add --num_examples=N"):
        find_sizes(unknown, 3, None)
