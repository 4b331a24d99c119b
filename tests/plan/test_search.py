"""The settings that a search tries, in which order, and the one it calls the fastest."""

import dataclasses

import pytest
from plan.test_estimate import CHIP, SIZES, config
from rich.console import Console

from vit_jax.config.mesh import MeshConfig
from vit_jax.errors import ConfigError
from vit_jax.models.stacking import LayerLoop
from vit_jax.plan.estimate import Memory, Plan
from vit_jax.plan.search import (
    Candidate,
    default_batch_sizes,
    fastest,
    meshes,
    parse_meshes,
    placements,
    search,
)
from vit_jax.plan.show import expected_mfu, row, show_plan, show_search
from vit_jax.train.chips import Work
from vit_jax.train.step_choice import StepChoice

# Memory an image by remat policy, and the state that fsdp divides.
_IMAGE = {"none": 8, "dots": 4, "full": 1}
_STATE = 64


def toy(config):
    """A plan by a formula: 100 bytes fit; full remat costs a third more time."""
    batch, mesh = config.data.global_batch_size, config.mesh
    parts = 1 if mesh.preset == "replicated" else mesh.fsdp
    total = batch * _IMAGE[config.model.remat] // 4 + _STATE // parts
    flops = batch * (4.0 if config.model.remat == "full" else 3.0)
    work = Work(3.0 * batch, flops, 0.0, 8.0 if mesh.fsdp > 1 else 0.0)
    chip = type(CHIP)("toy", "toy", 100.0, 1.0, 1.0, 1.0, "ours")
    return Plan(
        config,
        chip,
        {"data": mesh.data, "fsdp": mesh.fsdp, "tensor": 1},
        SIZES,
        10,
        1,
        Memory({"parameters": total}, 0, 0),
        work,
        (),
        0,
        1.0,
        True,
        StepChoice(LayerLoop(True, config.model.remat), 1, "toy"),
    )


@pytest.mark.parametrize(
    ("sizes", "own", "expected"),
    [
        # One axis: nothing to cut over on the first mesh; on the second, replicated is the first
        # mesh again, and the two others are one.
        ([(4, 1, 1), (1, 4, 1)], {}, [((4, 1, 1), "fsdp_tensor"), ((1, 4, 1), "fsdp_tensor")]),
        ([(1, 4, 1)], {}, [((1, 4, 1), "fsdp_tensor"), ((1, 4, 1), "replicated")]),
        ([(1, 4, 1)], {"preset": "replicated"},
         [((1, 4, 1), "replicated"), ((1, 4, 1), "fsdp")]),
        # Devices along tensor must have something to do.
        ([(1, 2, 2)], {"preset": "fsdp"}, [((1, 2, 2), "fsdp_tensor")]),
        ([(2, 1, 2)], {}, [((2, 1, 2), "fsdp_tensor")]),
        # The config's own rules shard over data, which differs from mesh to mesh.
        ([(4, 1, 1), (2, 2, 1)], {"rules": [["head/.*/kernel", ["data", None]]]},
         [((4, 1, 1), "fsdp_tensor"), ((2, 2, 1), "fsdp_tensor"), ((2, 2, 1), "replicated")]),
    ],
)  # fmt: skip
def test_presets_with_equal_shardings_on_a_mesh_are_tried_once(sizes, own, expected):
    run = config().replace(mesh=MeshConfig.from_mapping(own))
    assert placements(run, sizes) == expected


def test_presets_that_differ_are_tried():
    tries = list(search(config(), batch_sizes=[16], mesh_sizes=[(1, 4, 1)], plan=toy))
    assert [(t.preset, t.remat) for t in tries] == [("fsdp_tensor", "none"), ("replicated", "none")]
    assert all(t.plan and t.plan.config.mesh.preset == t.preset for t in tries)
    # 32 bytes of images each; the state of 64 is cut into four, or is not.
    assert [t.plan and t.plan.memory.total for t in tries] == [48, 96]
    best = fastest(tries)
    assert best is not None
    assert best.preset == "fsdp_tensor"


def test_each_mesh_stops_at_the_first_setting_that_fits():
    meshes = [(4, 1, 1), (1, 4, 1)]
    tries = list(search(config(), batch_sizes=[16, 32], mesh_sizes=meshes, plan=toy))
    found = [(t.batch_size, t.mesh[1], t.remat) for t in tries]
    # 128 bytes, then 96: dots fits. With fsdp 80 fit at once.
    assert found == [(32, 1, "none"), (32, 1, "dots"), (32, 4, "none")]
    best = fastest(tries)
    assert best is not None
    # Both are bound by 96 s of compute; the one with less memory wins.
    assert (best.mesh, best.remat) == ((1, 4, 1), "none")


def test_smaller_batches_are_tried_if_larger_ones_do_not_fit():
    tries = list(search(config(), batch_sizes=[8, 512], mesh_sizes=[(4, 1, 1)], plan=toy))
    found = [(t.batch_size, t.remat) for t in tries]
    assert found == [(512, "none"), (512, "dots"), (512, "full"), (8, "none")]


def test_an_impossible_setting_is_kept_with_its_reason():
    def impossible(config):
        raise ConfigError("data.global_batch_size is 6 on 4 devices", "a multiple", "use 8")

    tries = list(search(config(), batch_sizes=[6], mesh_sizes=[(4, 1, 1)], plan=impossible))
    assert {t.problem for t in tries} == {"data.global_batch_size is 6 on 4 devices"}
    assert fastest(tries) is None


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (1, [(1, 1, 1)]),
        # Two heads: tensor=2 divides them, 4 does not.
        (16, [(16, 1, 1), (1, 16, 1), (4, 4, 1), (1, 8, 2)]),
        (6, [(6, 1, 1), (1, 6, 1), (3, 2, 1), (1, 3, 2)]),
    ],
)
def test_the_search_tries_the_usual_meshes(devices, expected):
    assert meshes(config(), devices) == expected


def test_the_search_tries_fsdp_inside_each_slice():
    expected = [(32, 1, 1), (1, 32, 1), (2, 16, 1), (8, 4, 1), (1, 16, 2)]
    assert meshes(config(), 32, slices=2) == expected


def test_the_search_tries_the_batch_size_its_double_and_its_half():
    assert default_batch_sizes(config(), 2) == [16, 8, 4]
    assert default_batch_sizes(config(), 8) == [16, 8]
    with pytest.raises(ConfigError, match="8 on 32 devices"):
        default_batch_sizes(config(), 32)


def test_meshes_are_read_or_refused():
    assert parse_meshes("16,1,1;1,8,2") == [(16, 1, 1), (1, 8, 2)]
    for wrong in ("16", "16,1", "0,1,1", "a,1,1", ""):
        with pytest.raises(ConfigError, match="data,fsdp,tensor for each mesh"):
            parse_meshes(wrong)


def test_a_price_gives_the_dollars_of_a_run(capsys):
    """10 steps of 1,200 images at 3 FLOPs on a chip with 1 FLOP/s: 10 hours of one chip."""
    run = config()
    data, model = run.data.replace(global_batch_size=1200), run.model.replace(remat="none")
    plan = toy(run.replace(data=data, model=model, mesh=MeshConfig(data=1)))
    mfu, origin = expected_mfu(plan, None)
    assert (mfu, origin) == (0.43, "as ViT-B/16 on one H200")  # The toy chip is no TPU.
    figures = row(plan, "toy", "toy", mfu, price=2.0)
    assert (figures["chip_hours_at_least"], figures["dollars_at_least"]) == (10, 20)
    assert figures["dollars_at_assumed_mfu"] == pytest.approx(20 / 0.43, abs=0.1)
    assert "dollars_at_least" not in row(plan, "toy", "toy", mfu)
    assert expected_mfu(plan, 0.5) == (0.5, "assumed, --mfu")
    on_cpu = dataclasses.replace(plan, chip=dataclasses.replace(plan.chip, kind="cpu"))
    assert expected_mfu(on_cpu, None) == (0.4, "assumed, --mfu")
    show_plan(plan, Console(width=120), (mfu, origin), 2.0)
    (best,) = [line.split() for line in capsys.readouterr().out.splitlines() if "overlaps" in line]
    assert best[2:7] == ["0", "10.0", "h", "10.00", "20.00"]


def test_no_table_of_a_plan_is_truncated_in_a_narrow_terminal(capsys):
    run = config()
    plan = toy(run.replace(model=run.model.replace(remat="none")))
    for width in (60, 80, 100):
        show_plan(plan, Console(width=width), (0.4, "assumed, --mfu"), 2.0)
        show_search([Candidate(8, (1, 1, 1), "fsdp_tensor", "none", plan)], Console(width=width))
        shown = capsys.readouterr().out
        assert "…" not in shown
        for text in (
            "compute-bound",
            "everything",
            "activations,",
            "fsdp_tensor",
            "published rate",
        ):
            assert text in shown, (width, text)
