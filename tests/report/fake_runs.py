"""Writes made-up run folders like those of `train`, `fewshot` and `sweep`.

python tests/report/fake_runs.py FOLDER       # then: python -m vit_jax report FOLDER
"""

import json
import math
import random
import sys
from pathlib import Path

MODELS = {"ViT-Mini/4": 0.72, "R+ViT-Mini/4": 0.76, "BiT-R-Mini": 0.74}
DATASETS = {"clothing_small": 0.0, "sign_language_digits": 0.15}
SHARES = {"10 %": (0.1, -0.12), "100 %": (None, 0.0)}
RATES = (0.003, 0.01, 0.03)
SEEDS = (0, 1, 2)
ENVIRONMENT = {
    "git_revision": "a53388d0c5b0a6d7f6b24f1b1f8c2a8c0d6e5f40", "platform": "cpu",
    "device_kind": "cpu", "device_count": 1, "host_count": 1, "hostname": "vm", "cpu_count": 2,
    "packages": {"jax": "0.10.2"},
}  # fmt: skip


def write(folder, **files):
    """Writes files of a run folder; keys are names without their ending."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if name == "metrics":
            text = "".join(json.dumps(row) + "\n" for row in content)
            (folder / "metrics.jsonl").write_text(text)
        elif content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content))


def config(model="ViT-Mini/4", dataset="cifar10", *, seed=0, steps=400, rate=0.01, **more):
    """Returns a config.json with the keys that a report reads."""
    made = {
        "seed": seed, "model": {"name": model, "dropout": 0.0},
        "data": {"name": dataset, "global_batch_size": 64, "image_size": 32,
                 "subset": {"fraction": None}},
        "optimizer": {"name": "sgd", "learning_rate": rate}, "train_steps": steps,
        "init_from": None, "logging": {"interval_steps": 10},
        "evaluation": {"splits": {"test": "test"}},
    }  # fmt: skip
    for key, value in more.items():
        section = made
        *parents, leaf = key.split("__")
        for parent in parents:
            section = section[parent]
        section[leaf] = value
    return made


def curve(final, steps, split, random_state, until=None):
    """Returns the lines of a metrics.jsonl that ends near an accuracy."""
    rows = []
    for step in range(steps // 40, (until or steps) + 1, steps // 40):
        share = 1 - math.exp(-4 * step / steps)
        loss = 0.25 + 2.0 * (1 - share * final) + random_state.gauss(0, 0.04)
        rows.append(
            {
                "step": step,
                "time": 1.7e9 + step * 0.5,
                "train/loss": loss,
                "train/learning_rate": 0.01 * (1 - step / steps),
            }
        )
        if step % (steps // 8) == 0:
            score = final * share / (1 - math.exp(-4)) + random_state.gauss(0, 0.004)
            figures = {f"eval/{split}/accuracy_top1": score, f"eval/{split}/loss": loss + 0.1}
            rows.append({"step": step, "time": 1.7e9 + step * 0.5, **figures})
    return rows


def result(score, steps, *, split="test", examples=5000, exaflops=0.01):
    """Returns a result.json."""
    return {
        "step": steps,
        "parameters": 5_300_000,
        "wall_time_s": steps * 0.5,
        "train_examples": examples,
        "examples_seen": steps * 64,
        "train_exaflops": exaflops,
        f"eval/{split}/accuracy_top1": score,
        f"eval/{split}/loss": 1.3 - score,
        f"eval/{split}/examples": 500,
    }


def write_sweep(folder):
    """Writes a transfer sweep in which some jobs failed or are not done, and returns its folder."""
    state = random.Random(0)
    jobs = folder / "jobs"
    for i, (model, level) in enumerate(MODELS.items()):
        for share, (fraction, loss) in SHARES.items():
            slug = f"{model.replace('/', '-')}-{share.replace(' %', '')}"
            base = jobs / "pretrain" / slug
            labels = {"model": model, "pretrain": share}
            examples = int(50_000 * (fraction or 1))
            score = level + 1.5 * loss + state.gauss(0, 0.003)
            write(
                base,
                job=_job(f"pretrain/{slug}", {**labels, "dataset": "cifar10"}, None),
                config=config(model, data__subset__fraction=fraction, steps=2000),
                env=ENVIRONMENT,
                metrics=curve(score, 2000, "test", state),
                result=result(score, 2000, examples=examples, exaflops=0.02 * (i + 1)),
            )
            _write_fewshot(jobs, slug, base, labels, level + loss, state)
            for dataset, more in DATASETS.items():
                _write_transfer(
                    jobs, slug, base, {**labels, "dataset": dataset}, level + loss + more, state
                )
    names = [f"final/sign_language_digits/ViT-Mini-4-100/seed{seed}" for seed in range(4)]
    _remove_results(jobs)
    report = {
        "title": "Transfer at small scale",
        "question": "Does a ViT need more pre-training data than a ResNet of its size?",
    }
    sweep = {"sweep": "experiments/transfer/sweep.py:small", "jobs": names, "report": report}
    write(folder, sweep=sweep)
    return folder


def _job(name, labels, stage, selection=None, command="train"):
    return {
        "sweep": "experiments/transfer/sweep.py:small",
        "name": name,
        "command": command,
        "config": "configs/transfer.py",
        "labels": labels,
        "stage": stage,
        "overrides": {"optimizer.learning_rate": 0.01},
        "selection": selection,
    }


def _write_fewshot(jobs, slug, base, labels, level, state):
    figures = {"step": 0, "model": labels["model"], "checkpoint": str(base), "wall_time_s": 40.0}
    for dataset, more in DATASETS.items():
        for shots in (1, 5, 10, 25):
            at = f"fewshot/{dataset}/{shots}_shot"
            figures[f"{at}/accuracy_top1"] = (level + more) * (1 - 0.6 / (1 + shots) ** 0.5)
            figures[f"{at}/accuracy_top1_std"] = 0.03 / shots**0.5
            figures[f"{at}/l2"] = 1024.0
        figures[f"knn/{dataset}/accuracy_top1"] = level + more - 0.2 + state.gauss(0, 0.01)
    name = f"fewshot/{slug}"
    write(
        jobs / name,
        job=_job(name, labels, None, command="fewshot"),
        env=ENVIRONMENT,
        config={"command": "fewshot", "checkpoint": str(base), "fewshot": {"seeds": [0, 1, 2]}},
        result=figures,
    )


def _write_transfer(jobs, slug, base, labels, level, state):
    dataset, candidates = labels["dataset"], []
    settings = {"model": labels["model"], "dataset": dataset, "init_from": str(base)}
    for rate in RATES:
        name = f"search/{dataset}/{slug}/learning_rate={rate}"
        score = level - 0.05 * abs(math.log10(rate / 0.01)) + state.gauss(0, 0.01)
        candidates.append([name, score])
        write(
            jobs / name,
            job=_job(name, labels, "search"),
            env=ENVIRONMENT,
            config=config(**settings, rate=rate),
            metrics=curve(score, 400, "dev", state),
            result=result(score, 400, split="dev", examples=4500),
        )
    chosen, best = max(candidates, key=lambda c: c[1])
    selection = {
        "metric": "eval/dev/accuracy_top1",
        "mode": "max",
        "chosen": chosen,
        "score": best,
        "candidates": candidates,
    }
    for seed in SEEDS:
        name, score = f"final/{dataset}/{slug}/seed{seed}", level + state.gauss(0, 0.012)
        write(
            jobs / name,
            job=_job(name, labels, "final", selection),
            env=ENVIRONMENT,
            config=config(**settings, seed=seed),
            metrics=curve(score, 400, "test", state),
            result=result(score, 400),
        )


def _remove_results(jobs):
    """Removes the results of three runs: one failed, two were stopped."""
    final = jobs / "final" / "clothing_small"
    failed = final / "ViT-Mini-4-100" / "seed2"
    for name in ("result.json", "metrics.jsonl"):
        (failed / name).unlink()
    attempt = {"number": 2, "host": "vm", "pid": 1, "started": 1.0, "ended": 2.0, "exit_code": 2}
    write(failed / ".sweep", attempt=attempt)
    line = "error: no space left on device; expected a writable folder; free some space"
    (failed / "log.txt").write_text(f"ViT-Mini/4: 5,300,000 parameters\n{line}\n")
    stopped = final / "BiT-R-Mini-100" / "seed1"
    (stopped / "result.json").unlink()
    rows = (stopped / "metrics.jsonl").read_text().splitlines(keepends=True)
    (stopped / "metrics.jsonl").write_text("".join(rows[:20]))
    candidate = jobs / "search" / "clothing_small" / "BiT-R-Mini-10" / "learning_rate=0.03"
    (candidate / "result.json").unlink()


if __name__ == "__main__":
    write_sweep(Path(sys.argv[1]))
