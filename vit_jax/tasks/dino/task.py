"""The task of DINO: a student predicts what its own moving average says of other crops.

The teacher is the moving average of the training state, so checkpoints have it, and evaluation and
fine-tuning use it.

Source: arXiv:2104.14294; the iBOT term: arXiv:2304.07193, section 4.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Num

from vit_jax.config.run import Config
from vit_jax.data.device import Batch, to_unit_range
from vit_jax.data.distortion import distort
from vit_jax.errors import ConfigError
from vit_jax.evaluation.metric_totals import MetricTotals
from vit_jax.models.activation_sharding import constrain
from vit_jax.models.embedding import take_patches
from vit_jax.models.flops import traced_macs, training_flops
from vit_jax.models.vit_family import vit_shape
from vit_jax.tasks.collapse import METRIC, FeatureStd, direction_sums, feature_std
from vit_jax.tasks.dino.config import DinoConfig
from vit_jax.tasks.dino.crops import GLOBAL_CROPS, crop_preprocessing, most_masked
from vit_jax.tasks.dino.losses import (
    centred_targets,
    entropy,
    patch_losses,
    sinkhorn_targets,
    view_losses,
)
from vit_jax.tasks.dino.model import SelfDistilled, resample_positions
from vit_jax.tasks.image_task import ImageTask
from vit_jax.tasks.task import (
    TASK_CLASSES,
    BatchLoss,
    ComparingLoss,
    DataInfo,
    Metrics,
    Teacher,
    TeacherState,
)

# Probabilities of blur and solarisation. Source: arXiv:2104.14294, section 3.2 and its code.
_DISTORTIONS = {"image": (1.0, 0.0), "second_image": (0.1, 0.2), "local_images": (0.5, 0.0)}
_CENTRE, _PATCH_CENTRE = "centre", "patch_centre"
# As in the authors' code: what divides the student's outputs, the teacher's temperature before its
# warmup, and the share of the centre that a step keeps.
_STUDENT_TEMPERATURE, _FIRST_TEACHER_TEMPERATURE, _CENTRE_MOMENTUM = 0.1, 0.04, 0.9


@TASK_CLASSES.register
class Dino(ImageTask):
    """A student predicts what its moving average says of other crops.

    Labels of the data are not used. Sinkhorn's targets depend on all images of a batch.
    """

    section: DinoConfig

    def __init__(self, config: Config, data: DataInfo, *, platform: str):
        _check_local_size(config)
        super().__init__(config, data, platform=platform)
        section = self.section
        self.local_grid = self.abstract_local.grid
        self.train_preprocessing = crop_preprocessing(config, self.abstract.grid)
        self.splits_exactly &= section.centring == "mean"
        self.activations = (
            2 + section.local_crops * self.abstract_local.num_tokens / self.abstract.num_tokens
        )
        self.teacher = make_teacher(section, data.total_steps)
        self.temperature_fn = teacher_temperature(config, data)

    def build(self, key: jax.Array) -> SelfDistilled:
        return self._build(key, self.config.data.image_size)

    def _build(self, key: jax.Array, image_size: int) -> SelfDistilled:
        return SelfDistilled(
            self.config.model,  # pyright: ignore[reportArgumentType]
            self.section,
            image_size=image_size,
            platform=self.platform,
            rngs=nnx.Rngs(params=key),
        )

    @functools.cached_property
    def abstract_local(self) -> Any:
        """The model for local crops, with shapes; that for global crops if there are none."""
        if not self.section.local_crops:
            return self.abstract
        size = self.section.local_size
        return nnx.eval_shape(lambda key: self._build(key, size), jax.random.key(0))

    @functools.cached_property
    def flops_per_image(self) -> int:
        """Model FLOPs of student and teacher."""
        options = self.config.model.on_any_platform().replace(scan=True, remat="none")
        task = Dino(self.config.replace(model=options), self.data, platform="cpu")
        params = nnx.to_pure_dict(nnx.state(task.abstract))
        batch = {
            name: jax.ShapeDtypeStruct((1, *a.shape), a.dtype if name == "masked" else jnp.float32)
            for name, a in self.train_preprocessing.arrays.items()
        }
        student, teacher = (
            traced_macs(function, params, batch)
            for function in (
                lambda params, batch: task.student(params, batch, None),
                task.teacher_outputs,
            )
        )
        return training_flops(student) + 2 * teacher

    def prepare(self, batch: Batch, step: jax.Array) -> Batch:
        """Scales u8 crops to [-1, 1], augments and distorts each of them."""
        crops = {n: self._prepare_crops(batch[n], n, step) for n in _DISTORTIONS if n in batch}
        return crops | ({"masked": batch["masked"]} if "masked" in batch else {})

    def _prepare_crops(
        self, images: Num[Array, "B *K H W 3"], name: str, step: jax.Array
    ) -> jax.Array:
        x = images.reshape(-1, *images.shape[-3:])
        x = self.augment({"image": x}, step, name)["image"]
        if self.section.distort:
            blur, solarize = _DISTORTIONS[name]
            key, size = self.random_key(f"distort {name}", step), self.config.data.image_size
            x = distort(x, key, blur=blur, solarize=solarize, image_size=size)
        return constrain(x.reshape(images.shape), "batch")

    def teacher_outputs(
        self, params: Any, batch: Batch
    ) -> tuple[Float[Array, "M K"], Float[Array, "M P K"] | None, Float[Array, "M D"]]:
        """Returns the teacher's logits of global crops and of their patches, and the features.

        The crops have no masks. With Sinkhorn, there are only the logits of as many patches as can
        be masked (arXiv:2111.07832's code); without an iBOT term there are none.
        """
        model, patches = self.model(params), None
        features, found = model(global_views(batch), return_intermediates=("encoded",))
        if self.section.ibot_weight:
            patches = found["encoded"][:, model.num_prefix :]
            if self.section.centring == "sinkhorn":
                patches = take_patches(patches, masked_places(batch)[0])
            patches = model.patch_projector(patches)
        return model.projector(features), patches, features

    def student(
        self, params: Any, batch: Batch, key: jax.Array | None
    ) -> tuple[Float[Array, "B S K"], Float[Array, "M P K"] | None]:
        """Returns the logits of all crops, global ones first, and of some masked patches."""
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        model, size, patches = self.model(params), len(batch["image"]), None
        features, encoded = model.encode_masked(
            global_views(batch), batch.get("masked"), key=keys[0]
        )
        logits = model.projector(features).reshape(size, 2, -1)
        if self.section.ibot_weight:
            places, _ = masked_places(batch)
            patches = model.patch_projector(take_patches(encoded[:, model.num_prefix :], places))
        if self.section.local_crops:
            resampled = resample_positions(params, self.abstract.grid, self.local_grid)
            local = nnx.merge(nnx.graphdef(self.abstract_local), resampled)
            images = batch["local_images"]
            images = constrain(images.reshape(-1, *images.shape[2:]), "batch")
            more = local.projector(local(images, key=keys[1]))
            more = more.reshape(size, self.section.local_crops, -1)
            logits = jnp.concatenate([logits, more], axis=1)
        return logits, patches

    def embed(
        self, params: Any, batch: Batch, key: jax.Array, teacher: TeacherState
    ) -> dict[str, Float[Array, "B ..."]]:
        """Returns what the loss of a batch compares, for each image."""
        seen, seen_patches, features = self.teacher_outputs(teacher.params, batch)
        logits, patches = self.student(params, batch, key)
        by_crop = {"seen": seen, "features": features}
        if seen_patches is not None and patches is not None:
            places, is_masked = masked_places(batch)
            if self.section.centring == "mean":
                by_crop[_PATCH_CENTRE] = seen_patches.mean(1)
                seen_patches = take_patches(seen_patches, places)
            by_crop |= {"seen_patches": seen_patches, "patches": patches}
            by_crop["masked"] = is_masked.astype(jnp.float32)
        size = len(batch["image"])
        pairs = {name: x.reshape(size, 2, *x.shape[1:]) for name, x in by_crop.items()}
        return {"logits": logits, **pairs}

    def compare(
        self, params: Any, outputs: dict[str, Float[Array, "B ..."]], teacher: TeacherState
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the mean loss of a batch, and more metrics to log."""
        del params
        section = self.section
        temperature = jnp.asarray(self.temperature_fn(teacher.step), jnp.float32)
        of_crops = {n: x.reshape(-1, *x.shape[2:]) for n, x in outputs.items() if n != "logits"}
        logits, seen = outputs["logits"], jax.lax.stop_gradient(of_crops["seen"])
        if section.centring == "mean":
            targets = centred_targets(seen, teacher.extra[_CENTRE], temperature)
        else:
            targets = sinkhorn_targets(seen, temperature)
        pairs = targets.reshape(len(logits), 2, -1)
        loss = view_losses(pairs, logits, _STUDENT_TEMPERATURE).mean()
        metrics = {
            METRIC: feature_std(of_crops["features"]),
            "teacher_entropy": entropy(targets),
            "teacher_temperature": temperature,
            _CENTRE: seen.mean(0),
        }
        if "patches" in of_crops:
            patches, masked = of_crops["patches"], of_crops["masked"] > 0
            seen_patches = jax.lax.stop_gradient(of_crops["seen_patches"])
            if section.centring == "mean":
                metrics[_PATCH_CENTRE] = of_crops[_PATCH_CENTRE].mean(0)
                patch_targets = centred_targets(
                    seen_patches, teacher.extra[_PATCH_CENTRE], temperature
                )
            else:
                flat = seen_patches.reshape(-1, seen_patches.shape[-1])
                patch_targets = sinkhorn_targets(flat, temperature, masked.reshape(-1))
                patch_targets = patch_targets.reshape(seen_patches.shape)
            patch_loss = patch_losses(patch_targets, patches, masked, _STUDENT_TEMPERATURE).mean()
            metrics |= {"view_loss": loss, "patch_loss": patch_loss}
            loss = loss + section.ibot_weight * patch_loss
        return loss, metrics

    @property
    def batch_loss(self) -> BatchLoss:
        # With a centre, the mean over microbatches is that of the batch: one pass does.
        is_mean = self.section.centring == "mean"
        return self.loss if is_mean else ComparingLoss(self.embed, self.compare)

    def loss(
        self, params: Any, batch: Batch, key: jax.Array, teacher: TeacherState
    ) -> tuple[Float[Array, ""], Metrics]:
        return self.compare(params, self.embed(params, batch, key, teacher), teacher)

    def eval_step(self, params: Any, batch: Batch) -> dict[str, Any]:
        features, mask = self.model(params)(to_unit_range(batch["image"])), batch["mask"]
        return {METRIC: direction_sums(features, mask), "examples": jnp.sum(mask)}

    def totals(self, class_names: Sequence[str]) -> MetricTotals:
        del class_names
        return MetricTotals({METRIC: FeatureStd()})


def _check_local_size(config: Config) -> None:
    section = config.task
    assert isinstance(section, DinoConfig)
    stride = vit_shape(config.model).stride  # pyright: ignore[reportArgumentType]
    if section.local_crops and section.local_size % stride:
        raise ConfigError(
            f"is {section.local_size} with patches of {stride} pixels",
            f"a multiple of {stride}",
            f"e.g. {max(section.local_size // stride, 1) * stride}",
            key="task.local_size",
        )


def global_views(batch: Batch) -> Float[Array, "M H W 3"]:
    """Returns the global crops as one batch; row 2 b + v is crop v of image b.

    In this order no row moves to another device.
    """
    views = jnp.stack([batch[name] for name in GLOBAL_CROPS], axis=1)
    return constrain(views.reshape(-1, *views.shape[2:]), "batch")


def masked_places(batch: Batch) -> tuple[Int[Array, "M P"], Bool[Array, "M P"]]:
    """Returns as many patches of each global crop as can be masked, and which of them are.

    The number is the same for all crops, because shapes are fixed: masked patches come first.
    """
    masked = batch["masked"].reshape(-1, batch["masked"].shape[-1])
    count = most_masked(masked.shape[1])
    places = jnp.argsort(~masked, axis=1, stable=True)[:, :count]
    return places, jnp.take_along_axis(masked, places, axis=1)


def teacher_temperature(config: Config, data: DataInfo) -> optax.Schedule:
    """Returns step -> temperature of the teacher: linear during the warmup, then constant.

    Source: the authors' code, `DINOLoss.teacher_temp_schedule`, for a warmup in epochs.
    """
    section = config.task
    assert isinstance(section, DinoConfig)
    first, last = _FIRST_TEACHER_TEMPERATURE, section.teacher_temperature
    if section.temperature_warmup_steps:
        return optax.linear_schedule(first, last, section.temperature_warmup_steps)
    steps_per_epoch = max(data.num_examples // config.data.global_batch_size, 1)
    epochs = math.ceil(section.temperature_warmup_epochs or 0)
    of_epochs = np.append(np.linspace(first, last, epochs), last).astype(np.float32)

    def temperature_fn(step: jax.typing.ArrayLike) -> Float[Array, ""]:
        epoch = jnp.asarray(step) // steps_per_epoch
        return jnp.asarray(of_epochs)[jnp.minimum(epoch, epochs)]

    return temperature_fn


def make_teacher(section: DinoConfig, total_steps: int) -> Teacher:
    """Returns the teacher: its momentum, and the centres of its outputs."""
    # It rises from a negative number to 0.
    rise = optax.cosine_decay_schedule(section.momentum - 1, total_steps)
    has_patches = section.ibot_weight > 0 and section.centring == "mean"
    names = [_CENTRE] + [_PATCH_CENTRE] * has_patches

    def init() -> dict[str, Float[Array, " K"]] | None:
        if section.centring != "mean":
            return None
        return {name: jnp.zeros(section.prototypes) for name in names}

    def update(extra: Any, metrics: Metrics) -> tuple[Any, Metrics]:
        means = {name: metrics[name] for name in names}
        logged = {name: value for name, value in metrics.items() if name not in means}
        if extra is None:
            return None, logged
        return optax.incremental_update(means, extra, 1 - _CENTRE_MOMENTUM), logged

    return Teacher(decay=lambda step: 1 + rise(step), init=init, update=update)
