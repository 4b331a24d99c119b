"""Models of masked patch prediction with all that served their task, from run folders."""

from pathlib import Path

import jax
from flax import nnx

from vit_jax.config.task import MaskedPatchesConfig
from vit_jax.errors import ModelError
from vit_jax.interop.load import filled
from vit_jax.interop.native import open_native
from vit_jax.interop.tensors import to_jax
from vit_jax.models.registry import build_model
from vit_jax.models.vit import ViT
from vit_jax.run.folder import read_config


def load_masked_model(folder: Path, step: Path | None = None) -> tuple[ViT, MaskedPatchesConfig]:
    """Returns a run's model with its mask token and head of colours, and how it was trained.

    Args:
        folder: run folder.
        step: folder of one checkpoint in it; None: the run's result.

    Raises:
        ModelError: a run of another task.
        RunFolderError, WeightsError: no run there, or none that has saved a checkpoint.
    """
    config = read_config(folder)
    if config.task != "masked_patches":
        raise ModelError(
            f"{folder} is a run of {config.task}", "one of masked_patches",
            "train one with configs/masked_patches.py",
        )  # fmt: skip
    section, side = config.masked_patches, config.data.image_size

    def build() -> nnx.Module:
        return build_model(
            config.model, num_classes=section.num_colours, image_size=side, key=jax.random.key(0),
            mask_token=True,
        )  # fmt: skip

    file, _ = open_native(step or folder)
    model = filled(nnx.eval_shape(build), lambda name: to_jax(file.read(name)))
    assert isinstance(model, ViT)
    return model, section
