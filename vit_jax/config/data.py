"""Config sections of the data: what is trained on, how it is read and augmented."""

from typing import Literal

from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option, section

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


class SubsetConfig(Section):
    """A part of the training split: every class keeps its share, smaller parts lie inside larger.

    At most one of `preset`, `fraction`, `examples` and `per_class` is given; none: all examples.
    """

    preset: (
        Literal[
            "1_percent",
            "3_percent",
            "10_percent",
            "30_percent",
            "100_percent",
            "jft_9m",
            "jft_30m",
            "jft_90m",
            "jft_303m",
        ]
        | None
    ) = option(None)
    """A row of SUBSET_PRESETS."""
    fraction: float | None = option(None, above=0, at_most=1)
    examples: int | None = option(None, at_least=1)
    per_class: int | None = option(None, at_least=1)
    """As many of every class."""
    seed: int = option(0, at_least=0, below=2**32)
    """Which examples: another seed, other ones."""
    hash: str | None = option(None)
    """Hash of the manifest (subset.json of the run folder); a run fills it in."""

    def check(self) -> None:
        keys = ("preset", "fraction", "examples", "per_class")
        given = [key for key in keys if getattr(self, key) is not None]
        if len(given) > 1:
            also = " and ".join(map(repr, given[1:]))
            raise ConfigError(
                f"is given and so is {also}",
                f"at most one of {', '.join(keys)}",
                "keep one",
                key=given[0],
            )

    @property
    def rule(self) -> tuple[str, float] | None:
        """What is taken: "fraction", "examples" or "per_class", and how much; None: everything."""
        if self.preset is not None:
            return SUBSET_PRESETS[self.preset]
        given = [(key, getattr(self, key)) for key in ("fraction", "examples", "per_class")]
        return next(((key, value) for key, value in given if value is not None), None)


class MemberConfig(Section):
    """One dataset of a mixture; the fields are those of `DataConfig`."""

    name: str = option()
    weight: float = option(1.0, above=0)
    """Share of the examples drawn, relative to the other members'."""
    source: SourceKind = option("tfds")
    data_dir: str | None = option(None, changes_result=False)
    """None: as `data.data_dir`."""
    train_split: str | None = option(None)
    """None: as `data.train_split`."""
    image_key: str | None = option(None)
    label_key: str | None = option(None)


class AugmentConfig(Section):
    """What happens to one training image: on the host in this order, then on the device."""

    crop: Literal["inception", "random", "central", "pad", "resize"] = option("inception")
    """inception: random area and aspect ratio; random: a random part of fixed size; central: as
    in evaluation; pad: shift by `pad_pixels`; resize: squash only.
    """
    random_fraction: float = option(0.875, above=0, at_most=1)
    """Width and height of a random crop, of the image's: 0.8 is 128 out of 160
    (arXiv:1912.11370).
    """
    crop_flavour: Literal["paper", "torchvision"] = option("paper")
    """How an inception crop is drawn, see `data.crops`; with torchvision, min_area is usually
    0.08.
    """
    min_area: float = option(0.05, above=0, at_most=1)
    max_area: float = option(1.0, above=0, at_most=1)
    central_fraction: float = option(0.875, above=0, at_most=1)
    """Side of a central crop, of the short side: 0.875 is the middle 224 of 256. Evaluation too."""
    pad_pixels: int = option(4, at_least=0)
    antialias: bool = option(True)
    """Whether shrinking an image averages over all its pixels, see `data.resize`. Evaluation
    too.
    """
    randaugment_layers: int = option(0, at_least=0)
    """RandAugment(l, m) of arXiv:1909.13719; 0 layers: off. The scale of magnitudes ends at 10
    in the paper's flavour, larger ones extrapolate, and at 30 in torchvision's.
    """
    randaugment_magnitude: float = option(10.0, at_least=0, at_most=30)
    randaugment_flavour: Literal["paper", "torchvision"] = option("paper")
    three_augment: bool = option(False)
    """Gray, solarized or blurred, one of the three (arXiv:2204.07118, with color_jitter 0.3)."""
    color_jitter: float = option(0.0, at_least=0, at_most=1)
    """Brightness, contrast and saturation each times 1 +- up to this, in random order; 0: off."""
    flip: bool = option(True)
    """Device: left to right with probability 1/2."""
    erasing_probability: float = option(0.0, at_least=0, at_most=1)
    """Device: share of images of which a rectangle is erased (arXiv:1708.04896), and what it
    gets.
    """
    erasing_fill: Literal["noise", "gray"] = option("noise")

    def check(self) -> None:
        if self.min_area > self.max_area:
            raise ConfigError(
                f"is {self.min_area:g} and 'max_area' {self.max_area:g}",
                "min_area <= max_area",
                "swap them or set only min_area",
                key="min_area",
            )


class DataConfig(Section):
    """What is trained on, and how it is read."""

    source: SourceKind = option("tfds")
    """Where examples come from: TFDS-prepared data, a folder of images (a subfolder or a tar
    file a class), a CSV file of path,label, or the `datasets` package.
    """
    name: str = option()
    """TFDS name, e.g. "cifar10", "imagenet2012:5.1.0", or a bundled one ("digits"); Hugging
    Face name, e.g. "uoft-cs/cifar10"; for folder, csv and mixture a name of your own.
    """
    data_dir: str | None = option(None, changes_result=False)
    """Folder of TFDS-prepared data (None: TFDS_DATA_DIR or ~/tensorflow_datasets), the folder
    of images, the CSV file, or a folder that `datasets` saved (None: by name).
    """
    train_split: str = option("train")
    """TFDS split string or a preset, see `data.sources.splits`."""
    subset: SubsetConfig = section(SubsetConfig)
    mixture: dict[str, MemberConfig] = option({})
    """Name -> dataset; instead of the one dataset above. Evaluation splits name a member as in
    "NAME:test"; "test" alone is that of all members.
    """
    image_key: str | None = option(None)
    """Features that hold image and class; None: "image" and "label", or the only ones of their
    kind.
    """
    label_key: str | None = option(None)
    label_rule: LabelRule | None = option(None)
    """How the class of an example is made of other features, see `data.sources.derived`."""
    sampling: Literal["uniform", "balanced"] = option("uniform")
    """uniform: every example once an epoch; balanced: every class equally often, the examples
    of each in turn. Of an epoch only the number of examples stays.
    """
    on_bad_example: Literal["error", "skip"] = option("error")
    """What becomes of an image that cannot be read or decoded, or whose label is out of range."""
    num_classes: int | None = option(None, at_least=1)
    """Number of classes of the head; None: as the dataset says."""
    global_batch_size: int = option(at_least=1)
    image_size: int = option(224, at_least=1)
    """Height and width in pixels that the model sees."""
    augment: AugmentConfig = section(AugmentConfig)
    eval_crop: Literal["central", "resize"] = option("central")
    """Evaluation: short side resized to image_size * 256/224, central crop (inception-style
    evaluation); "resize" squashes to image_size.
    """
    num_threads: int | None = option(None, at_least=0, changes_result=False)
    """Reader threads (None: one per core) of each reader process (None: none up to 8 cores)."""
    num_workers: int | None = option(None, at_least=0, changes_result=False)
    cache_mb: int = option(512, at_least=0)
    """Decoded images of a split stay in memory, of each process, if all fit into so many
    megabytes. Kept or not, JPEGs that are shrunk while decoding differ by a few levels.
    """
    prefetch_batches: int = option(4, at_least=1, changes_result=False)

    def check(self) -> None:
        if self.mixture and self.subset.rule is not None:
            raise ConfigError(
                "given with a 'mixture'",
                "one of the two",
                "give the members a train_split such as train[:10%]",
                key="subset",
            )
        if self.label_rule is not None and (self.source != "tfds" or self.mixture):
            kind = "a mixture" if self.mixture else f"source {self.source}"
            raise ConfigError(
                f"is {self.label_rule!r} for {kind}",
                "one TFDS dataset",
                "leave it out",
                key="label_rule",
            )
