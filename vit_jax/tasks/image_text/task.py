"""The task of pairs: two towers learn which text of the batch belongs to which image.

Source: arXiv:2103.00020 (CLIP), 2303.15343 (SigLIP), 2111.07991 (LiT).
"""

import functools
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.config.optimizer import OptimizerConfig
from vit_jax.config.run import Config
from vit_jax.data.arrays import Preprocessing
from vit_jax.data.captions import (
    build_captions,
    captioned_image,
    captioned_image_arrays,
    check_captions,
)
from vit_jax.data.device import Batch, to_unit_range
from vit_jax.data.sources.base import Example
from vit_jax.data.transforms import make_eval_transform, make_train_transform
from vit_jax.models.flops import forward_macs, training_flops
from vit_jax.models.registry import build_model
from vit_jax.models.two_towers import TwoTowers, tower_stacks
from vit_jax.named_tree import leaf_names
from vit_jax.tasks.image_text.config import ImageTextConfig
from vit_jax.tasks.image_text.losses import LOSSES
from vit_jax.tasks.image_text.totals import PairTotals
from vit_jax.tasks.image_text.zeroshot import ZeroShotEvaluator
from vit_jax.tasks.task import (
    TASK_CLASSES,
    ComparingLoss,
    DataInfo,
    Metrics,
    OpenEvaluator,
    Task,
)

# Embeddings of images and of texts, f32[B, E] each.
Embeddings = tuple[Float[Array, "B E"], Float[Array, "B E"]]


@TASK_CLASSES.register
class ImageText(Task):
    """Learns which text of a batch belongs to which image. Labels of the data are not used.

    A locked image tower is not trained and has no dropout.
    """

    section: ImageTextConfig

    def __init__(self, config: Config, data: DataInfo, *, platform: str):
        super().__init__(config, data, platform=platform)
        self.is_locked = locks_images(config.optimizer, self.abstract)
        self.train_preprocessing, self.eval_preprocessing = captioned_images(config, data)
        self.splits_exactly = False  # Each microbatch would be computed twice.
        self.activations = _activations(config, self.is_locked)
        self.clamp = make_clamp(self.section)

    def build(self, key: jax.Array) -> TwoTowers:
        return build_model(
            self.config.model,
            num_classes=0,
            image_size=self.config.data.image_size,
            key=key,
            platform=self.platform,
        )

    @property
    def open_evaluator(self) -> OpenEvaluator | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if not self.section.zeroshot:
            return None
        return functools.partial(ZeroShotEvaluator, self.config, self.graphdef)

    @functools.cached_property
    def flops_per_image(self) -> int:
        """Model FLOPs of training on one pair; a locked tower is only run forward."""
        options: Any = self.config.model
        size = (self.config.data.image_size, self.config.data.image_size)
        both, images = (
            forward_macs(model, num_classes=0, image_size=size)
            for model in (options, options.image)
        )
        of_images = 2 * images if self.is_locked else training_flops(images)
        return training_flops(both - images) + of_images

    def prepare(self, batch: Batch, step: jax.Array) -> Batch:
        return self.augment({"image": batch["image"], "tokens": batch["tokens"]}, step)

    def embed(self, params: Any, batch: Batch, key: jax.Array) -> Embeddings:
        """Returns the embeddings of the images and texts of a prepared batch."""
        dropout_key = None if self.is_locked else key
        return self.model(params)(batch["image"], batch["tokens"], key=dropout_key)

    def compare(self, params: Any, embeddings: Embeddings) -> tuple[Float[Array, ""], Metrics]:
        """Returns the mean loss of all pairs of a batch, and more metrics to log."""
        model = self.model(params)
        bias = jnp.zeros(()) if model.bias is None else model.bias[...]
        loss, accuracy = LOSSES[self.section.loss](*embeddings, model.temperature, bias)
        metrics = {"temperature": model.temperature, "accuracy_in_batch": accuracy}
        return loss, metrics | ({} if model.bias is None else {"bias": bias})

    @property
    def batch_loss(self) -> ComparingLoss:
        return ComparingLoss(self.embed, self.compare)

    def loss(self, params: Any, batch: Batch, key: jax.Array) -> tuple[Float[Array, ""], Metrics]:
        return self.batch_loss(params, batch, key)

    def eval_step(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        images, texts = self.model(params)(to_unit_range(batch["image"]), batch["tokens"])
        return {"images": images, "texts": texts, "mask": batch["mask"]}

    def totals(self, class_names: Sequence[str]) -> PairTotals:
        del class_names
        return PairTotals()


def captioned_images(config: Config, data: DataInfo) -> tuple[Preprocessing, Preprocessing]:
    """Returns the preprocessing of captioned images for training and for evaluation.

    A program without data, for a plan or a benchmark, needs no tokenizer.
    """
    section, text = config.data, config.model.text  # pyright: ignore[reportAttributeAccessIssue]
    if data.source is None:
        arrays = captioned_image_arrays(section.image_size, text.context_length)
        empty = Preprocessing(arrays, _no_rows)
        return empty, empty
    captions = build_captions(section.captions, text, data.source.class_names)
    check_captions(data.source, captions, skips=section.on_bad_example == "skip")
    side = section.image_size
    training = make_train_transform(side, section)
    evaluation = make_eval_transform(side, **section.eval_view)
    return (
        captioned_image(training, side, captions),
        captioned_image(evaluation, side, captions, draws=False),
    )


def _no_rows(example: Example, rng: np.random.Generator) -> Any:
    raise AssertionError("a program without data has no rows")


def locks_images(config: OptimizerConfig, model: TwoTowers) -> bool:
    """Returns whether the whole image tower is frozen for the whole run."""
    names = [n for n in leaf_names(nnx.to_pure_dict(nnx.state(model))) if n.startswith("image/")]
    return not config.freezes_for_a_while and all(
        any(re.fullmatch(pattern, name) for pattern in config.freeze) for name in names
    )


def make_clamp(section: ImageTextConfig) -> Any:
    """Returns clamp_fn(params), which limits the temperature; None: it has no limit."""
    largest = section.max_temperature
    if largest is None:
        return None

    def clamp_fn(params: Any) -> Any:
        limited = jnp.minimum(params["log_temperature"], math.log(largest))
        return {**params, "log_temperature": limited}

    return clamp_fn


def _activations(config: Config, is_locked: bool) -> float:
    """Returns what the trained towers keep, as a multiple of the tower that keeps more."""
    size = (config.data.image_size, config.data.image_size)
    kept = [s.depth * s.layer_values for s in tower_stacks(config.model, size)]  # pyright: ignore[reportArgumentType]
    return (kept[-1] if is_locked else sum(kept)) / max(kept)
