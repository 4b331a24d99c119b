"""Run folders and configs of the version of November 2026 (revision d0efee0) can still be used.

`old/run.tar.gz` is a run folder that this version wrote: four steps of a tiny ViT, with a moving
average, saved and evaluated at steps 2 and 4.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from processes import run_command

from vit_jax.__main__ import main
from vit_jax.run.folder import read_config
from vit_jax.run.metrics import read_metrics
from vit_jax.run.time_account import PARTS

pytestmark = pytest.mark.slow

OLD = Path(__file__).parent / "old"
# These depend on time and memory.
MEASURED = ("time", "train/images_per_second", "train/images_per_second_per_device",
            "train/step_time_s", "train/data_wait_fraction", "train/compile_time_s",
            "host/rss_mb", "checkpoint/blocked_s",
            *(f"seconds/{part}" for part in PARTS))  # fmt: skip


@pytest.fixture(scope="module")
def old_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    # tarfile warns without a filter, which Python 3.11.2 (Debian 12) does not have.
    subprocess.run(["tar", "-xzf", OLD / "run.tar.gz", "-C", folder], check=True)
    return folder / "old_run"


def figures(workdir):
    """Returns (step, name) -> value of all metrics that are computed, not measured."""
    rows = read_metrics(workdir / "metrics.jsonl")
    return {(r["step"], k): v for r in rows for k, v in r.items() if k not in MEASURED}


def test_an_old_run_resumes_and_computes_the_same_figures(old_run, tmp_path, digits_dir):
    workdir = tmp_path / "run"
    shutil.copytree(old_run, workdir)
    shutil.rmtree(workdir / "checkpoints" / "4")
    (workdir / "result.json").unlink()
    done = run_command(
        "-m",
        "vit_jax",
        "train",
        f"--config={workdir / 'config.json'}",
        f"--workdir={workdir}",
        f"--config.data.data_dir={digits_dir}",
    )
    assert done.returncode == 0, done.stderr
    assert "resuming from step 2" in done.stderr
    found, expected = figures(workdir), figures(old_run)
    assert found.keys() == expected.keys()
    # Steps 3 and 4 start from the restored parameters, moments, average and data position. On the
    # CPU that wrote the run they are equal bit for bit; others may round differently.
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-6), key
    result = json.loads((workdir / "result.json").read_text())
    old_result = json.loads((old_run / "result.json").read_text())
    for name in old_result.keys() - {"wall_time_s"}:
        assert result[name] == pytest.approx(old_result[name], rel=1e-6), name


def test_an_old_run_is_evaluated(old_run, digits_dir, capsys):
    config = read_config(old_run)
    assert (config.model.name, config.train_steps, config.ema_decay) == ("ViT-Nano/4", 4, 0.5)
    assert main(["eval", f"--workdir={old_run}", f"--config.data.data_dir={digits_dir}"]) == 0
    shown = capsys.readouterr().out
    expected = json.loads((old_run / "result.json").read_text())
    assert expected["eval/test/examples"] == 40
    for name in ("loss", "accuracy_top1", "accuracy_top5"):
        (line,) = [line for line in shown.splitlines() if f"eval/test/{name}" in line]
        assert f"{expected[f'eval/test/{name}']:.4f}" in line


@pytest.mark.parametrize("step", [2, 4])
def test_an_old_checkpoint_is_inspected(old_run, step, capsys):
    path = old_run / "checkpoints" / str(step)
    assert main(["checkpoint", "inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["environment"]["git_revision"] == "d0efee01d34425a71edbaf6fb75b1fe36f34b027"
    assert found["arrays"].keys() == {"params", "optimizer", "ema"}
    assert found["arrays"]["params"].keys() == found["arrays"]["ema"].keys()


@pytest.mark.parametrize(
    ("name", "model", "task"),
    [
        ("resnet", "BiT-R50x1", "classification"),
        ("hybrid", "R50+ViT-B/16", "classification"),
        ("masked", "ViT-B/16", "masked_patches"),
    ],
)
def test_an_old_config_of_each_family_and_task_is_read(name, model, task, tmp_path):
    """It lists the options of all families, in the order of the old version."""
    shutil.copy(OLD / f"{name}.json", tmp_path / "config.json")
    config = read_config(tmp_path)
    assert config.model.name == model
    assert config.to_mapping().get("task", "classification") == task
