"""What a run and its report store holds no secret and no home folder."""

import json
import shutil

import pytest
from processes import TINY, run_command

SECRETS = {
    "HF_TOKEN": "hf_abcdefghij0123456789",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENG",
    "WANDB_API_KEY": "0123456789abcdef0123",
}


@pytest.mark.slow
def test_a_run_stores_no_secret_and_no_home_folder(digits_dir, tmp_path, monkeypatch):
    home = tmp_path / "home" / "ada"
    shutil.copytree(digits_dir, home / "data")
    for name, value in {**SECRETS, "HOME": str(home)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={home}/dump --xla_dump_hlo_as_text=false")

    workdir = home / "runs" / "one"
    short = ["--config.train_steps=4", "--config.optimizer.schedule.warmup_steps=1"]
    train = ["train", f"--config={TINY}", f"--workdir={workdir}", "--config.data.data_dir=~/data"]
    done = run_command("-m", "vit_jax", *train, *short)
    assert done.returncode == 0, done.stderr
    made = run_command("-m", "vit_jax", "report", workdir.parent)
    assert made.returncode == 0, made.stderr
    refused = run_command("-m", "vit_jax", "eval", f"--workdir={home}/none-{SECRETS['HF_TOKEN']}")
    assert refused.returncode == 2
    output = done.stdout + done.stderr + made.stdout + made.stderr + refused.stderr
    stored = {path: path.read_bytes() for path in workdir.parent.rglob("*") if path.is_file()}
    assert any(path.name == "runs.csv" for path in stored)
    for value in SECRETS.values():
        assert value not in output
        assert [path for path, content in stored.items() if value.encode() in content] == []
    public = ("env.json", "config.json", "result.json", "metrics.jsonl", "classes.json")
    shown = [p for p in stored if p.name in public or p.parent.name == "report"]
    assert [p for p in shown if str(home).encode() in stored[p]] == []
    environment = json.loads((workdir / "env.json").read_text())
    assert "--workdir=~/runs/one" in environment["command"]
    assert environment["xla_flags"].startswith("--xla_dump_to=~/dump ")
