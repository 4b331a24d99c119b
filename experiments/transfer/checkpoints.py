"""Writes the pretrained models of a sweep in bfloat16, with the digest of each array.

    python -m experiments.transfer.checkpoints runs/pretrain

`load_pretrained` and `init_from` read experiments/transfer/checkpoints/MODEL.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.transfer.sweep import CHECKPOINTS, SMALL_MODELS
from vit_jax import load_pretrained, save_pretrained
from vit_jax.sweep import folder_name

FOLDER = Path(CHECKPOINTS)


def main() -> None:
    """Runs the script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sweep", type=Path)
    args = parser.parse_args()
    for name in map(folder_name, SMALL_MODELS):
        run = args.sweep / "jobs/final" / name / "seed0"
        if not (run / "result.json").exists():
            print(f"left out: {run} has not finished")
            continue
        model = load_pretrained(str(run))
        rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), nnx.state(model))
        nnx.update(model, rounded)
        save_pretrained(model, FOLDER / name)
        print(f"written: {FOLDER / name}")


if __name__ == "__main__":
    main()
