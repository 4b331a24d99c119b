"""The picture of masked patch prediction: images, their corruption, predicted and true colours."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float, Int, UInt8

from vit_jax.config.run import Config
from vit_jax.data.colours import colours_of_classes
from vit_jax.models.vit import ViT
from vit_jax.tasks.masked_patches.config import MaskedPatchesConfig
from vit_jax.tasks.masked_patches.task import build_masked_model, evaluation_batch, make_forward
from vit_jax.tasks.pictures import draw_rows, filled, read_run
from vit_jax.tasks.task import Picture

_MASKED_GRAY = 128
_SHOWN = ("corrupted", "hidden", "source", "colour")


@dataclasses.dataclass(frozen=True)
class MaskedPrediction:
    """Corrupted images and the colours that a model predicts. R x C is the grid of patches."""

    corrupted: Bool[np.ndarray, "M R C"]  # their colour is predicted
    hidden: Bool[np.ndarray, "M R C"]  # replaced by the mask token
    # Index, in raster order, of the patch whose embedding is at each position.
    source: Int[np.ndarray, "M R C"]
    colour: Int[np.ndarray, "M R C"]  # class of each patch's mean colour, see `data.colours`
    predicted: Int[np.ndarray, "M R C"]  # class with the largest logit
    bits: int  # per colour channel

    @property
    def accuracy(self) -> float:
        """Fraction of the corrupted patches whose colour is predicted exactly."""
        return float((self.predicted == self.colour)[self.corrupted].mean())

    def rows(self) -> list[dict[str, int]]:
        """Returns one row of a table per corrupted patch."""
        return [
            {
                "image": int(place[0]),
                "row": int(place[1]),
                "column": int(place[2]),
                "hidden": int(self.hidden[place]),
                "source": int(self.source[place]),
                "colour": int(self.colour[place]),
                "predicted": int(self.predicted[place]),
            }
            for place in zip(*np.nonzero(self.corrupted), strict=True)
        ]


def make_picture(run: Path, checkpoint: Path, pixels: np.ndarray, batch_size: int) -> Picture:
    """Draws the predictions of a run.

    `checkpoint` is the run folder, or one step in it; `pixels` are u8[M, H, W, 3] of the size that
    the model was trained at.
    """
    config = read_run(run, "masked_patches", pixels)
    model = filled(nnx.eval_shape(lambda: _build(config)), checkpoint)
    found = predict_masked(model, pixels, config.masked_patches, batch_size=batch_size)
    fields = {f.name: np.asarray(getattr(found, f.name)) for f in dataclasses.fields(found)}
    summary = (
        f"images: {len(pixels)}, {found.corrupted[0].sum()} of {found.corrupted[0].size} patches"
        f" corrupted, {found.accuracy:.1%} of their colours predicted exactly"
    )
    return Picture(draw_masked(found, pixels), fields, found.rows(), summary)


def _build(config: Config) -> nnx.Module:
    colours, side = config.masked_patches.num_colours, config.data.image_size
    return build_masked_model(config.model, colours, image_size=side, key=jax.random.key(0))


def predict_masked(
    model: ViT,
    pixels: UInt8[np.ndarray, "M H W 3"],
    config: MaskedPatchesConfig,
    *,
    batch_size: int = 16,
) -> MaskedPrediction:
    """Returns the predictions of a model for images that are corrupted as in evaluation."""
    graphdef, state = nnx.split(model)
    params = nnx.to_pure_dict(state)
    forward, stride = make_forward(graphdef), model.image_size[0] // model.grid[0]

    @jax.jit
    def predict(params: Any, images: jax.Array) -> dict[str, jax.Array]:
        batch = evaluation_batch(images, config, stride)
        predicted = jnp.argmax(forward(params, batch), axis=-1)
        return {name: batch[name] for name in _SHOWN} | {"predicted": predicted}

    parts = [
        jax.device_get(predict(params, jnp.asarray(pixels[start : start + batch_size])))
        for start in range(0, len(pixels), batch_size)
    ]
    maps = {
        name: np.concatenate([part[name] for part in parts]).reshape(-1, *model.grid)
        for name in parts[0]
    }
    return MaskedPrediction(**maps, bits=config.bits)


def draw_masked(found: MaskedPrediction, pixels: UInt8[np.ndarray, "M H W 3"]) -> Any:
    """Draws four rows: images, corrupted images, predicted and true mean colours.

    In the second row, hidden patches are gray with a dot, and replaced patches show the patch that
    replaces them. In the rows of colours, patches that were not corrupted show the image.
    """
    rows = {
        "input": pixels,
        "shown": shown(found, pixels),
        "predicted": coloured(found, pixels, found.predicted),
        "true colours": coloured(found, pixels, found.colour),
    }
    title = f"Masked patch prediction: {found.accuracy:.0%} of the colours exact"
    figure, panels = draw_rows(rows, title)
    height = pixels.shape[1] // found.colour.shape[1]
    width = pixels.shape[2] // found.colour.shape[2]
    for panel, hidden in zip(panels["shown"], found.hidden, strict=True):
        y, x = np.nonzero(hidden)
        panel.plot((x + 0.5) * width - 0.5, (y + 0.5) * height - 0.5, "w.", markersize=2)
    return figure


def shown(
    found: MaskedPrediction, pixels: UInt8[np.ndarray, "M H W 3"]
) -> UInt8[np.ndarray, "M H W 3"]:
    """Returns the images with patches hidden and moved as in the model's input."""
    tiles = _tiles(pixels, found)
    source = found.source.reshape(len(tiles), -1)[..., None, None, None]
    hidden = found.hidden.reshape(len(tiles), -1)[..., None, None, None]
    moved = np.take_along_axis(tiles, source, 1)
    return _joined(np.where(hidden, np.uint8(_MASKED_GRAY), moved), found)


def coloured(
    found: MaskedPrediction, pixels: UInt8[np.ndarray, "M H W 3"], classes: np.ndarray
) -> UInt8[np.ndarray, "M H W 3"]:
    """Returns the images with corrupted patches painted in the colours of `classes`."""
    tiles = _tiles(pixels, found)
    colours: Float[np.ndarray, "M N 3"] = colours_of_classes(
        classes.reshape(len(tiles), -1), found.bits
    )
    corrupted = found.corrupted.reshape(len(tiles), -1)[..., None, None, None]
    return _joined(np.where(corrupted, colours[:, :, None, None].astype(np.uint8), tiles), found)


def _tiles(pixels: np.ndarray, found: MaskedPrediction) -> np.ndarray:
    """Cuts images [M, H, W, 3] into patches [M, N, h, w, 3]."""
    count, height, width, _ = pixels.shape
    rows, columns = found.colour.shape[1:]
    cut = pixels.reshape(count, rows, height // rows, columns, width // columns, 3)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(
        count, rows * columns, height // rows, width // columns, 3
    )


def _joined(tiles: np.ndarray, found: MaskedPrediction) -> np.ndarray:
    """Joins patches [M, N, h, w, 3] into images [M, H, W, 3]."""
    count, _, height, width, _ = tiles.shape
    rows, columns = found.colour.shape[1:]
    grid = tiles.reshape(count, rows, columns, height, width, 3).transpose(0, 1, 3, 2, 4, 5)
    return grid.reshape(count, rows * height, columns * width, 3)
