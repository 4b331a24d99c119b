"""What the tests of tasks without labels share: fine-tuning, padded evaluation, pictures."""

import functools
import json

import numpy as np

from vit_jax.config.file import load_config
from vit_jax.evaluation.loop import evaluate
from vit_jax.train.init_from import model_of_weights
from vit_jax.train.loop import train
from vit_jax.train.signals import StopSignals


def fine_tune(content, config, pretrained, folder, **changes):
    """Trains one step of classification from a run; returns its config and its init.json."""
    usual = {
        "task": {"name": "classification"},
        "model": {"name": "auto"},
        "optimizer": {"learning_rate": 1e-3},
        "init_from": str(pretrained),
        "train_steps": 1,
        "evaluation": {"splits": {}},
    }
    tuned = {**content, **usual, **changes}
    tuned["data"] = tuned["data"] | {"image_size": 32, "data_dir": config.data.data_dir}
    path = folder / "config.py"
    path.write_text(f"def get_config():\n    return {tuned!r}\n")
    found = load_config(str(path), auto_model=model_of_weights)
    train(found, folder / "tuned", StopSignals())
    return found, json.loads((folder / "tuned" / "init.json").read_text())


def evaluate_padded(program, params, images, order, size, padding):
    """Evaluates images in an order, in batches of a size whose last rows are padding."""
    batches, count = [], size - padding
    for start in range(0, len(images), count):
        rows = images[order][start : start + count]
        filled = np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])
        mask = np.arange(size) < len(rows)
        batches.append({"image": filled, "label": np.zeros(size, np.int32), "mask": mask})
    totals = program.task.totals(())
    step = functools.partial(program.eval_step, params)
    return evaluate(step, batches, program.mesh, totals)


def tiles_of(rows):
    """Name -> the 16 patches of 4 x 4 pixels of each of 3 pictures."""
    return {
        n: r.reshape(3, 4, 4, 4, 4, 3).swapaxes(2, 3).reshape(3, 16, -1) for n, r in rows.items()
    }
