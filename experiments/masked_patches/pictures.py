"""Draws what a run of task masked_patches or mae predicts for images of its evaluation split.

    python -m experiments.masked_patches.pictures RUN [--data_dir=DATA] [--num=6] [--output=FILE]

A column for each image. Masked patches: the image, its corruption (gray: the mask token; other
patches may be replaced or unchanged), predicted and true mean colours of the corrupted patches.
Masked autoencoder: the image, its visible patches, and the reconstruction of the hidden ones, which
gets the mean and deviation of the true patch if the model predicts normalised pixels.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt8

from vit_jax.analysis.images import read_source
from vit_jax.config.run import Config
from vit_jax.data.colours import colours_of_classes
from vit_jax.data.preprocess import Preprocess
from vit_jax.data.sources import open_source
from vit_jax.interop.load import fill_parameters
from vit_jax.interop.native import open_native
from vit_jax.interop.tensors import to_jax
from vit_jax.models.embedding import cut_patches
from vit_jax.run.folder import read_config
from vit_jax.tasks.mae import task as mae
from vit_jax.tasks.mae.config import MaeConfig
from vit_jax.tasks.masked_patches import task as masked
from vit_jax.tasks.masked_patches.config import MaskedPatchesConfig
from vit_jax.tasks.task import DataInfo, build_task

Pixels = UInt8[np.ndarray, "M H W 3"]
_GRAY = 128


def main() -> None:
    """Runs the script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--data_dir")
    parser.add_argument("--num", type=int, default=6, help="images (6)")
    parser.add_argument("--output", type=Path, default=Path("predicted.png"))
    args = parser.parse_args()
    config = read_config(args.run)
    data = config.data.replace(data_dir=args.data_dir or config.data.data_dir)
    split = next(iter(config.evaluation.all_splits.values()), data.train_split)
    transform = Preprocess((data.image_size, data.image_size), crop="resize").pixels
    images = read_source(open_source(data, split), split, args.num, transform)
    draw_rows(predict(config, args.run, images.pixels), args.output)


def predict(config: Config, checkpoint: Path, pixels: Pixels) -> dict[str, Pixels]:
    """Returns name -> pictures of the images, what the model sees of them, and its predictions.

    They are masked or corrupted as in the evaluation of the run.
    """
    find = {"mae": _reconstruct, "masked_patches": _predict_colours}[config.task.name]
    return {"input": pixels, **find(config, checkpoint, pixels)}


def _filled(config: Config, checkpoint: Path) -> Any:
    """Returns the model of a run with the parameters of its folder."""
    model = build_task(config, DataInfo(0), platform=jax.default_backend()).abstract
    file, _ = open_native(checkpoint)
    return fill_parameters(model, lambda name: to_jax(file.read(name)))


def _reconstruct(config: Config, checkpoint: Path, pixels: Pixels) -> dict[str, Pixels]:
    model = _filled(config, checkpoint)
    patch = model.image_size[0] // model.grid[0]
    batch = mae.evaluation_batch(jnp.asarray(pixels), model.num_tokens - model.num_prefix)
    found, _ = model.reconstruct(batch["image"], batch["order"])
    assert isinstance(config.task, MaeConfig)
    if config.task.normalize_pixels:
        target = cut_patches(batch["target_image"], patch)
        deviation = jnp.sqrt(jnp.var(target, axis=-1, keepdims=True, ddof=1) + 1e-6)
        found = found * deviation + jnp.mean(target, axis=-1, keepdims=True)
    predicted = np.clip(np.round((mae.from_target(found) + 1) * 127.5), 0, 255).astype(np.uint8)
    hidden = np.asarray(mae.hidden_patches(batch["order"], model.num_visible))[..., None] > 0
    true = _patches(pixels, patch)
    return {
        "visible": _images(np.where(hidden, np.uint8(_GRAY), true), model.grid),
        "reconstructed": _images(np.where(hidden, predicted, true), model.grid),
    }


def _predict_colours(config: Config, checkpoint: Path, pixels: Pixels) -> dict[str, Pixels]:
    section = config.task
    assert isinstance(section, MaskedPatchesConfig)
    model = _filled(config, checkpoint)
    patch = model.image_size[0] // model.grid[0]
    batch = masked.evaluation_batch(jnp.asarray(pixels), section, patch)
    logits = model.predict(batch)
    corrupted, hidden, source = (
        np.asarray(batch[name]).reshape(len(pixels), -1, 1)
        for name in ("corrupted", "hidden", "source")
    )
    true = _patches(pixels, patch)
    moved = np.take_along_axis(true, source, axis=1)

    def painted(classes: Any) -> Pixels:
        colours = colours_of_classes(np.asarray(classes).reshape(len(pixels), -1), section.bits)
        colours = np.tile(colours.astype(np.uint8), patch**2)
        return _images(np.where(corrupted, colours, true), model.grid)

    return {
        "shown": _images(np.where(hidden, np.uint8(_GRAY), moved), model.grid),
        "predicted": painted(logits.argmax(-1)),
        "true colours": painted(batch["colour"]),
    }


def _patches(pixels: Pixels, patch: int) -> UInt8[np.ndarray, "M N F"]:
    return np.asarray(cut_patches(jnp.asarray(pixels, jnp.float32), patch)).astype(np.uint8)


def _images(patches: UInt8[np.ndarray, "M N F"], grid: tuple[int, int]) -> Pixels:
    """Joins patches into images."""
    side = round((patches.shape[-1] / 3) ** 0.5)
    tiles = patches.reshape(-1, *grid, side, side, 3).transpose(0, 1, 3, 2, 4, 5)
    return tiles.reshape(-1, grid[0] * side, grid[1] * side, 3)


def draw_rows(rows: dict[str, Pixels], path: Path) -> None:
    """Writes a picture with a row of images for each name."""
    from matplotlib.figure import Figure

    count = len(next(iter(rows.values())))
    figure = Figure(figsize=(0.6 + 1.25 * count, 0.2 + 1.25 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), count, squeeze=False)
    for own, (name, images) in zip(panels, rows.items(), strict=True):
        for panel, image in zip(own, images, strict=True):
            panel.imshow(image, interpolation="nearest")
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
        own[0].set_ylabel(name, fontsize=8)
    figure.savefig(path, dpi=160)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
