"""Classification of images of any aspect ratio, as padded sequences of patches (NaFlex)."""

from typing import Any

import jax

from vit_jax.config.run import Config
from vit_jax.data.arrays import labelled_patches
from vit_jax.data.device import Batch, to_unit_range
from vit_jax.data.transforms import make_eval_transform, make_train_transform
from vit_jax.models.naflex import Patches, apply, fit_grid
from vit_jax.models.registry import model_shape
from vit_jax.tasks.classification.task import Classification
from vit_jax.tasks.task import DataInfo


class NaFlexClassification(Classification):
    """Classification of `data.sequence_length` patches. Source: arXiv:2502.14786, section 2.4."""

    def __init__(self, config: Config, data: DataInfo, *, platform: str):
        super().__init__(config, data, platform=platform)
        section, patch_size = config.data, model_shape(config.model).patch_size
        length = section.sequence_length
        assert length is not None

        def size(height: int, width: int) -> tuple[int, int]:
            rows, columns = fit_grid(height, width, patch_size, length)
            return rows * patch_size, columns * patch_size

        sizes = (patch_size, length, data.num_classes)
        training = make_train_transform(size, section)
        evaluation = make_eval_transform(size, **section.eval_view)
        flip = "flip" in section.augment.operations("uint8")
        self.train_preprocessing = labelled_patches(training, *sizes, flip=flip)
        self.eval_preprocessing = labelled_patches(evaluation, *sizes, flip=False)

    def prepare(self, batch: Batch, step: jax.Array) -> Batch:
        """Scales the patches. Images are flipped on the host."""
        del step
        return {"image": self.inputs(batch), "label": batch["label"]}

    def inputs(self, batch: Batch) -> Patches:
        return Patches(to_unit_range(batch["patches"]), batch["grid"])

    def logits(self, params: Any, inputs: Patches, key: jax.Array | None = None) -> Any:
        return apply(self.model(params), inputs, key=key)
