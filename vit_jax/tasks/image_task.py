"""What tasks on images share: their model, preprocessing and labels."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
from flax import nnx

from vit_jax.config.run import Config
from vit_jax.data.arrays import labelled_image
from vit_jax.data.class_names import names_of_head
from vit_jax.data.device import Batch
from vit_jax.data.transforms import make_eval_transform, make_train_transform
from vit_jax.evaluation.classification import PredictionTotals, prediction_metrics
from vit_jax.models.flops import forward_macs, frozen_training_flops, training_flops
from vit_jax.models.registry import build_model
from vit_jax.tasks.task import DataInfo, Task, model_image_size


class ImageTask(Task):
    """A task on images with one label each, which it need not read."""

    def __init__(self, config: Config, data: DataInfo, *, platform: str, num_outputs: int = 0):
        super().__init__(config, data, platform=platform)
        self.num_outputs = num_outputs
        self.splits_exactly = not config.model.draws_random_numbers
        size = config.data.image_size
        training = make_train_transform(size, config.data)
        evaluation = make_eval_transform(size, **config.data.eval_view)
        self.train_preprocessing, self.eval_preprocessing = (
            labelled_image(transform, size, data.num_classes)
            for transform in (training, evaluation)
        )

    def build(self, key: jax.Array) -> nnx.Module:
        return build_model(
            self.config.model,
            num_classes=self.num_outputs,
            image_size=model_image_size(self.config),
            key=key,
            platform=self.platform,
        )

    @functools.cached_property
    def flops_per_image(self) -> int:
        size, optimizer = model_image_size(self.config), self.config.optimizer
        if optimizer.freeze and not optimizer.freezes_for_a_while:
            return frozen_training_flops(
                self.config.model,
                num_classes=self.num_outputs,
                image_size=size,
                frozen=optimizer.freeze,
            )
        macs = forward_macs(self.config.model, num_classes=self.num_outputs, image_size=size)
        return training_flops(macs)


class LabelTask(ImageTask):
    """A task that predicts labels.

    Attributes:
        own_metrics: name -> metric that the task's `eval_step` itself adds to its outputs.
    """

    own_metrics: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, config: Config, data: DataInfo, *, platform: str):
        super().__init__(config, data, platform=platform, num_outputs=data.num_classes)
        self.label_loss = config.label_loss
        self.eval_loss = config.label_loss.replace(label_smoothing=0.0)
        self.by_class = config.measures_classes(data.num_classes)
        self.metrics = prediction_metrics(
            self.num_outputs, config.evaluation.metrics, by_class=self.by_class
        )

    def prepare(self, batch: Batch, step: jax.Array) -> Batch:
        return self.augment({"image": batch["image"], "label": batch["label"]}, step)

    def totals(self, class_names: Sequence[str]) -> PredictionTotals:
        names = names_of_head(class_names, self.num_outputs) if self.by_class else ()
        return PredictionTotals({**self.metrics, **self.own_metrics}, names)
