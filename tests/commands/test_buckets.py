"""Every command on a run, weights, images and outputs in a bucket."""

import csv
import io
import json
import zipfile

import jax
import numpy as np
import pytest
from buckets.fixtures import open_bucket
from images import encode
from processes import run_command
from weight_files import parameters

from vit_jax.__main__ import main
from vit_jax.interop.load import load
from vit_jax.run.metrics import read_metrics
from vit_jax.storage.files import local_copy, read_json
from vit_jax.storage.paths import user_path

pytestmark = pytest.mark.usefixtures("optax_promotes")


@pytest.fixture(scope="module")
def root(gcs_server, digits_dir, optax_promotes):
    """A bucket with a finished run of two steps, and two photos."""
    with pytest.MonkeyPatch.context() as patch:
        for bucket in open_bucket(gcs_server, patch):
            root = user_path(bucket.url)
            for name in ("a 1.png", "b#2.png"):
                pixels = np.random.default_rng(len(name)).integers(0, 255, (8, 8, 3), np.uint8)
                (root / "photos" / name).write_bytes(encode(pixels))
            assert main(train(root, digits_dir)) == 0
            yield root


def train(root, digits_dir):
    return [
        "train", "--config=tests/e2e/tiny.py:unmixed", f"--workdir={root}/run",
        f"--config.data.data_dir={digits_dir}", "--config.train_steps=2",
        "--config.evaluation.interval_steps=2",
    ]  # fmt: skip


def printed_json(capsys, *arguments):
    """Runs a command and returns what it prints last, as JSON."""
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    text = capsys.readouterr().out
    return json.loads(text if text.startswith("{\n") else text.splitlines()[-1])


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_train_resumes_and_says_that_the_run_is_finished(root, digits_dir, capsys):
    assert [row["step"] for row in read_metrics(root / "run" / "metrics.jsonl")][-1] == 2
    assert read_json(root / "run" / "result.json")["step"] == 2

    def sizes():
        found = [path for path, _ in root.find() if not path.match(".lock*")]
        return {str(path): path.stat().st_size for path in found}

    before = sizes()
    assert main(train(root, digits_dir)) == 0
    assert sizes() == before


def test_eval(root, capsys):
    figures = printed_json(capsys, "eval", f"--workdir={root}/run")
    result = read_json(root / "run" / "result.json")
    assert figures["eval/test/examples"] == 360
    assert figures["eval/test/loss"] == pytest.approx(result["eval/test/loss"], rel=1e-6)


def test_checkpoint(root, capsys):
    assert main(["checkpoint", "verify", f"{root}/run"]) == 0
    assert "no damage found in 1 checkpoint" in capsys.readouterr().out


def test_predict(root, capsys):
    (root / "classes.txt").write_text("\n".join(f"thing {n}" for n in range(10)))
    photos = [f"{root}/photos/{name}" for name in ("a 1.png", "b#2.png")]
    arguments = [*photos, f"--model={root}/run", f"--classes={root}/classes.txt", "--format=json"]
    assert main(["predict", *arguments]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["image"] for row in rows] == photos
    assert {name.split()[0] for row in rows for name, _ in row["classes"]} == {"thing"}
    assert main(["predict", f"{root}/nothing.png", f"--model={root}/run"]) == 2
    assert f"error: {root}/nothing.png cannot be read: No such object; expected an image" in (
        capsys.readouterr().err
    )


def test_analyze(root, capsys):
    arguments = ["--images", f"{root}/photos", "--what=positions,distance"]
    assert main(["analyze", f"{root}/run", *arguments]) == 0
    folder = root / "run" / "report" / "analysis"
    for kind in ("csv", "npz", "png", "svg"):
        assert {f"distance.{kind}", f"positions.{kind}"} <= set(names(folder))
    assert read_json(folder / "analysis.json")["images"]["from"] == f"{root}/photos"
    assert (folder / "distance.png").read_bytes().startswith(b"\x89PNG")
    with zipfile.ZipFile(io.BytesIO((folder / "distance.npz").read_bytes())) as archive:
        assert archive.testzip() is None


@pytest.mark.parametrize(
    ("format", "destination"),
    [("vision_transformer", "w.npz"), ("transformers", "hf model"), ("orbax", "ours")],
)
def test_convert(root, format, destination, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path / "cache"))
    to = root / "converted" / destination
    assert main(["convert", f"{root}/run", str(to), f"--format={format}"]) == 0
    there, here = parameters(load(f"{root}/run")), parameters(load(str(to)))
    jax.tree.map(np.testing.assert_array_equal, there, here)
    with local_copy(to) as local:
        assert local.exists()
    assert main(["convert", f"{root}/run", str(to), f"--format={format}"]) == 2
    assert f"error: {to} exists; expected a new path" in capsys.readouterr().err


@pytest.mark.slow
def test_fewshot(root, digits_dir, capsys):
    arguments = [
        "fewshot", f"{root}/run", "--dataset=digits", f"--data_dir={digits_dir}", "--crop=resize",
        "--shots=1", "--seeds=0", "--batch_size=200",
    ]  # fmt: skip
    first = printed_json(capsys, *arguments, f"--workdir={root}/fewshot")
    assert {"config.json", "result.json", "report"} <= set(names(root / "fewshot"))
    again = printed_json(capsys, *arguments)
    assert {k: again[k] for k in again if "/" in k} == {k: first[k] for k in first if "/" in k}


def run_plan(*arguments):
    """Runs the command as a process, because it sets the number of devices."""
    done = run_command("-m", "vit_jax", "plan", *arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_plan(root):
    arguments = [f"--config={root}/run/config.json", "--topology=cpu:1"]
    for _ in range(2):
        run_plan(*arguments, f"--output={root}/plan.csv")
    rows = list(csv.DictReader((root / "plan.csv").read_text().splitlines()))
    assert len(rows) == 2
    assert rows[0].keys() == rows[1].keys()
    run_plan(*arguments, f"--output={root}/plan.json")
    assert set(read_json(root / "plan.json")) == set(rows[0])


@pytest.mark.slow
def test_bench_step(root, capsys):
    arguments = [
        "--model=ViT-Ti/16", "--image_size=16", "--batch_size=2", "--rounds=1", "--steps=1",
        "--config.model.depth=1", f"--output={root}/bench.json",
        f"--profile={root}/profile",
    ]  # fmt: skip
    assert main(["bench", "step", *arguments]) == 0
    assert len(read_json(root / "bench.json")["rows"]) == 1
    assert any(path.name.endswith(".xplane.pb") for path, _ in (root / "profile").find())


def test_config(root, capsys):
    assert main(["config", "train_steps", f"--config={root}/run/config.json"]) == 0
    assert "train_steps = 2" in capsys.readouterr().out
    assert main(["config", f"--config={root}/config.py:x"]) == 2
    assert f"error: a config file at {root}/config.py:x; expected a local path" in (
        capsys.readouterr().err
    )
