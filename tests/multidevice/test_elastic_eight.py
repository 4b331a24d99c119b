"""A run that moves from one device to eight, between meshes and back, as if it never had.

Run as a program on eight devices, this file does their part.
"""

import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from e2e.test_damage import flip_a_value
from eight_devices import run_on_eight
from processes import TINY
from short_runs import read_item

from vit_jax.config.file import load_config
from vit_jax.config.run import Config
from vit_jax.errors import DamagedError
from vit_jax.parallel.mesh import make_mesh
from vit_jax.run.about import choose_checkpoint
from vit_jax.run.checkpoints import CheckpointFolder
from vit_jax.run.damage import read_about
from vit_jax.run.metrics import read_metrics
from vit_jax.train.loop import train
from vit_jax.train.program import build_program
from vit_jax.train.signals import StopSignals
from vit_jax.train.state import TrainState

pytestmark = [
    pytest.mark.slow,
    pytest.mark.multidevice,
    # One device reads what eight wrote.
    pytest.mark.filterwarnings("ignore:Sharding info not provided"),
]

FSDP = {"data": 1, "fsdp": 8, "preset": "fsdp"}
TENSOR = {"data": 2, "fsdp": 1, "tensor": 4, "slices": 2}
STEPS = 8
# Steps after which the run moves: to fsdp, to tensor on two slices, back to one device with its
# layers unrolled.
FIRST, SECOND, THIRD = 2, 4, 6


def config(data_dir: str, mesh: dict[str, Any] | None = None, **model: Any) -> Config:
    """A run with everything whose state must survive: momentum, EMA, dropout, mixing."""
    sections = {"mesh": mesh or {}, "model": {"depth": 2, "num_heads": 4, **model}}
    overrides = [
        f"{s}.{key}={value}" for s, keys in sections.items() for key, value in keys.items()
    ]
    overrides += [
        f"data.data_dir={data_dir}", "data.num_threads=1", "data.augment.mix.cutmix_alpha=0.2",
        "optimizer.name=sgd", "optimizer.learning_rate=0.05", "optimizer.weight_decay=0.01",
        "optimizer.schedule.warmup_steps=0", "accumulation_steps=2", f"train_steps={STEPS}",
        "evaluation.splits={}", "checkpoint.interval_steps=2", "checkpoint.keep_last=5",
    ]  # fmt: skip
    return load_config(str(TINY), overrides)


def go_on(source: Path, step: int, run: Config, workdir: Path) -> None:
    """Trains to the end in a copy of a run folder that ended with the checkpoint of a step."""
    shutil.copytree(source, workdir)
    (workdir / "result.json").unlink()
    for folder in (workdir / "checkpoints").iterdir():
        if int(folder.name) > step:
            shutil.rmtree(folder)
    train(run, workdir, StopSignals())


def write_again(source: Path, run: Config, target: Path) -> None:
    """Restores a checkpoint onto the mesh of a config and saves it from there."""
    program = build_program(run, make_mesh(run.mesh), num_classes=10, num_examples=100)
    abstract = program.abstract
    with CheckpointFolder(source / "checkpoints", run.checkpoint, read_only=True) as folder:
        wanted = {"params": abstract.params, "optimizer": abstract.opt_state, "ema": abstract.ema}
        found = folder.restore(wanted, FIRST)
    places, expected = (jax.tree.map(lambda a: a.sharding, t) for t in (found.arrays, wanted))
    assert places == expected
    state = TrainState(
        np.int32(FIRST), found.arrays["params"], found.arrays["optimizer"], found.arrays["ema"]
    )
    with CheckpointFolder(target / "checkpoints", run.checkpoint) as folder:
        folder.save(FIRST, state, data=found.data, config=found.config)


def arrays(workdir: Path, step: int) -> dict[str, np.ndarray]:
    """What is in a checkpoint, by name, whole and on the host, without this project's help."""
    found = {}
    for item in ("params", "optimizer", "ema"):
        tree = read_item(workdir / "checkpoints" / str(step) / item)
        for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
            found[item + jax.tree_util.keystr(keys)] = leaf
    return found


def losses(workdir: Path) -> dict[int, float]:
    rows = read_metrics(workdir / "metrics.jsonl")
    return {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}


@pytest.fixture(scope="module")
def runs(once, tmp_path_factory, digits_dir) -> Path:
    """Run folders: of one device all through ("one"); of a run that moves; and copies."""
    return Path(once("elastic", lambda: make_runs(tmp_path_factory.mktemp("runs"), digits_dir)))


def make_runs(folder: Path, digits_dir: Path) -> str:
    data_dir = str(digits_dir)
    # Optax divides a whole number by a float, which strict promotion forbids.
    with jax.numpy_dtype_promotion("standard"):
        train(config(data_dir), folder / "one", StopSignals())
        run_on_eight(__file__, data_dir, str(folder))
        unrolled = config(data_dir, scan=False, remat="full")
        go_on(folder / "tensor", THIRD, unrolled, folder / "unrolled")
        write_again(folder / "copy_tensor", unrolled, folder / "copy_unrolled")
    return str(folder)


def test_restored_values_are_bit_exact_on_every_mesh_and_without_scan(runs):
    expected = arrays(runs / "one", FIRST)
    # Twenty-odd parameters, their momenta and averages, and the schedule's count.
    assert len(expected) > 60
    for copy in ("copy_fsdp", "copy_tensor", "copy_unrolled"):
        found = arrays(runs / copy, FIRST)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=f"{copy}: {name}")


def test_a_run_resumed_on_another_mesh_uses_the_same_batches(runs):
    """Of other examples, or with another dropout, losses would differ in the third digit."""
    expected = losses(runs / "one")
    assert list(expected) == list(range(1, STEPS + 1))
    steps = [expected[step] for step in expected]
    assert min(abs(a - b) for a, b in itertools.pairwise(steps)) > 1e-4
    for name in ("fsdp", "tensor", "unrolled"):
        found = losses(runs / name)
        assert list(found) == list(expected)
        assert max(abs(found[step] - expected[step]) for step in expected) < 1e-5, name


def test_a_run_resumed_on_another_mesh_ends_with_the_same_parameters_and_average(runs):
    expected, found = arrays(runs / "one", STEPS), arrays(runs / "unrolled", STEPS)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)
    moved = arrays(runs / "one", FIRST)
    assert max(np.abs(moved[name] - value).max() for name, value in expected.items()) > 1e-2


def test_a_checkpoint_records_the_devices_that_wrote_it(runs):
    about = {
        name: read_about(choose_checkpoint(runs / name))
        for name in ("one", "fsdp", "tensor", "unrolled")
    }
    devices = {name: found["environment"]["device_count"] for name, found in about.items()}
    assert devices == {"one": 1, "fsdp": 8, "tensor": 8, "unrolled": 1}
    assert about["unrolled"]["arrays"] == about["one"]["arrays"]


def test_a_changed_value_is_found_on_another_mesh(runs):
    """It is in the shard of one device; the error names the array on any mesh."""
    assert "array 'params/" in (runs / "refused.txt").read_text()


def refused(source: Path, run: Config) -> str:
    """Returns the error of a checkpoint with a changed value, restored onto a config's mesh."""
    flip_a_value(source / "checkpoints" / str(FIRST), "params")
    shapes = build_program(run, make_mesh(run.mesh), num_classes=10, num_examples=100).abstract
    with (
        CheckpointFolder(source / "checkpoints", run.checkpoint, read_only=True) as folder,
        pytest.raises(DamagedError) as caught,
    ):
        folder.restore({"params": shapes.params}, FIRST)
    return caught.value.got


def main() -> None:
    data_dir, folder = sys.argv[1], Path(sys.argv[2])
    on_fsdp, on_tensor = config(data_dir, FSDP), config(data_dir, TENSOR)
    write_again(folder / "one", on_fsdp, folder / "copy_fsdp")
    write_again(folder / "copy_fsdp", on_tensor, folder / "copy_tensor")
    go_on(folder / "one", FIRST, on_fsdp, folder / "fsdp")
    go_on(folder / "fsdp", SECOND, on_tensor, folder / "tensor")
    shutil.copytree(folder / "copy_fsdp", folder / "changed")
    (folder / "refused.txt").write_text(refused(folder / "changed", on_tensor))
    print("null")


if __name__ == "__main__":
    main()
