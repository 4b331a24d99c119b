"""Config section of the masked autoencoder, and options that it does not support."""

from vit_jax.config.run import Config
from vit_jax.config.task import TASKS, TaskName, UnlabelledConfig, check_values
from vit_jax.errors import ConfigError
from vit_jax.schema import option


@TASKS.register
class MaeConfig(UnlabelledConfig):
    """Masked autoencoder: encode the visible patches, decode the pixels of the hidden ones.

    Source: arXiv:2111.06377; defaults from Table 1 and appendix A.1.
    """

    name: TaskName = option("mae")
    """Masked autoencoding: the model learns the pixels of hidden patches."""
    mask_ratio: float = option(0.75, above=0, below=1)
    """Fraction of an image's patches that are hidden. The encoder does not compute them."""
    normalize_pixels: bool = option(True)
    """Predict each patch's pixels minus their mean, divided by their standard deviation. With or
    without, images are normalised by ImageNet's mean and deviation first.
    """
    decoder_width: int = option(512, at_least=4)
    """Features of a token in the decoder; a multiple of 4, for its sin-cos positions."""
    decoder_depth: int = option(8, at_least=1)
    """Number of blocks of the decoder."""
    decoder_heads: int = option(16, at_least=1)
    """Number of attention heads of the decoder."""

    stages = ("host", "uint8")  # It would predict what the others do to the pixels.
    own_parameters = ("decoder/.*",)

    def check(self) -> None:
        if self.decoder_width % 4 or self.decoder_width % self.decoder_heads:
            raise ConfigError(
                f"is {self.decoder_width} with {self.decoder_heads} heads",
                "a multiple of 4 and of 'decoder_heads'",
                "change one of the two",
                key="decoder_width",
            )

    def check_run(self, config: Config) -> None:
        super().check_run(config)
        reason = "task mae, in which an encoder sees a part of the patches"
        others = ("learned_1d", "learned_2d", "sincos_2d", "sincos_2d_mae", "rope_2d", "none")
        allowed = {"model.position_placement": ("stem",), "model.position_embedding": others}
        check_values(config, allowed, reason)
