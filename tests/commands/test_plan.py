"""The command `python -m vit_jax plan`."""

import csv
import json
import os
import sys

import pytest
from processes import ROOT, run_command, user_error

CONFIG = f"--config={ROOT / 'configs/quickstart.py'}"
# Compiles in seconds, without the random loops of mixup.
SMALL = (
    "--config.model.depth=2", "--config.model.scan=true", "--config.data.augment.mix=false",
)  # fmt: skip


def plan(*arguments):
    return run_command("-m", "vit_jax", "plan", CONFIG, *arguments, env={"COLUMNS": "100"})


@pytest.mark.slow
@pytest.mark.multidevice
def test_a_plan_for_eight_cpu_devices(tmp_path):
    table = tmp_path / "plans.csv"
    done = plan("--topology=cpu:8", f"--output={table}", *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("compiling for ")
    for text in ("mesh data=8, fsdp=1, tensor=1, fsdp_tensor", "whole run, 786 steps", "Fits:"):
        assert text in done.stdout, text
    assert max(map(len, done.stdout.splitlines())) <= 100
    (row,) = csv.DictReader(table.read_text().splitlines())
    assert (row["devices"], row["fits"], row["total_steps"]) == ("8", "True", "786")
    # An all-reduce of the f32 gradients receives 2 * 7/8 of their size.
    assert "H200" not in done.stdout
    gradients = 4 * int(row["parameters"])
    assert float(row["received_gb"]) * 1e9 == pytest.approx(gradients * 2 * 7 / 8, rel=0.02)


@pytest.mark.multidevice
@pytest.mark.slow
def test_a_plan_for_cpu_devices_cut_into_two_slices(tmp_path):
    path = tmp_path / "plan.json"
    slices = ("--config.mesh.slices=2", "--config.mesh.data=2", "--config.mesh.fsdp=2")
    done = plan("--topology=cpu:4", f"--output={path}", *slices, *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("compiling for ")
    assert "mesh data=2, fsdp=2, tensor=1 on 2 slices or nodes, fsdp_tensor" in done.stdout
    assert "backward, in the layers" in done.stdout
    found = json.loads(path.read_text())
    assert found["slices"] == 2
    # The f32 gradients are summed inside a slice, then each device exchanges its half of them.
    assert found["dcn_gb"] * 1e9 == pytest.approx(4 * found["parameters"] / 2, rel=0.05)


@pytest.mark.multidevice
@pytest.mark.slow
def test_a_search_marks_the_fastest_and_plans_it(tmp_path):
    found = tmp_path / "best.json"
    search = ("--search", "--batch_sizes=64,128", "--meshes=1,2,1")
    done = plan("--topology=cpu:2", *search, f"--output={found}", *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("compiling for ")
    # Parameters sharded and replicated; the third preset is the same as one of these.
    assert [line.split()[2] for line in done.stdout.splitlines() if " 1,2,1 " in line] == [
        "fsdp_tensor",
        "replicated",
    ]
    best = json.loads(found.read_text())
    assert best["global_batch_size"] == 128
    (marked,) = [line for line in done.stdout.splitlines() if "<- chosen" in line]
    assert marked.split()[2] == best["mesh_preset"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--topology=v5e:5"], "expected 2 sides"),
        (["--topology=cpu:1", "--output=plan.txt"], "expected FILE.json or FILE.csv"),
        (["--topology=cpu:1", "--batch_sizes=8"], "without --search"),
        (["--topology=cpu:1", "--mfu=2"], "'2' is not a fraction between 0 and 1"),
    ],
)
def test_errors_are_one_line(arguments, line, capsys):
    assert line in user_error(capsys, ["plan", CONFIG, *arguments])


@pytest.mark.parametrize(
    ("topology", "module", "extra"),
    [("v5e:4x4", "libtpu", "tpu"), ("h200:8", "jax_plugins", "cuda13")],
)
def test_a_plan_without_the_compiler_says_what_to_install(
    monkeypatch, capsys, topology, module, extra
):
    monkeypatch.setattr(os, "environ", {**os.environ})
    os.environ.pop("TPU_LIBRARY_PATH", None)  # JAX leaves it there once it has found the library.
    monkeypatch.setitem(sys.modules, module, None)
    line = user_error(capsys, ["plan", CONFIG, f"--topology={topology}"])
    assert f"run: pip install 'jax[{extra}]'" in line


def test_a_csv_file_with_other_columns_is_not_changed(tmp_path):
    from vit_jax.commands.plan import _write
    from vit_jax.errors import ConfigError

    path = tmp_path / "plans.csv"
    _write(path, {"a": 1, "b": None})
    _write(path, {"a": 2, "b": "x"})
    assert path.read_text() == "a,b\n1,\n2,x\n"
    with pytest.raises(ConfigError, match="other columns"):
        _write(path, {"a": 1, "c": 2})
