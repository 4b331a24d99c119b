"""Config section of how the weights that `init_from` names are adapted to the run's model."""

from typing import Literal

from vit_jax.schema import Section, check_patterns, option

OF_THE_RUN = frozenset(
    {
        "dropout",
        "stochastic_depth",
        "dtype",
        "remat",
        "scan",
        "attention_implementation",
        "head_bias_init",
    }
)
"""Model options that choose how a model is trained and run rather than its architecture."""


class InitConfig(Section):
    """How weights that were published, or come from another run, are adapted to the model."""

    keep_head: bool = option(False)
    """False: the whole head is replaced by a zero-initialised linear layer (arXiv:2010.11929,
    section 3.2). True: the head is loaded too, and its number of classes must match.
    """
    position_resize: Literal["zoom", "bilinear", "bicubic"] = option("zoom")
    """How position embeddings are resampled to another resolution, see `interop.resize`."""
    grid: tuple[int, int] | None = option(None)
    """Rows and columns of the stored position embedding; None: as the file says, else a square."""
    normalization: Literal["half", "imagenet"] | None = option(None)
    """Image mean and standard deviation that the weights were trained with: 0.5 and 0.5, or
    ImageNet's; None: as the config.json beside the weights says, else 0.5.
    """
    allow_missing: tuple[str, ...] = option(())
    """Parameters that the file may lack, as regular expressions over whole names; they are
    initialised as in a new model.
    """
    allow_unexpected: tuple[str, ...] = option(())
    """Tensors of the file that may stay unused, as regular expressions over whole names."""

    def check(self) -> None:
        check_patterns(self.allow_missing, "allow_missing")
        check_patterns(self.allow_unexpected, "allow_unexpected")
