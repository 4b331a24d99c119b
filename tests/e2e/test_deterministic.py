"""`train --deterministic` gives the same bits every time; on a GPU this is what it is for."""

import json

import pytest
from processes import finish, start

from vit_jax.run.metrics import read_metrics


@pytest.mark.slow
def test_two_runs_are_bit_exact(tmp_path, digits_dir):
    options = [
        "--deterministic", "--config.train_steps=20", "--config.model.dtype=bfloat16",
        "--config.optimizer.schedule.warmup_steps=2",
    ]  # fmt: skip
    rows = []
    for name in ("one", "two"):
        code, _, err = finish(start(tmp_path / name, digits_dir, *options))
        assert code == 0, err
        env = json.loads((tmp_path / name / "env.json").read_text())
        assert "--xla_gpu_deterministic_ops=true" in env["xla_flags"]
        found = read_metrics(tmp_path / name / "metrics.jsonl")
        rows.append([(r["train/loss"], r["train/update_norm"]) for r in found if "train/loss" in r])
    assert len(rows[0]) == 20
    assert rows[0] == rows[1]
