"""Rebuilds the run folders of a committed experiment from its results/runs.csv.

The runs themselves are too large to commit, but runs.csv holds everything that tables and plots
need: labels, the settings that differ, and every result figure at full precision. Learning curves
are not in it, so the committed pages have none.

python tests/report/committed_runs.py baselines FOLDER      # then: python -m vit_jax report FOLDER
"""

import ast
import csv
import json
import runpy
import sys
from pathlib import Path

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
# The intervals of these pair test images: they need the predictions in the run folders, which are
# not committed.
_PAIRED = {"data_size", "distillation", "transfer"}
NAMES = sorted({p.parent.parent.name for p in EXPERIMENTS.glob("*/results/runs.csv")} - _PAIRED)
# Columns that are neither settings nor result figures.
_ABOUT = {"name", "state", "stage", "model", "dataset", "seed", "init_from", "device",
          "git_revision", "folder", "notes", "pretrain_examples", "pretrain_exaflops"}  # fmt: skip
_RESULT = {"step", "wall_time_s", "parameters", "train_examples", "examples_seen", "train_exaflops",
           "best_step", "reach", "feature_width"}  # fmt: skip
# Dataset -> number of classes.
_CLASSES = {"cifar10": 10, "sign_language_digits": 10, "clothing_small": 10, "association": 2,
            "double if": 5}  # fmt: skip


def rebuild(name, folder):
    """Writes the run folders of experiments/NAME below `folder` and returns it."""
    with (EXPERIMENTS / name / "results" / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        _write_run(row, folder, _candidates(row, rows))
    script = "run.py" if name == "synthetic_attention" else "sweep.py"
    sweep = runpy.run_path(str(EXPERIMENTS / name / script))
    report = sweep["get_report"]() if "get_report" in sweep else sweep["REPORT"]
    report = {**report, "curves": []}
    (folder / "sweep.json").write_text(json.dumps({"report": report, "jobs": []}))
    return folder


def _write_run(row, folder, selection):
    figures = {k: _value(row[k]) for k in row if (k in _RESULT or "/" in k) and row[k] != ""}
    seconds = {k: figures.pop(k) for k in list(figures) if k.startswith("seconds/")}
    if seconds:
        figures["seconds"] = {k.removeprefix("seconds/"): v for k, v in seconds.items()}
    names = sorted((k for k in row if k.startswith("label.")), key=_label_order)
    labels = {k.removeprefix("label."): row[k] for k in names if row[k]}
    settings = {
        k: _value(v)
        for k, v in row.items()
        if k not in _ABOUT | _RESULT and not k.startswith("label.") and "/" not in k
    }
    settings["seed"] = _value(row["seed"])
    # A setting of this name is hidden by the metric, but its column is among the settings.
    if list(row).index("train_examples") < list(row).index("step") - 1:
        settings["train_examples"] = None if row["init_from"] else labels.get("images", 76_800)
    for key, column in (("model.name", "model"), ("data.name", "dataset")):
        if column not in labels and row[column]:
            settings.setdefault(key, row[column].partition(" (")[0])  # Without its sizes.
    if "network.layers" in row:  # A synthetic task has a setting with the name of this column.
        settings["model"] = row["model"]
    command = settings.get("command") or "train"
    if row["init_from"]:
        settings["checkpoint" if command == "fewshot" else "init_from"] = str(
            (folder / row["init_from"]).absolute()
        )
    environment = {"packages": {"jax": "0.10.2"}, "git_revision": row["git_revision"]}
    if row["device"]:  # Scripts write none.
        count, _, kind = row["device"].partition(" x ")
        environment |= {"device_count": int(count), "device_kind": kind}
    job = {
        "name": row["name"],
        "stage": row["stage"] or None,
        "labels": labels,
        "command": command,
        "selection": selection,
    }
    path = folder / row["folder"]
    path.mkdir(parents=True)
    files = {"config": settings, "env": environment, "job": job, "result": figures}
    for file, content in files.items():
        (path / f"{file}.json").write_text(json.dumps(content))
    count = _CLASSES.get(row["dataset"])
    if count and command == "train":
        (path / "classes.json").write_text(json.dumps({"names": [str(i) for i in range(count)]}))


def _candidates(row, rows):
    """Returns how the setting of a final run was chosen, as its sweep wrote it into job.json."""
    metric = "eval/dev/accuracy_top1"
    start = f"search/{row['name'].removeprefix('final/').rpartition('/')[0]}/"
    scores = [[r["name"], float(r[metric])] for r in rows if r["name"].startswith(start)]
    scores.sort(key=lambda candidate: float(candidate[0].rpartition("=")[2]))
    if not row["name"].startswith("final/") or not scores:
        return None
    chosen, score = max(scores, key=lambda candidate: candidate[1])
    return {"metric": metric, "mode": "max", "chosen": chosen, "score": score, "candidates": scores}


def _label_order(column):
    """Sorts labels as the sweep files write them, where runs.csv has the alphabet's order."""
    order = ("study", "head", "norm", "model", "dataset")
    name = column.removeprefix("label.")
    return order.index(name) if name in order else len(order)


def _value(text):
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text or None
    return text if isinstance(value, tuple) else value


if __name__ == "__main__":
    rebuild(sys.argv[1], Path(sys.argv[2]))
