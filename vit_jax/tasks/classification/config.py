"""Config section of classification."""

from vit_jax.config.run import Config
from vit_jax.config.task import LabelledConfig


class ClassificationConfig(LabelledConfig):
    """Classification has no keys of its own; see `loss`."""

    def class_counts_key(self, config: Config) -> str | None:
        return None if config.label_loss.class_weights == "none" else "loss.class_weights"
