"""Config section for loading the weights of `init_from` into the model of a run."""

from typing import Literal

from vit_jax.schema import Section, check_patterns, option

TRAINING_OPTIONS = frozenset(
    {
        "dropout",
        "stochastic_depth",
        "stochastic_depth_rates",
        "dtype",
        "remat",
        "scan",
        "attention_implementation",
        "head_bias_init",
    }
)
"""Model options for training and execution, which are not part of the architecture."""


class InitConfig(Section):
    """How weights from a file or another run are adapted to the model."""

    keep_head: bool = option(False)
    """False: the whole head is replaced by a zero-initialised linear layer (arXiv:2010.11929,
    section 3.2). True: the head is loaded too, and its number of classes must match.
    """
    position_resize: Literal["zoom", "bilinear", "bicubic"] = option("zoom")
    """How position embeddings are resampled to another resolution, see `interop.resize`."""
    grid: tuple[int, int] | None = option(None)
    """Rows and columns of the stored position embedding; None: as in the file, else a square."""
    normalization: Literal["half", "imagenet"] | None = option(None)
    """Image mean and standard deviation that the weights were trained with: 0.5 and 0.5, or
    ImageNet's; None: as in the config.json beside the weights, else 0.5.
    """
    allow_missing: tuple[str, ...] = option(())
    """Parameters that may be missing in the file, as regular expressions over whole names. They are
    initialised as in a new model.
    """
    allow_unexpected: tuple[str, ...] = option(())
    """Tensors in the file that may be left unused, as regular expressions over whole names."""

    def check(self) -> None:
        check_patterns(self.allow_missing, "allow_missing")
        check_patterns(self.allow_unexpected, "allow_unexpected")
