"""Config section of masked patch prediction."""

from vit_jax.config.task import TASKS, TaskName, UnlabelledConfig
from vit_jax.errors import ConfigError
from vit_jax.schema import option


@TASKS.register
class MaskedPatchesConfig(UnlabelledConfig):
    """Masked patch prediction: corrupt patch embeddings and predict the patches' mean colours.

    Source: arXiv:2010.11929, B.1.2.
    """

    name: TaskName = option("masked_patches")
    """Masked patch prediction: the model learns the mean colours of corrupted patches."""
    corrupt: float = option(0.5, above=0, at_most=1)
    """Fraction of an image's patches that are corrupted and predicted."""
    mask: float = option(0.8, at_least=0, at_most=1)
    """Fraction of the corrupted patches that are replaced by a learned embedding."""
    random: float = option(0.1, at_least=0, at_most=1)
    """Fraction of the corrupted patches that are replaced by another patch of the same image. The
    rest keep their own embedding.
    """
    bits: int = option(3, at_least=1, at_most=5)
    """Bits per colour channel; 3 gives 8 levels per channel and 8 * 8 * 8 colours."""

    stages = ("host", "uint8")  # It would predict what the others do to the colours.
    own_parameters = ("mask_token", "head/.*")  # The head predicts colours.

    @property
    def num_colours(self) -> int:
        """Number of colour classes."""
        return 2 ** (3 * self.bits)

    def check(self) -> None:
        if self.mask + self.random > 1 + 1e-9:
            raise ConfigError(
                f"is {self.mask:g} and 'random' {self.random:g}",
                "fractions of the corrupted patches with a sum of at most 1",
                "lower one; the rest of the corrupted patches keep their embedding",
                key="mask",
            )
