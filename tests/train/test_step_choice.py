"""What cannot fit is refused; the choice of loop, remat policy and microbatches, by hand."""

import dataclasses

import jax
import numpy as np
import pytest
from small_config import small_mapping

from vit_jax import memory
from vit_jax.config.mesh import MeshConfig
from vit_jax.config.run import Config
from vit_jax.errors import MemoryLimitError
from vit_jax.models.registry import family_of, model_options
from vit_jax.models.stacking import LayerLoop, Stack
from vit_jax.parallel.mesh import make_mesh
from vit_jax.train.program import build_program
from vit_jax.train.step_choice import (
    PREFERRED,
    StepChoice,
    StepSizes,
    check_step,
    choose,
    read_table,
)

# 10 layers x 10 tokens x 384 features x 10 images: 384,000 values.
SIZES = StepSizes(
    stack=Stack(depth=10, width=384, tokens=10, layer_values=300),
    images=10,
    itemsize=2,
    flops=1e5,
    state_bytes=1000.0,
    param_bytes=100.0,
    splits_exactly=True,
)


def chosen(platform="tpu", memory=None, *, scan="auto", remat="auto", microbatches="auto", **sizes):
    mapping = small_mapping(
        model__scan=scan, model__remat=remat, accumulation_steps=microbatches,
        data__global_batch_size=120,
    )  # fmt: skip
    config = Config.from_mapping(mapping)
    found = choose(config, platform, memory, dataclasses.replace(SIZES, **sizes))
    return found.loop.scan, found.loop.remat, found.microbatches


def need(kept, parts=1):
    """The memory that is enough: nine tenths may hold state, gradients and what layers keep."""
    return (1000 + 100 * (1 + (parts > 1)) + kept * 384_000 / parts) / 0.9


# What a layer of ViT-S/16 keeps: TPU, scanned: none 32.78, dots 20.87, full 2.73; GPU, unrolled:
# none 32.63, dots 20.51, full 2.38; scanned: full 2.74.
@pytest.mark.parametrize(
    ("platform", "memory", "expected"),
    [
        ("tpu", None, (True, "dots", 1)),
        ("tpu", need(20.87) + 1, (True, "dots", 1)),
        ("tpu", need(20.87) - 1, (True, "full", 1)),
        ("tpu", need(2.73) - 1, (True, "full", 2)),  # Gradients twice, half the activations.
        ("tpu", need(2.73, parts=2) - 1, (True, "full", 5)),
        ("tpu", 2_000, (True, "full", 10)),  # Nothing fits: the least memory.
        ("gpu", need(32.63) + 1, (False, "none", 1)),
        ("gpu", need(32.63) - 1, (False, "dots", 1)),
        ("gpu", need(20.51) - 1, (False, "full", 1)),
    ],
)
def test_the_first_setting_that_fits_is_chosen(platform, memory, expected):
    assert chosen(platform=platform, memory=memory) == expected


def test_parameters_that_are_gathered_are_kept_where_nothing_is_recomputed():
    for gathered, remat in ((0.0, "none"), (100.0, "dots")):
        found = chosen(platform="gpu", memory=need(32.63) + 1, gathered_bytes=gathered)
        assert found == (False, remat, 1)


def test_layers_that_compile_too_long_are_not_unrolled():
    deep = dataclasses.replace(SIZES.stack, depth=29)
    assert chosen(platform="gpu", stack=deep) == (True, "dots", 1)
    assert chosen(scan=False, platform="gpu", stack=deep) == (False, "none", 1)


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ({"scan": True, "remat": "none", "microbatches": 5}, (True, "none", 5)),
        ({"scan": True}, (True, "dots", 1)),
        ({"remat": "full"}, (True, "full", 1)),
        ({"scan": False, "microbatches": 2}, (False, "none", 2)),
        ({"scan": False, "remat": "full"}, (False, "full", 1)),
    ],
)
def test_values_of_the_config_win(configured, expected):
    assert chosen(**configured) == expected


@pytest.mark.parametrize("microbatches", [1, 4])
def test_values_of_the_config_win_on_a_cpu(microbatches):
    """Two microbatches fill the cache."""
    sizes = {"platform": "cpu", "images": 8, "stack": big(3)}
    assert chosen(**sizes) == (False, "none", 2)
    configured = {"remat": "full", "microbatches": microbatches}
    assert chosen(**configured, **sizes) == (False, "full", microbatches)
    assert chosen(scan=True, **sizes) == (True, "none", 2)


def test_the_row_of_the_nearest_width_counts():
    """Scanned "dots" keeps 20.87 bytes at width 384 and 23.25 at 768; 544 is nearer to 768."""
    for width, kept in ((540, 20.87), (544, 23.25)):
        stack = dataclasses.replace(SIZES.stack, width=width)
        memory = need(kept * width / 384)
        assert chosen(memory=memory + 1, stack=stack)[1] == "dots"
        assert chosen(memory=memory - 1, stack=stack)[1] == "full"


def test_xlas_attention_needs_memory_for_its_logits_on_a_tpu():
    """10 images with 1,000 logits: 20 bytes each in one layer; with remat none, 9 more in ten."""
    stack = dataclasses.replace(SIZES.stack, logits=1000)
    for remat, kept, logits in (("dots", 20.87, 200_000), ("none", 32.78, 1_100_000)):
        wanted = {"scan": True, "remat": remat}
        for bytes_, parts in ((need(kept) + logits / 0.9 + 1, 1), (need(kept) + 1, 2)):
            assert chosen(**wanted, memory=bytes_, stack=stack)[2] == parts
        assert chosen(**wanted, memory=need(kept) + 1) == (True, remat, 1)
    options = model_options("ViT-S/16")
    stack_of = family_of("ViT-S/16").stack
    assert stack_of(options, (224, 224)).logits == 0
    assert stack_of(options.with_xla_attention(), (224, 224)).logits == 6 * 197**2


def test_a_step_with_random_draws_is_never_split():
    assert chosen(memory=2000.0, splits_exactly=False) == (True, "full", 1)
    assert chosen(platform="cpu", images=1000, stack=big(12)) == (False, "none", 1000)
    assert chosen(platform="cpu", images=1000, stack=big(12), splits_exactly=False)[2] == 1


def big(mib):
    """A stack that keeps this many MiB of an image in two bytes a value, and has much to do."""
    return Stack(depth=1, width=1, tokens=1, layer_values=mib * 2**19)


@pytest.mark.parametrize(
    ("images", "mib", "expected"),
    [(32, 3, 8), (30, 3, 6), (31, 3, 1), (4, 3, 1), (32, 24, 32), (6, 12, 6)],
)
def test_a_microbatch_on_a_cpu_keeps_12_mib_of_a_layer(images, mib, expected):
    assert chosen(platform="cpu", images=images, stack=big(mib))[2] == expected


def test_a_cpu_unrolls_if_the_run_repays_the_compilation():
    # 9 more layers take 4.5 s, a tenth of 2.25e12 FLOPs at 5e10 a second.
    assert chosen(platform="cpu", flops=2.3e12)[0] is False
    assert chosen(platform="cpu", flops=2.2e12)[0] is True
    assert chosen(scan=False, platform="cpu", flops=1.0)[0] is False


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
    assert chosen(platform="cpu", stack=stack, images=batch, itemsize=4)[2] == expected


def test_the_committed_table_has_every_setting():
    table = read_table()
    assert table.keys() == {(name, loop) for name in ("tpu", "gpu") for loop in PREFERRED[name]}
    for (platform, _), kept_at in table.items():
        assert kept_at.keys() == table[platform, PREFERRED[platform][0]].keys()
        assert all(kept > 0 for kept in kept_at.values())


def tiny(**changes):
    mapping = {
        "model": {"name": "ViT-Ti/4", "width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2},
        "data": {"name": "synthetic", "image_size": 8, "global_batch_size": 8},
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


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_step_executes_its_layers_as_chosen(scan, remat, monkeypatch):
    choice = StepChoice(LayerLoop(scan, remat), 1, "for this test")
    monkeypatch.setattr("vit_jax.train.program.choose_step", lambda *_: choice)
    program = tiny()
    text = str(jax.make_jaxpr(program.step_fn)(program.abstract, program.batch_shapes()))
    assert ("unroll=2" in text) == (not scan)
    assert ("checkpoint" in text or "remat" in text) == (remat == "full")


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
    assert tiny(model=model, task={"name": task}).task.splits_exactly is exact


@pytest.mark.slow
def test_what_auto_chooses_on_a_cpu_gives_the_same_parameters():
    """Ti/16 at 64 pixels for many steps: unrolled, in microbatches. Equal to float32 rounding."""
    model = {"name": "ViT-Ti/4", "width": 64, "depth": 3, "mlp_dim": 256}
    data = {"name": "synthetic", "image_size": 64, "global_batch_size": 16}
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


@pytest.fixture(autouse=True)
def _machine(monkeypatch):
    """A machine with 24 GB."""
    monkeypatch.setattr(memory, "machine_bytes", lambda: 24 * 10**9)


def build(num_classes=10, *, planned=False, **changes):
    config = Config.from_mapping(small_mapping(**changes))
    mesh = make_mesh(MeshConfig())
    return build_program(config, mesh, num_classes=num_classes, num_examples=100, planned=planned)


@pytest.mark.parametrize(
    ("changes", "estimate"),
    [
        # 128 x 1,000,000^2 x 3 channels x 1 byte, and so on, all by hand.
        ({"data__image_size": 1_000_000}, "384.0 TB for a batch of 128 images of 1,000,000 x"),
        ({"data__global_batch_size": 10**11}, "15.1 PB for a batch of 100,000,000,000 images"),
        ({"evaluation__batch_size": 10**9}, "150.5 TB for a batch of 1,000,000,000 images"),
        ({"data__num_workers": 1000}, "40.0 GB for 1,000 reader processes"),
        (
            {
                "data__image_size": 40_000,
                "data__global_batch_size": 1,
                "data__augment": {"crop": {"name": "pad", "pixels": 39_999}},
                "train_steps": 1,
            },
            "43.2 GB for an image of 40,000 x 40,000 pixels with 39,999 around it",
        ),
        ({"model__width": 3 * 10**9}, "2.4 TB for 197 tokens of width 3,000,000,000"),
        # 16 bytes for each of 192 weights and a bias per class, or of 444,864 parameters per layer.
        ({"num_classes": 10**10}, "30.9 TB for parameters, gradients and optimizer state (head/"),
        ({"model__depth": 10**9}, "7.1 PB for parameters, gradients and optimizer state (encoder/"),
    ],
)
def test_sizes_that_cannot_fit_are_refused_with_the_estimate(changes, estimate):
    with pytest.raises(MemoryLimitError) as caught:
        build(**changes)
    assert caught.value.got.startswith(estimate)
    assert caught.value.got.endswith("this machine has 24.0 GB")


def test_the_largest_parameter_is_named():
    """The head has 192 x 5,000,000 float32: 3.8 GB. With gradients and AdamW's moments, 4 times."""
    with pytest.raises(MemoryLimitError) as caught:
        build(num_classes=10_000_000)
    assert "(head/linear/kernel alone has 7.7 GB); this machine has 24.0 GB" in str(caught.value)
    build(num_classes=5_000_000)


def test_a_plan_is_not_limited_by_this_machine():
    assert build(num_classes=10_000_000, planned=True).num_parameters() > 1.9e9
    with pytest.raises(MemoryLimitError, match=r"one array of XLA has 1\.2 EB"):
        build(planned=True, data__image_size=100_000_000_000)


def test_a_compiled_step_must_fit(monkeypatch):
    """The product of two 1000 x 1000 matrices has 8 MB of arguments."""
    shape = jax.ShapeDtypeStruct((1000, 1000), "float32")
    compiled = jax.jit(lambda a, b: a @ b).lower(shape, shape).compile()
    check_step(compiled, make_mesh(MeshConfig()))
    monkeypatch.setattr(memory, "machine_bytes", lambda: 7_000_000)
    with pytest.raises(MemoryLimitError, match=r"8\.0 MB for a training step"):
        check_step(compiled, make_mesh(MeshConfig()))
