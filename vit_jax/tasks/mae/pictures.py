"""The picture of a masked autoencoder: images, visible patches, and reconstructions."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, UInt8

from vit_jax.models.patches import cut_patches
from vit_jax.tasks.mae.config import MaeConfig
from vit_jax.tasks.mae.model import MaskedAutoencoder
from vit_jax.tasks.mae.task import (
    build_autoencoder,
    evaluation_batch,
    from_target,
    hidden_losses,
    hidden_patches,
    pixel_targets,
)
from vit_jax.tasks.pictures import draw_rows, filled, read_run
from vit_jax.tasks.task import Picture

# In [-1, 1].
_HIDDEN_GRAY = 0.0


def make_picture(run: Path, checkpoint: Path, pixels: np.ndarray, batch_size: int) -> Picture:
    """Draws what a run reconstructs, with the masks of evaluation.

    `checkpoint` is the run folder, or one step in it; `pixels` are u8[M, H, W, 3] of the size that
    the model was trained at.
    """
    config = read_run(run, "mae", pixels)
    model = nnx.eval_shape(lambda: build_autoencoder(config, key=jax.random.key(0)))
    model = filled(model, checkpoint)
    found = reconstruct(model, pixels, config.mae, batch_size=batch_size)
    rows = [{"image": i, "loss": float(loss)} for i, loss in enumerate(found["loss"])]
    summary = (
        f"images: {len(pixels)}, {found['hidden'][0].sum()} of {found['hidden'][0].size} patches"
        f" hidden, mean loss {found['loss'].mean():.3f}"
    )
    shown = {"input": pixels, "visible": found["shown"], "reconstructed": found["predicted"]}
    figure, _ = draw_rows(shown, f"Masked autoencoder: mean loss {found['loss'].mean():.2f}")
    return Picture(figure, found, rows, summary)


def reconstruct(
    model: MaskedAutoencoder,
    pixels: UInt8[np.ndarray, "M H W 3"],
    section: MaeConfig,
    *,
    batch_size: int = 16,
) -> dict[str, np.ndarray]:
    """Returns what a model makes of images.

    If the model predicts normalised pixels, each patch gets the mean and deviation of the true one,
    which it does not predict.

    Returns:
        "hidden" bool[M, N]; "predicted" u8[M, H, W, 3], with the true pixels of visible patches;
        "shown" u8[M, H, W, 3], with hidden patches in gray; "loss" f32[M].
    """
    graphdef, state = nnx.split(model)
    patch = model.image_size[0] // model.grid[0]

    @jax.jit
    def predict(params: Any, images: jax.Array) -> dict[str, jax.Array]:
        model = nnx.merge(graphdef, params)
        batch = evaluation_batch(images, model.tokens - model.num_prefix)
        output, _ = model.reconstruct(batch["image"], batch["order"])
        hidden = hidden_patches(batch["order"], model.num_visible)
        target = pixel_targets(batch["target_image"], patch, normalize=section.normalize_pixels)
        scaled = output
        if section.normalize_pixels:
            pixels = cut_patches(batch["target_image"], patch)
            deviation = jnp.sqrt(jnp.var(pixels, axis=-1, keepdims=True, ddof=1) + 1e-6)
            scaled = output * deviation + jnp.mean(pixels, axis=-1, keepdims=True)
        true = cut_patches(batch["image"], patch)
        chosen = hidden[..., None] > 0
        return {
            "hidden": hidden > 0,
            "loss": hidden_losses(output, target, hidden),
            "predicted": jnp.where(chosen, from_target(scaled), true),
            "shown": jnp.where(chosen, _HIDDEN_GRAY, true),
        }

    parts = [
        jax.device_get(predict(state, jnp.asarray(pixels[start : start + batch_size])))
        for start in range(0, len(pixels), batch_size)
    ]
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for name in ("predicted", "shown"):
        found[name] = _image(found[name], model.grid, patch)
    return found


def _image(
    patches: Float[np.ndarray, "M N F"], grid: tuple[int, int], patch: int
) -> UInt8[np.ndarray, "M H W 3"]:
    """Joins patches in [-1, 1] into images."""
    tiles = patches.reshape(-1, *grid, patch, patch, 3).transpose(0, 1, 3, 2, 4, 5)
    images = tiles.reshape(-1, grid[0] * patch, grid[1] * patch, 3)
    return np.clip(np.round((images + 1) * 127.5), 0, 255).astype(np.uint8)
