"""What the pictures of the tasks share: the run that they are of, and panels of images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.config.run import Config
from vit_jax.errors import DataError, ModelError
from vit_jax.interop.load import fill_parameters
from vit_jax.interop.native import open_native
from vit_jax.interop.tensors import to_jax
from vit_jax.run.folder import read_config


def read_run(run: Path, task: str, pixels: np.ndarray) -> Config:
    """Returns the config of a run of this task; raises if images u8[M, H, W, 3] do not fit it."""
    config = read_config(run)
    if config.task != task:
        raise ModelError(
            f"{run} is a run of task {config.task}",
            f"the run folder of a run with task {task}",
            f"train one with configs/{task}.py",
        )
    if not len(pixels):
        raise DataError("0 images", "at least one", "give some")
    side, (height, width) = config.data.image_size, pixels.shape[1:3]
    if (height, width) != (side, side):
        raise ModelError(
            f"{task} at {height}x{width} pixels of a model for {side}",
            "the size that it was trained at",
            "leave --image_size out",
        )
    return config


def filled(model: Any, checkpoint: Path) -> Any:
    """Returns an abstract model with the parameters of a run folder, or of one step in it."""
    file, _ = open_native(checkpoint)
    return fill_parameters(model, lambda name: to_jax(file.read(name)))


def draw_rows(rows: Mapping[str, np.ndarray], title: str) -> tuple[Any, Mapping[str, Any]]:
    """Draws a row of images u8[M, H, W, 3] for each name.

    Returns:
        The figure, and name -> its M panels.
    """
    from matplotlib.figure import Figure

    count = len(next(iter(rows.values())))
    figure = Figure(figsize=(0.6 + 1.25 * count, 0.5 + 1.25 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), count, squeeze=False)
    for own, (name, images) in zip(panels, rows.items(), strict=True):
        for panel, image in zip(own, images, strict=True):
            panel.imshow(image, interpolation="nearest")
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
        own[0].set_ylabel(name, fontsize=8)
    figure.suptitle(title, fontsize=10)
    return figure, dict(zip(rows, panels, strict=True))
