"""The task of DINO: a student predicts what its own moving average says of other crops.

The teacher is the moving average of the training state, so checkpoints have it, and evaluation and
fine-tuning use it.

Source: arXiv:2104.14294; the iBOT term: arXiv:2304.07193, section 4.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Num

from vit_jax.config.run import Config
from vit_jax.data.device import Batch, flip, to_unit_range
from vit_jax.data.distortion import distort
from vit_jax.errors import ConfigError
from vit_jax.evaluation.loop import EvalStep
from vit_jax.models.activation_sharding import constrain
from vit_jax.models.flops import traced_macs, training_flops
from vit_jax.models.patches import take_patches
from vit_jax.models.vit_family import vit_shape
from vit_jax.models.vit_options import ViTConfig
from vit_jax.rng import stream
from vit_jax.tasks.classification.task import labelled_images
from vit_jax.tasks.collapse import METRIC, DirectionTotals, direction_sums, feature_std
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
from vit_jax.tasks.task import (
    BatchLoss,
    ComparingLoss,
    DataInfo,
    Metrics,
    Prepare,
    Task,
    Teacher,
    TeacherState,
)

# Probabilities of blur and solarisation. Source: arXiv:2104.14294, section 3.2 and its code.
_DISTORTIONS = {"image": (1.0, 0.0), "second_image": (0.1, 0.2), "local_images": (0.5, 0.0)}
_CENTRE, _PATCH_CENTRE = "centre", "patch_centre"
# As in the authors' code: what divides the student's outputs, the teacher's temperature before its
# warmup, and the share of the centre that a step keeps.
_STUDENT_TEMPERATURE, _FIRST_TEACHER_TEMPERATURE, _CENTRE_MOMENTUM = 0.1, 0.04, 0.9


def build_task(config: Config, data: DataInfo, *, platform: str) -> Task:
    """Returns the task. Labels of the data are not used."""
    networks = Networks.build(config, platform=platform)
    passes = 2 + config.dino.local_crops * networks.local_tokens / networks.tokens
    _, eval_preprocessing = labelled_images(config, data.num_classes)
    return Task(
        build=functools.partial(_build_model, config, platform=platform),
        graphdef=networks.graphdef,
        num_outputs=0,
        flops_per_image=_flops(config),
        train_preprocessing=crop_preprocessing(config, networks.grid),
        eval_preprocessing=eval_preprocessing,
        prepare=make_prepare(config),
        batch_loss=make_batch_loss(config, data, networks),
        splits_exactly=config.dino.centring == "mean" and not config.model.draws_random_numbers,
        eval_step=make_eval_step(networks.graphdef),
        make_totals=lambda class_names: DirectionTotals(),
        teacher=make_teacher(config.dino, data.total_steps),
        activations=passes,
    )


def _build_model(config: Config, key: jax.Array, *, platform: str, local: bool = False) -> Any:
    return SelfDistilled(
        config.model,  # pyright: ignore[reportArgumentType]
        config.dino,
        image_size=config.dino.local_size if local else config.data.image_size,
        platform=platform,
        rngs=nnx.Rngs(params=key),
    )


@dataclasses.dataclass(frozen=True)
class Networks:
    """The model at both sizes of crops, without its parameters."""

    section: DinoConfig
    graphdef: nnx.GraphDef  # for global crops
    local_graphdef: nnx.GraphDef  # for local crops; the same if there are none
    grid: tuple[int, int]  # rows and columns of patches of a global crop
    local_grid: tuple[int, int]  # the same of a local crop
    tokens: int  # of a global crop, class token and registers included
    local_tokens: int

    @classmethod
    def build(cls, config: Config, *, platform: str) -> "Networks":
        section, stride = config.dino, vit_shape(config.model).stride  # pyright: ignore[reportArgumentType]
        has_local = section.local_crops > 0
        if has_local and section.local_size % stride:
            raise ConfigError(
                f"is {section.local_size} with patches of {stride} pixels",
                f"a multiple of {stride}",
                f"e.g. {max(section.local_size // stride, 1) * stride}",
                key="dino.local_size",
            )
        whole, small = (
            nnx.eval_shape(
                functools.partial(_build_model, config, platform=platform, local=local),
                jax.random.key(0),
            )
            for local in (False, has_local)
        )
        return cls(
            section,
            nnx.graphdef(whole),
            nnx.graphdef(small),
            whole.grid,
            small.grid,
            whole.tokens,
            small.tokens,
        )

    def teacher(
        self, params: Any, images: Float[Array, "M H W 3"], places: Int[Array, "M P"] | None
    ) -> tuple[Float[Array, "M K"], Float[Array, "M P K"] | None, Float[Array, "M D"]]:
        """Returns the logits of global crops, of some of their patches, and the pooled features.

        The crops have no masks. Logits are computed for the patches at `places`; None: for all.
        Without an iBOT term there are no logits of patches.
        """
        model = nnx.merge(self.graphdef, params)
        features, found = model(images, return_intermediates=("encoded",))
        patches = None
        if self.section.ibot_weight:
            patches = found["encoded"][:, model.num_prefix :]
            patches = patches if places is None else take_patches(patches, places)
            patches = model.patch_projector(patches)
        return model.projector(features), patches, features

    def student(
        self, params: Any, batch: Batch, places: Int[Array, "M P"] | None, key: jax.Array | None
    ) -> tuple[Float[Array, "B S K"], Float[Array, "M P K"] | None]:
        """Returns the logits of all crops, global ones first, and of some masked patches."""
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        model = nnx.merge(self.graphdef, params)

        masked = None if places is None else batch["masked"]
        features, encoded = model.encode_masked(global_views(batch), masked, key=keys[0])
        size = len(batch["image"])
        logits = model.projector(features).reshape(size, 2, -1)
        patches = None
        if places is not None:
            chosen = take_patches(encoded[:, model.num_prefix :], places)
            patches = model.patch_projector(chosen)
        if self.section.local_crops:
            local = nnx.merge(
                self.local_graphdef, resample_positions(params, self.grid, self.local_grid)
            )
            images = batch["local_images"]
            images = constrain(images.reshape(-1, *images.shape[2:]), "batch")
            features = local(images, key=keys[1])
            more = local.projector(features).reshape(size, self.section.local_crops, -1)
            logits = jnp.concatenate([logits, more], axis=1)
        return logits, patches


def global_views(batch: Batch) -> Float[Array, "M H W 3"]:
    """Returns the global crops as one batch; row 2 b + v is crop v of image b.

    In this order no row moves to another device.
    """
    views = jnp.stack([batch[name] for name in GLOBAL_CROPS], axis=1)
    return constrain(views.reshape(-1, *views.shape[2:]), "batch")


def make_prepare(config: Config) -> Prepare:
    """Returns prepare_fn(batch, step): scale u8 crops to [-1, 1], flip and distort each of them.

    The random draws depend on (seed, step).
    """
    size = config.data.image_size

    def prepare_crops(images: Num[Array, "B *K H W 3"], name: str, step: jax.Array) -> jax.Array:
        x = images.reshape(-1, *images.shape[-3:])
        if config.data.augment.flip:
            x = flip(x, stream(config.seed, f"flip {name}", step))
        x = to_unit_range(x)
        if config.dino.distort:
            blur, solarize = _DISTORTIONS[name]
            key = stream(config.seed, f"distort {name}", step)
            x = distort(x, key, blur=blur, solarize=solarize, image_size=size)
        return constrain(x.reshape(images.shape), "batch")

    def prepare_fn(batch: Batch, step: jax.Array) -> Batch:
        crops = {n: prepare_crops(batch[n], n, step) for n in _DISTORTIONS if n in batch}
        return crops | ({"masked": batch["masked"]} if "masked" in batch else {})

    return prepare_fn


def make_batch_loss(config: Config, data: DataInfo, networks: Networks) -> BatchLoss:
    """Returns batch_loss_fn(params, batch, key, teacher), the mean loss over all images.

    Sinkhorn's targets depend on all images of a batch, so its loss is a `ComparingLoss`.
    """
    section: DinoConfig = config.dino
    temperature_fn = teacher_temperature(config, data)

    def embed(
        params: Any, batch: Batch, key: jax.Array, teacher: TeacherState
    ) -> dict[str, Float[Array, "B ..."]]:
        places, counted = masked_places(section, batch)
        seen, seen_patches, features = networks.teacher(
            teacher.params, global_views(batch), teacher_places(section, places)
        )
        logits, patches = networks.student(params, batch, places, key)
        by_crop = {"seen": seen, "features": features}
        if not (seen_patches is None or patches is None or places is None or counted is None):
            if section.centring == "mean":
                by_crop[_PATCH_CENTRE] = seen_patches.mean(1)
                seen_patches = take_patches(seen_patches, places)
            by_crop |= {"seen_patches": seen_patches, "patches": patches}
            by_crop["masked"] = counted.astype(jnp.float32)
        size = len(batch["image"])
        pairs = {name: x.reshape(size, 2, *x.shape[1:]) for name, x in by_crop.items()}
        return {"logits": logits, **pairs}

    def compare(
        params: Any, outputs: dict[str, Float[Array, "B ..."]], teacher: TeacherState
    ) -> tuple[Float[Array, ""], Metrics]:
        del params
        temperature = jnp.asarray(temperature_fn(teacher.step), jnp.float32)
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

    loss_fn = ComparingLoss(embed, compare)
    # With a centre, the mean over microbatches is that of the batch: one pass does.
    return loss_fn if section.centring == "sinkhorn" else loss_fn.__call__


def masked_places(
    section: DinoConfig, batch: Batch
) -> tuple[Int[Array, "M P"], Bool[Array, "M P"]] | tuple[None, None]:
    """Returns as many patches of each global crop as can be masked, and which of them are.

    The number is the same for all crops, because shapes are fixed: masked patches come first.
    """
    if not section.ibot_weight:
        return None, None
    masked = batch["masked"].reshape(-1, batch["masked"].shape[-1])
    count = most_masked(masked.shape[1])
    places = jnp.argsort(~masked, axis=1, stable=True)[:, :count]
    return places, jnp.take_along_axis(masked, places, axis=1)


def teacher_places(
    section: DinoConfig, places: Int[Array, "M P"] | None
) -> Int[Array, "M P"] | None:
    """Returns the patches that the teacher's head computes; None: all (arXiv:2111.07832's code)."""
    return None if section.centring == "mean" else places


def teacher_temperature(config: Config, data: DataInfo) -> optax.Schedule:
    """Returns step -> temperature of the teacher: linear during the warmup, then constant.

    Source: the authors' code, `DINOLoss.teacher_temp_schedule`, for a warmup in epochs.
    """
    section: DinoConfig = config.dino
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


def make_eval_step(graphdef: nnx.GraphDef) -> EvalStep:
    """Returns eval_step_fn(params, batch) -> sums for `DirectionTotals`."""

    def eval_step_fn(params: Any, batch: Batch) -> dict[str, jax.Array]:
        model: Any = nnx.merge(graphdef, params)
        return direction_sums(model(to_unit_range(batch["image"])), batch["mask"])

    return eval_step_fn


def _flops(config: Config) -> int:
    """Returns the model FLOPs of training on one image: student and teacher."""
    assert isinstance(config.model, ViTConfig)
    options = config.model.on_any_platform().replace(scan=True, remat="none")
    config = config.replace(model=options)
    section, networks = config.dino, Networks.build(config, platform="cpu")
    params = nnx.to_pure_dict(
        nnx.state(
            nnx.eval_shape(
                functools.partial(_build_model, config, platform="cpu"), jax.random.key(0)
            )
        )
    )
    shapes = crop_preprocessing(config, networks.grid).arrays
    batch = {
        name: jax.ShapeDtypeStruct((1, *a.shape), a.dtype if name == "masked" else jnp.float32)
        for name, a in shapes.items()
    }

    def student(params: Any, batch: Batch) -> Any:
        return networks.student(params, batch, masked_places(section, batch)[0], None)

    def teacher(params: Any, batch: Batch) -> Any:
        places = teacher_places(section, masked_places(section, batch)[0])
        return networks.teacher(params, global_views(batch), places)

    macs = traced_macs(student, params, batch)
    return training_flops(macs) + 2 * traced_macs(teacher, params, batch)
