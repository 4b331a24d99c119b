"""Config of `python -m vit_jax synthetic`: tasks whose data are made, to compare layers on."""

import math
from typing import Literal

from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option, section

TaskName = Literal["convolution", "association", "double_if"]
ModelName = Literal["attention", "cnn", "dilated_cnn", "constructed"]


class ConvolutionConfig(Section):
    """A random convolution to be learned by one layer of attention with a bias for each offset."""

    grid: tuple[int, int] | None = option(None)
    """Rows and columns of tokens on a torus; None: a ring."""
    features: int = option(8, at_least=1)
    """Of a token, in and out."""
    taps: int = option(5, at_least=1)
    """Offsets that the kernel has, drawn among those of at most `span` along each axis."""
    span: int = option(2, at_least=0)
    heads: int = option(5, at_least=1)
    rank: int | None = option(None, at_least=1)
    """Of the matrix of a tap, and features of a head; None: as many as a token has. With fewer,
    no head can mix taps, and each has to find its own.
    """
    content: bool = option(False)
    """Whether queries and keys take part beside the bias."""


class AssociationConfig(Section):
    """Mark the tokens that equal U times the first one."""

    features: int = option(8, at_least=2)
    """Of a token; U is a random orthogonal matrix of this size."""


class DoubleIfConfig(Section):
    """Count the tokens b if the first one is a, the tokens d if it is c."""

    most: int = option(4, at_least=1)


class NetworkConfig(Section):
    """Shape of the models that learn association and double_if; equal shape is equal size."""

    layers: int = option(2, at_least=1)
    width: int = option(32, at_least=1)
    heads: int = option(4, at_least=1)
    mlp_dim: int = option(64, at_least=1)
    kernel_size: int = option(3, at_least=1)
    """Tokens that a convolution of the CNN sees. 3: its weights are as many as those of
    attention.
    """

    def check(self) -> None:
        if self.width % self.heads:
            raise ConfigError(
                f"is {self.heads}",
                f"a divisor of the width {self.width}",
                "change one",
                key="heads",
            )
        if self.kernel_size % 2 == 0:
            raise ConfigError(
                f"is {self.kernel_size}",
                "an odd number, centred on a token",
                "change it",
                key="kernel_size",
            )


class SyntheticTrainingConfig(Section):
    """Adam with warmup and cosine decay to 0, on examples that are made anew for each step."""

    steps: int = option(1000, at_least=1)
    batch_size: int = option(128, at_least=1)
    learning_rate: float = option(3e-3, above=0)
    warmup_steps: int = option(100, at_least=0)
    clip_global_norm: float = option(1.0, above=0)
    interval_steps: int = option(100, at_least=1, changes_result=False)
    """How often the loss is written; no other examples are made for it."""

    def check(self) -> None:
        if self.warmup_steps >= self.steps:
            raise ConfigError(
                f"is {self.warmup_steps}",
                f"fewer than the {self.steps} steps",
                "correct it",
                key="warmup_steps",
            )


class SyntheticConfig(Section):
    """One run of `python -m vit_jax synthetic`: the config.json of its folder."""

    command: Literal["synthetic"] = option("synthetic")
    task: TaskName = option()
    model: ModelName = option("attention")
    """constructed: attention with weights set by hand, that solve the task without training."""
    length: int = option(32, at_least=2)
    """Tokens of a sequence."""
    seed: int = option(0, at_least=0, below=2**32)
    """Of the task (kernel, U), of the examples and of the first weights."""
    test_examples: int = option(2048, at_least=1)
    """At each distance as many again."""
    convolution: ConvolutionConfig = section(ConvolutionConfig)
    association: AssociationConfig = section(AssociationConfig)
    double_if: DoubleIfConfig = section(DoubleIfConfig)
    network: NetworkConfig = section(NetworkConfig)
    training: SyntheticTrainingConfig = section(SyntheticTrainingConfig)

    def check(self) -> None:
        if self.task != "convolution":
            return
        if self.model in ("cnn", "dilated_cnn"):
            raise ConfigError(
                f"is {self.model!r}, and the task is a convolution itself",
                "attention or constructed",
                "change 'model'",
                key="model",
            )
        self._check_convolution(self.convolution)

    def _check_convolution(self, asked: ConvolutionConfig) -> None:
        grid = asked.grid or (1, self.length)
        if math.prod(grid) != self.length or min(grid) < 1:
            raise ConfigError(
                f"is {self.length}",
                f"the {math.prod(grid)} tokens of convolution.grid {grid}",
                "change one",
                key="length",
            )
        sides = [side for side in grid if side > 1]
        if any(2 * asked.span + 1 > side for side in sides):
            raise ConfigError(
                f"is {asked.span}",
                f"less than half of the shortest side, {min(sides)} tokens",
                "change one",
                key="convolution.span",
            )
        places = (2 * asked.span + 1) ** len(sides)
        if asked.taps > places:
            raise ConfigError(
                f"is {asked.taps}",
                f"at most the {places} offsets of convolution.span {asked.span}",
                "change one",
                key="convolution.taps",
            )
        if asked.rank is not None and asked.rank > asked.features:
            raise ConfigError(
                f"is {asked.rank}",
                f"at most the {asked.features} features of a token",
                "change it",
                key="convolution.rank",
            )
        if self.model == "constructed" and asked.heads < asked.taps:
            raise ConfigError(
                f"is {asked.heads}",
                f"a head for each of the {asked.taps} taps, to set weights by hand",
                "change it, or learn with model=attention",
                key="convolution.heads",
            )
