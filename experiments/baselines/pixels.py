"""What do mean colours of 8 x 8 blocks score as features? The trivial baseline, in a few minutes.

    TFDS_DATA_DIR=DATA python -m experiments.baselines.pixels runs/baselines

Writes a run folder for each row, as `fewshot` does, so that `report` shows them beside models.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.config.data import DataConfig
from vit_jax.config.fewshot import FewshotConfig
from vit_jax.data.sources import open_source
from vit_jax.data.transforms import make_eval_transform
from vit_jax.evaluation.features import Features
from vit_jax.evaluation.methods import Splits, run_methods

NAME, BLOCKS = "BlockMeans-8", 8
PHOTOS = ("clothing_small", "sign_language_digits")
# Training images of CIFAR-10, as in the experiments that are compared with it.
SIZES = (500, 1_440, 2_000, 4_800, 8_000, 48_000)
_METHODS = ("least_squares", "linear_probe")


def block_means(images: np.ndarray) -> np.ndarray:
    """Returns the mean colours of 8 x 8 blocks of images u8[N, S, S, 3] as f32[N, 192]."""
    side = images.shape[1] // BLOCKS
    blocks = images.reshape(-1, BLOCKS, side, BLOCKS, side, 3).astype(np.float32) / 127.5 - 1
    return blocks.mean((2, 4)).reshape(len(images), -1)


def score(dataset: str, size: int, train: str, config: FewshotConfig) -> dict[str, float]:
    """Returns the metrics of `fewshot` for images that are squashed to `size` pixels."""
    transform, unused = make_eval_transform(size, "resize"), np.random.default_rng(0)
    splits = []
    for split in (train, "test"):
        source = open_source(DataConfig(name=dataset, image_size=size, global_batch_size=1), split)
        examples = list(source.read(range(len(source))))
        images = np.stack([transform(example.image, unused) for example in examples])
        labels = np.array([example.label for example in examples], np.int32)
        splits.append(Features(block_means(images), labels))
    return run_methods(Splits(*splits, None, source.class_names, dataset), config, dataset)[0]


def write(runs: Path, name: str, result: dict[str, Any], **labels: str) -> None:
    """Writes a run folder that `report` reads."""
    folder = runs / "jobs" / name
    folder.mkdir(parents=True, exist_ok=True)
    job = {"name": name, "stage": "final", "command": "fewshot",
           "labels": {"model": NAME, **labels}}  # fmt: skip
    files = {"job": job, "config": {"command": "fewshot"},
             "result": {"step": 0, "model": NAME, "parameters": 0, **result}}  # fmt: skip
    for file, content in files.items():
        (folder / f"{file}.json").write_text(json.dumps(content))


def main(runs: Path) -> None:
    """Measures all rows."""
    for size in SIZES:
        config = FewshotConfig(methods=("linear_probe",))
        result = score("cifar10", 32, f"train[:{size}]", config)
        write(runs, f"cifar10/{size}", result, images=str(size))
    config, result = FewshotConfig(methods=_METHODS), {}
    for dataset in PHOTOS:
        result |= score(dataset, 32, "train", config)
    write(runs, f"photos/{NAME}/seed0", result)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
