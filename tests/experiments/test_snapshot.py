"""Every sweep of experiments/ expands to the jobs in jobs.txt.

After a change that is meant to change them: PYTHONPATH=. python tests/experiments/test_snapshot.py
"""

import hashlib
import json
from pathlib import Path

import pytest

SNAPSHOT = Path(__file__).with_name("jobs.txt")
SWEEPS = {
    "adam_or_sgd": ("small", "paper"),
    "compute": ("small", "paper"),
    "data_size": (
        "small", "imagenet", "imagenet,tuned", "paper", "paper,tuned",
    ),
    "head_norm_shape": ("small", "paper"),
    "masked_patches": ("small", "paper"),
    "position_embeddings": ("small", "paper"),
    "transfer": ("small", "pretrain", "paper"),
}  # fmt: skip
EVERY = [(experiment, arg) for experiment, args in SWEEPS.items() for arg in args]
# Each takes seconds; smaller arguments of the same experiment expand by the same functions.
LARGE = {("data_size", "imagenet,tuned")}


def fingerprints(jobs):
    """Returns job -> hash of what job.json says: settings, command, labels, stage, needs."""
    found = {}
    for name, job in jobs.items():
        record = {key: value for key, value in job.record("").items() if key != "sweep"}
        text = json.dumps(record, sort_keys=True)
        found[name] = hashlib.sha256(text.encode()).hexdigest()[:8]
    return found


def snapshot():
    """Returns experiment:argument -> job -> hash."""
    found = {}
    for line in SNAPSHOT.read_text().splitlines():
        if line.startswith("# "):
            jobs = found[line[2:]] = {}
        else:
            name, fingerprint = line.split()
            jobs[name] = fingerprint
    return found


@pytest.mark.parametrize(
    ("experiment", "arg"),
    [pytest.param(*e, marks=[pytest.mark.slow] if e in LARGE else []) for e in EVERY],
)
def test_a_sweep_expands_to_the_jobs_of_the_snapshot(plan_of, experiment, arg):
    expected = snapshot()[f"{experiment}:{arg}"]
    found = fingerprints(plan_of(experiment, arg).jobs)
    assert list(found) == list(expected)
    assert found == expected


if __name__ == "__main__":
    from vit_jax.sweep.plan import Plan
    from vit_jax.sweep.sweep_file import read_sweep

    lines = []
    for experiment, arg in EVERY:
        plan = Plan(read_sweep(f"experiments/{experiment}/sweep.py:{arg}"), Path("/sweep"))
        lines += [f"# {experiment}:{arg}"]
        lines += [f"{name} {value}" for name, value in fingerprints(plan.jobs).items()]
    SNAPSHOT.write_text("\n".join(lines) + "\n")
