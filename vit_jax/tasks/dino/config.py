"""Config section of self-distillation without labels, and options that it does not support."""

from typing import Literal

from vit_jax.config.run import Config
from vit_jax.config.task import TASKS, TaskName, UnlabelledConfig, check_values
from vit_jax.data.crops.inception import Inception
from vit_jax.errors import ConfigError
from vit_jax.schema import check_at_most_one, option


@TASKS.register
class DinoConfig(UnlabelledConfig):
    """Self-distillation: a student predicts what its own moving average says of other crops.

    Source: arXiv:2104.14294; the iBOT term: arXiv:2111.07832, as in arXiv:2304.07193.
    """

    name: TaskName = option("dino")
    """Self-distillation: the model learns what its own average says of other crops."""
    local_crops: int = option(8, at_least=0)
    """Small crops of each image, which only the student sees, beside the two global crops."""
    local_size: int = option(96, at_least=1)
    """Height and width of local crops in pixels; those of global crops are `data.image_size`."""
    global_min_area: float = option(0.4, above=0, at_most=1)
    """Smallest area of a global crop, as a fraction of the image's; the largest is the image."""
    local_min_area: float = option(0.05, above=0, at_most=1)
    """Smallest area of a local crop, as a fraction of the image's."""
    local_max_area: float = option(0.4, above=0, at_most=1)
    """Largest area of a local crop."""
    distort: bool = option(True)
    """Colour jitter, grayscale, blur and solarisation of the crops, on the device."""

    prototypes: int = option(65_536, at_least=2)
    """K, number of outputs of the projection head."""
    head_width: int = option(2048, at_least=1)
    """Features of the two hidden layers of the head."""
    bottleneck: int = option(256, at_least=1)
    """Features of the last layer before the prototypes; they are scaled to length 1."""
    prototype_scale: bool = option(False)
    """Learn the length of each prototype; False: it is 1, which is more stable."""

    teacher_temperature: float = option(0.04, above=0)
    """Divides the teacher's outputs before the softmax; the student's are divided by 0.1."""
    temperature_warmup_steps: int | None = option(None, at_least=1)
    """Length of the warmup of `teacher_temperature` from 0.04; it changes at every step. None: no
    warmup.
    """
    temperature_warmup_epochs: float | None = option(None, above=0)
    """The same in epochs, rounded up. The temperature is constant within an epoch, as in the
    authors' code.
    """
    momentum: float = option(0.996, at_least=0, below=1)
    """Share of the teacher that the first step keeps. It rises to 1 along half a cosine."""
    centring: Literal["mean", "sinkhorn"] = option("mean")
    """What keeps the teacher from giving all images the same output. mean: subtract the moving
    average of its outputs; sinkhorn: make the batch use all prototypes equally (arXiv:2006.09882).
    """
    ibot_weight: float = option(0.0, at_least=0)
    """Weight of the iBOT term: the student, for whom patches of the global crops are masked,
    predicts what the teacher says of these patches. 0: off.
    """

    stages = ("uint8", "device")  # On the host there are the crops only.
    own_parameters = ("(patch_)?projector/.*", "mask_token")
    keeps_average = True

    def check(self) -> None:
        check_at_most_one(self, "temperature_warmup_steps", "temperature_warmup_epochs")
        if self.local_min_area > self.local_max_area:
            raise ConfigError(
                f"is {self.local_min_area:g} and 'local_max_area' {self.local_max_area:g}",
                "local_min_area <= local_max_area",
                "swap them",
                key="local_min_area",
            )

    def check_run(self, config: Config) -> None:
        super().check_run(config)
        check_values(config, {"model.position_placement": ("stem",)}, "task dino")
        crop = config.data.augment.crop
        if not isinstance(crop, Inception) or crop.replace(flavour="paper") != Inception():
            raise ConfigError(
                f"is {crop.to_mapping()} with task dino, which has its own crops",
                "only its flavour",
                "set data.augment.crop.flavour, and task.global_min_area and its like",
                key="data.augment.crop",
            )
        side = config.data.image_size
        if self.local_crops and self.local_size > side:
            raise ConfigError(
                f"is {self.local_size}, larger than the global crops of {side} pixels",
                f"at most data.image_size = {side}",
                f"e.g. {max(side * 3 // 7, 1)}, as 96 for 224",
                key="task.local_size",
            )
        if self.local_crops and self.local_size != side:
            resampled = ("learned_1d", "learned_2d", "rope_2d", "none")
            reason = "local crops of another size, for which positions are resampled"
            check_values(config, {"model.position_embedding": resampled}, reason)
        reason = "task dino, whose teacher is the average of the parameters"
        check_values(config, {"ema_decay": (None,)}, reason)
        if config.optimizer.averages_parameters:
            raise ConfigError(
                f"is {config.optimizer.name!r} with {reason}",
                "an optimizer that does not average them itself",
                "use another; the momentum of the teacher is task.momentum",
                key="optimizer.name",
            )
