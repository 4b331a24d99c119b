"""Config of `python -m vit_jax synthetic`: tasks whose data are made, to compare layers on."""

import dataclasses
import math
from typing import Literal

from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option, section

TaskName = Literal["convolution", "association", "double_if"]
ModelName = Literal["attention", "cnn", "dilated_cnn", "constructed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvolutionConfig(Section):
    """A random convolution to be learned by one layer of attention with a bias for each offset."""

    # Rows and columns of tokens on a torus; None: a ring.
    grid: tuple[int, int] | None = option(None)
    # Of a token, in and out.
    features: int = option(8, at_least=1)
    # Offsets that the kernel has, drawn among those of at most `span` along each axis.
    taps: int = option(5, at_least=1)
    span: int = option(2, at_least=0)
    heads: int = option(5, at_least=1)
    # Of the matrix of a tap, and features of a head; None: as many as a token has. With fewer, no
    # head can mix taps, and each has to find its own.
    rank: int | None = option(None, at_least=1)
    # Whether queries and keys take part beside the bias.
    content: bool = option(False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssociationConfig(Section):
    """Mark the tokens that equal U times the first one."""

    # Of a token; U is a random orthogonal matrix of this size.
    features: int = option(8, at_least=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoubleIfConfig(Section):
    """Count the tokens b if the first one is a, the tokens d if it is c."""

    most: int = option(4, at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig(Section):
    """Shape of the models that learn association and double_if; equal shape is equal size."""

    layers: int = option(2, at_least=1)
    width: int = option(32, at_least=1)
    heads: int = option(4, at_least=1)
    mlp_dim: int = option(64, at_least=1)
    # Tokens that a convolution of the CNN sees. 3: its weights are as many as those of attention.
    kernel_size: int = option(3, at_least=1)

    def check(self) -> None:
        if self.width % self.heads:
            raise ConfigError(
                f"'heads' is {self.heads}", f"a divisor of the width {self.width}", "change one"
            )
        if self.kernel_size % 2 == 0:
            raise ConfigError(
                f"'kernel_size' is {self.kernel_size}", "an odd number, centred on a token",
                "change it",
            )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticTrainingConfig(Section):
    """Adam with warmup and cosine decay to 0, on examples that are made anew for each step."""

    steps: int = option(1000, at_least=1)
    batch_size: int = option(128, at_least=1)
    learning_rate: float = option(3e-3, above=0)
    warmup_steps: int = option(100, at_least=0)
    clip_global_norm: float = option(1.0, above=0)
    # How often the loss is written; no other examples are made for it.
    interval_steps: int = option(100, at_least=1, changes_result=False)

    def check(self) -> None:
        if self.warmup_steps >= self.steps:
            raise ConfigError(
                f"'warmup_steps' is {self.warmup_steps}", f"fewer than the {self.steps} steps",
                "correct it",
            )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticConfig(Section):
    """One run of `python -m vit_jax synthetic`: the config.json of its folder."""

    command: Literal["synthetic"] = option("synthetic")
    task: TaskName = option()
    # constructed: attention with weights set by hand, that solve the task without training.
    model: ModelName = option("attention")
    # Tokens of a sequence.
    length: int = option(32, at_least=2)
    # Of the task (kernel, U), of the examples and of the first weights.
    seed: int = option(0, at_least=0, below=2**32)
    # At each distance as many again.
    test_examples: int = option(2048, at_least=1)
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
                f"'model' is {self.model!r}, and the task is a convolution itself",
                "attention or constructed", "change 'model'",
            )  # fmt: skip
        self._check_convolution(self.convolution)

    def _check_convolution(self, asked: ConvolutionConfig) -> None:
        grid = asked.grid or (1, self.length)
        if math.prod(grid) != self.length or min(grid) < 1:
            raise ConfigError(
                f"'length' is {self.length}",
                f"the {math.prod(grid)} tokens of convolution.grid {grid}", "change one",
            )  # fmt: skip
        sides = [side for side in grid if side > 1]
        if any(2 * asked.span + 1 > side for side in sides):
            raise ConfigError(
                f"'convolution.span' is {asked.span}",
                f"less than half of the shortest side, {min(sides)} tokens", "change one",
            )  # fmt: skip
        places = (2 * asked.span + 1) ** len(sides)
        if asked.taps > places:
            raise ConfigError(
                f"'convolution.taps' is {asked.taps}",
                f"at most the {places} offsets of convolution.span {asked.span}", "change one",
            )  # fmt: skip
        if asked.rank is not None and asked.rank > asked.features:
            raise ConfigError(
                f"'convolution.rank' is {asked.rank}",
                f"at most the {asked.features} features of a token", "change it",
            )  # fmt: skip
        if self.model == "constructed" and asked.heads < asked.taps:
            raise ConfigError(
                f"'convolution.heads' is {asked.heads}",
                f"a head for each of the {asked.taps} taps, to set weights by hand",
                "change it, or learn with model=attention",
            )  # fmt: skip
