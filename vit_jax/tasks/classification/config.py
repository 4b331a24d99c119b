"""Config section of classification."""

from vit_jax.config.run import Config
from vit_jax.config.task import TASKS, LabelledConfig
from vit_jax.data.augment import Operation


@TASKS.register
class ClassificationConfig(LabelledConfig):
    """Classification has no keys of its own; see `loss`."""

    def why_not(self, name: str, operation: Operation, config: Config) -> str | None:
        # Sequences of patches are flipped on the host, before they are cut.
        if config.data.sequence_length is not None and name != "flip" and operation.stage != "host":
            return "data.sequence_length, whose batches are sequences of patches"
        return super().why_not(name, operation, config)

    def class_counts_key(self, config: Config) -> str | None:
        return None if config.label_loss.class_weights == "none" else "loss.class_weights"
