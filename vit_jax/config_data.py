"""Config sections that say which examples are trained on: a subset of one dataset, a mixture."""

import dataclasses
from typing import Literal

from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option

SourceKind = Literal["tfds", "folder", "csv", "huggingface"]
LabelRule = Literal[
    "clevr_count",
    "clevr_distance",
    "dsprites_location",
    "dsprites_orientation",
    "kitti_distance",
]

# Points of data-size studies. Source: arXiv:2010.11929, section 4.3 (JFT: random subsets of 9M,
# 30M, 90M and the full 303M); the percentages for datasets of any size.
SUBSET_PRESETS: dict[str, tuple[str, float]] = {
    "1_percent": ("fraction", 0.01),
    "3_percent": ("fraction", 0.03),
    "10_percent": ("fraction", 0.1),
    "30_percent": ("fraction", 0.3),
    "100_percent": ("fraction", 1.0),
    "jft_9m": ("examples", 9_000_000),
    "jft_30m": ("examples", 30_000_000),
    "jft_90m": ("examples", 90_000_000),
    "jft_303m": ("examples", 303_000_000),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubsetConfig(Section):
    """A part of the training split: every class keeps its share, smaller parts lie inside larger.

    At most one of `preset`, `fraction`, `examples` and `per_class` is given; none: all examples.
    """

    # A row of SUBSET_PRESETS.
    preset: (
        Literal[
            "1_percent", "3_percent", "10_percent", "30_percent", "100_percent",
            "jft_9m", "jft_30m", "jft_90m", "jft_303m",
        ]
        | None
    ) = option(None)  # fmt: skip
    fraction: float | None = option(None, above=0, at_most=1)
    examples: int | None = option(None, at_least=1)
    # As many of every class.
    per_class: int | None = option(None, at_least=1)
    # Which examples: another seed, other ones.
    seed: int = option(0, at_least=0, below=2**32)
    # Hash of the manifest (subset.json of the run folder); a run fills it in.
    hash: str | None = option(None)

    def check(self) -> None:
        keys = ("preset", "fraction", "examples", "per_class")
        given = [key for key in keys if getattr(self, key) is not None]
        if len(given) > 1:
            raise ConfigError(
                f"{' and '.join(repr(k) for k in given)} given",
                f"at most one of {', '.join(keys)}",
                f"set {given[0]}=none",
            )

    @property
    def rule(self) -> tuple[str, float] | None:
        """What is taken: "fraction", "examples" or "per_class", and how much; None: everything."""
        if self.preset is not None:
            return SUBSET_PRESETS[self.preset]
        given = [(key, getattr(self, key)) for key in ("fraction", "examples", "per_class")]
        return next(((key, value) for key, value in given if value is not None), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemberConfig(Section):
    """One dataset of a mixture; the fields are those of `DataConfig`."""

    name: str = option()
    # Share of the examples drawn, relative to the other members'.
    weight: float = option(1.0, above=0)
    source: SourceKind = option("tfds")
    # None: as `data.data_dir`.
    data_dir: str | None = option(None, changes_result=False)
    # None: as `data.train_split`.
    train_split: str | None = option(None)
    image_key: str | None = option(None)
    label_key: str | None = option(None)
