"""Config section of distillation, and options that it does not support."""

from collections.abc import Mapping
from typing import Any, Literal

from vit_jax.config.run import Config
from vit_jax.config.task import TASKS, LabelledConfig, TaskName, check_values
from vit_jax.data.augment import Operation
from vit_jax.errors import ConfigError
from vit_jax.schema import option


@TASKS.register
class DistillationConfig(LabelledConfig):
    """Distillation: minimises (1 - alpha) * label loss + alpha * teacher loss."""

    name: TaskName = option("distillation")
    """Distillation: the model learns from labels and from a teacher."""
    teacher: str | None = option(None)
    """Weights of the teacher: any path that `load_pretrained` reads. It sees the same augmented
    and mixed images as the student (arXiv:2106.05237).
    """
    teacher_image_size: int | None = option(None, at_least=1)
    """Side of the teacher's training images: the student's crop, resized from the original image to
    this size. None: the student's pixels, resized if the teacher's image size differs.
    """
    targets: Literal["soft", "hard"] = option("soft")
    """soft: temperature^2 * KL(teacher || student) of softened softmaxes (arXiv:1503.02531);
    hard: cross-entropy with the teacher's most likely class (arXiv:2012.12877).
    """
    mean_over_classes: bool = option(False)
    """Divides the loss of soft targets by the number of classes, as DeiT's code does."""
    temperature: float = option(1.0, above=0)
    """Divides the logits of both models before the softmax of soft targets."""
    alpha: float = option(0.5, at_least=0, at_most=1)
    """Weight of the teacher loss; 1: labels are not used."""
    token: bool = option(False)
    """Adds a distillation token with its own head, which learns from the teacher, while the usual
    head learns from the labels (arXiv:2012.12877). The token is a register of the model, its head
    the option `register_head`: the model's logits are the mean of both heads' logits.
    """

    read_by = dict.fromkeys(("temperature", "mean_over_classes"), ("targets", ("soft",)))
    accuracies = (*LabelledConfig.accuracies, "teacher_agreement")

    def check_run(self, config: Config) -> None:
        super().check_run(config)
        if self.teacher is None:
            raise ConfigError(
                "is not set with task distillation",
                "the weights of a teacher, a file or run folder with the classes of the data",
                "add --config.task.teacher=PATH",
                key="task.teacher",
            )
        check_values(config, {"loss.class_weights": ("none",)}, "task distillation")
        crop = config.data.augment.crop
        if self.teacher_image_size is not None and not crop.same_at_any_size:
            raise ConfigError(
                f"is {crop.name!r} with task.teacher_image_size",
                "inception, random_square, squash_random, central or resize",
                "choose one, or leave out task.teacher_image_size",
                key="data.augment.crop.name",
            )

    def why_not(self, name: str, operation: Operation, config: Config) -> str | None:
        if self.teacher_image_size is not None and not operation.same_at_any_size:
            return "task.teacher_image_size: it would change the teacher's image in another way"
        return super().why_not(name, operation, config)

    @classmethod
    def model_section(cls, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Adds the distillation token and its head to the model section."""
        model = config["model"]
        if config["task"]["token"]:
            model = {**model, **token_options(model)}
        return model


def token_options(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model options of a distillation token: one more register, with a head.

    If the model section already has a register head, the token is that register.
    """
    has_token = model.get("register_head", False)
    return {"num_registers": model.get("num_registers", 0) + (not has_token), "register_head": True}
