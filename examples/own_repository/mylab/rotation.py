"""Learning without labels: by how many quarter turns was an image rotated?"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import vit_jax
from vit_jax.config.run import Config
from vit_jax.config.task import TaskConfig, TaskName
from vit_jax.data.device import to_unit_range
from vit_jax.evaluation.classification import prediction_metrics, predictions_of
from vit_jax.evaluation.metric_totals import MetricTotals
from vit_jax.schema import option
from vit_jax.tasks.image_task import ImageTask
from vit_jax.tasks.task import DataInfo


class RotationConfig(TaskConfig):
    """Predicts the rotation of an image."""

    name: TaskName = option("rotation")
    turns: int = option(4, at_least=2, at_most=4)
    """Number of rotations: 2 (upright, a quarter turn) to 4."""

    reads_loss = True  # The section `loss`.
    uses_labels = False


@vit_jax.register_task(RotationConfig)
class Rotation(ImageTask):
    """Predicts the rotation of an image. Source: arXiv:1803.07728."""

    section: RotationConfig

    def __init__(self, config: Config, data: DataInfo, *, platform: str):
        self.turns = config.task.turns
        super().__init__(config, data, platform=platform, num_outputs=self.turns)
        self.metrics = prediction_metrics(self.turns, config.evaluation.metrics)

    def prepare(self, batch: Mapping[str, jax.Array], step: jax.Array) -> dict[str, jax.Array]:
        """Augments the images f32[B, H, W, 3] and turns each by a random number of quarters."""
        images = self.augment({"image": batch["image"]}, step)["image"]
        key = self.random_key("rotation", step)
        turns = jax.random.randint(key, len(images), 0, self.turns)
        each = jnp.arange(len(images))
        return {"image": all_turns(images, self.turns)[turns, each], "label": turns}

    def loss(self, params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
        """Returns the mean loss, and nothing else to log."""
        logits = self.model(params)(batch["image"], key=key)
        return self.config.label_loss(logits, batch["label"]).mean(), {}

    def eval_step(self, params: Any, batch: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Predicts all turns of each image."""
        images = all_turns(to_unit_range(batch["image"]), self.turns)
        logits = self.model(params)(images.reshape(-1, *images.shape[2:]))
        labels = jnp.repeat(jnp.arange(self.turns), len(batch["mask"]))
        mask = jnp.tile(batch["mask"], self.turns)  # False: the padding of the last batch.
        predictions = predictions_of(logits, labels, mask, self.config.label_loss)
        sums = {name: metric.sums(predictions) for name, metric in self.metrics.items()}
        return {**sums, "examples": batch["mask"].sum()}

    def totals(self, class_names: Sequence[str]) -> MetricTotals:
        """Returns what adds up the sums of `eval_step`; the dataset's classes do not matter."""
        return MetricTotals(self.metrics)


def all_turns(images: jax.Array, turns: int) -> jax.Array:
    """Returns images f32[B, H, W, 3] turned by 0, 1, ... quarters: f32[turns, B, H, W, 3]."""
    return jnp.stack([jnp.rot90(images, k, axes=(1, 2)) for k in range(turns)])
