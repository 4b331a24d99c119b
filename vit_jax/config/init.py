"""The config section that says how a run takes over the parameters that `init_from` names."""

from typing import Literal

from vit_jax.schema import Section, check_patterns, option

AUTO = "auto"
"""`model.name` of a run whose architecture is that of the weights it starts from."""

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
"""Of a model section, how a model is trained and run. The rest says what it is."""


class InitConfig(Section):
    """How published weights, or those of another run, are made to fit."""

    keep_head: bool = option(False)
    """False: both layers of the head give way to one linear layer that starts at zero
    (arXiv:2010.11929, section 3.2); True: the head is taken too, its classes must fit.
    """
    position_resize: Literal["zoom", "bilinear", "bicubic"] = option("zoom")
    """How position tables are resampled to another resolution, see `interop.resample`."""
    grid: tuple[int, int] | None = option(None)
    """Rows and columns of patches that the file's position table is for; None: as stored, or
    square.
    """
    normalization: Literal["half", "imagenet"] | None = option(None)
    """Mean and deviation that the weights expect of images: 0.5 and 0.5, or ImageNet's; None:
    as the config.json beside the weights says, else 0.5.
    """
    allow_missing: tuple[str, ...] = option(())
    """Regular expressions over whole parameter names that the file may lack (they start as in a
    new model), and over names of tensors in it that may go unused.
    """
    allow_unexpected: tuple[str, ...] = option(())

    def check(self) -> None:
        check_patterns(self.allow_missing, "allow_missing")
        check_patterns(self.allow_unexpected, "allow_unexpected")
