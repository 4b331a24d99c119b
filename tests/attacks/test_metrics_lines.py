"""Damage in metrics.jsonl: a resumed run keeps every other line, and says what it found."""

import json
import shutil

import pytest
from attacks.draws import Commands, check
from e2e.test_resume import CLOCKED
from short_runs import SHORT

from vit_jax.run.metrics import read_metrics

RESUMED_FROM = 20
# Name -> line -> what stands in its place.
DAMAGES = {
    "cut": lambda line: line[: len(line) // 2] + b"\n",
    "doubled": lambda line: line + line,
    "not UTF-8": lambda line: line[:5] + b"\xff\xfe" + line[5:],
    "not JSON": lambda line: b"{]" + line,
    "no step": lambda line: line.replace(b'"step"', b'"stop"'),
    "missing": lambda line: b"",
}
LOST = ("cut", "not UTF-8", "not JSON", "no step", "missing")

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.


def facts(run):
    """Returns the rows without what depends on the clock."""
    rows = read_metrics(run / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in CLOCKED} for row in rows]


def test_a_resumed_run_loses_no_other_line_and_says_what_is_damaged(
    slow_draw, finished, digits_dir, tmp_path, capfd, caplog
):
    command, wanted = Commands(capfd, caplog), facts(finished)
    lines = (finished / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    attacks = [(i, damage) for i in range(len(lines)) for damage in DAMAGES]
    for i, damage in slow_draw.some(attacks, short=0):
        run = shutil.copytree(finished, tmp_path / f"{i}-{damage}")
        (run / "result.json").unlink()
        shutil.rmtree(run / "checkpoints" / "30")
        damaged = [*lines[:i], DAMAGES[damage](lines[i]), *lines[i + 1 :]]
        (run / "metrics.jsonl").write_bytes(b"".join(damaged))
        config = run / "config.json"
        data = f"--config.data.data_dir={digits_dir}"
        outcome = command("train", f"--config={config}", f"--workdir={run}", data, *SHORT)
        check(outcome, (i, damage), codes=(0,))
        step = json.loads(lines[i])["step"]
        lost = damage in LOST and step <= RESUMED_FROM
        # A doubled line is valid, so both stay.
        copies = 0 if lost else 2 if damage == "doubled" and step <= RESUMED_FROM else 1
        expected = [row for k, row in enumerate(wanted) for _ in range(copies if k == i else 1)]
        assert facts(run) == expected, (i, damage)
        kept = b"".join(path.read_bytes() for path in run.glob("metrics-damaged-*.jsonl"))
        if damage in ("cut", "not UTF-8", "not JSON", "no step") and i < len(lines) - 1:
            assert DAMAGES[damage](lines[i]).strip() in kept, (i, damage)
            assert "metrics-damaged-" in outcome.log, (i, damage)
        if damage == "missing" and lost:
            # The last evaluation is made again.
            is_told = {"train/loss": True, "eval/test/loss": step < RESUMED_FROM}
            for name, what in (("train/loss", "train/loss"), ("eval/test/loss", "eval/*")):
                told = f"has no {what} for step {step}" in outcome.log
                assert told == (name in wanted[i] and is_told[name]), (i, damage)
        shutil.rmtree(run)
