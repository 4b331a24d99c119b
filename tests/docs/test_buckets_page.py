"""The commands of the page on buckets run against a server of GCS's protocol."""

import re
import shlex

import numpy as np
import pytest
from docs.test_pages import PAGES
from PIL import Image
from processes import run_command

from vit_jax.storage.paths import user_path

# Smaller than the recipe's.
SHORT = [
    "--config.model.name=ViT-Ti/8", "--config.model.depth=1",
    "--config.data.image_size=16", "--config.data.global_batch_size=8", "--config.train_steps=4",
    "--config.evaluation.interval_steps=4", "--config.init_from=None",
]  # fmt: skip


@pytest.mark.slow
def test_the_commands_work(gcs, tmp_path):
    numbers = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(20):
            pixels = numbers.integers(0, 256, (24, 24, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.jpg")
    section = PAGES["docs/how-to/buckets.md"].split("\n## ")[0]
    lines = re.search(r"```bash\n(.*?)```", section, re.DOTALL)[1].splitlines()
    found = [line.removeprefix("python ") for line in lines]
    assert [line.split()[2] for line in found] == ["data", "train", "predict", "report"]
    for line in found:
        line = line.replace("gs://BUCKET", gcs.url).replace("PHOTOS", str(tmp_path / "photos"))
        line = line.replace("PHOTO.jpg", str(tmp_path / "photos/cats/0.jpg"))
        line = line.replace("runs/report", str(tmp_path / "report"))
        words = shlex.split(line) + (SHORT if " train " in line else [])
        done = run_command(*words)
        assert done.returncode == 0, (line, done.stderr)
    assert (tmp_path / "report/report.html").exists()
    # Without --output, the report is written beside the runs, in the bucket.
    done = run_command("-m", "vit_jax", "report", f"{gcs.url}/runs")
    assert done.returncode == 0, done.stderr
    runs = user_path(gcs.url) / "runs"
    written = {path.relative_to(runs).as_posix() for path, _ in runs.find()}
    assert written >= {
        "photos/result.json", "photos/metrics-000001.jsonl", "photos/report/curves.png",
        "report/report.html", "report/report.md", "report/runs.csv",
    }  # fmt: skip
