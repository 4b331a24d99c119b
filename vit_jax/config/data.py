"""Config sections of the data: dataset, reading and augmentation."""

from typing import Literal

from vit_jax.config.captions import CaptionsConfig
from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option, section

SourceKind = Literal["tfds", "folder", "csv", "captioned"]
LabelRule = Literal[
    "clevr_count", "clevr_distance", "dsprites_location", "dsprites_orientation", "kitti_distance"
]

# Sizes for data-size studies. Source: arXiv:2010.11929, section 4.3 (random subsets of JFT with 9M,
# 30M, 90M and all 303M examples). The percentages suit datasets of any size.
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
    """A subset of the training split with the same class shares. Larger subsets contain smaller.

    Set at most one of `preset`, `fraction` and `examples`; none: all examples.
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
    """A name in `SUBSET_PRESETS`."""
    fraction: float | None = option(None, above=0, at_most=1)
    """Fraction of the split."""
    examples: int | None = option(None, at_least=1)
    """Number of examples."""
    seed: int = option(0, at_least=0, below=2**32)
    """Seed for choosing the examples."""
    hash: str | None = option(None)
    """Hash of the manifest (subset.json in the run folder). Set by the run, not by users."""

    def check(self) -> None:
        keys = ("preset", "fraction", "examples")
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
        """("fraction" or "examples", amount); None: all examples."""
        if self.preset is not None:
            return SUBSET_PRESETS[self.preset]
        given = [(key, getattr(self, key)) for key in ("fraction", "examples")]
        return next(((key, value) for key, value in given if value is not None), None)


class AugmentConfig(Section):
    """Augmentation of training images: on the host in this order, then on the device."""

    crop: Literal["inception", "random_square", "squash_random", "central", "pad", "resize"] = (
        option("inception")
    )
    """inception: random area and aspect ratio; random_square: a square as large as fits, at a
    random place; squash_random: squash to a square, then crop a smaller one at a random place;
    central: as in evaluation; pad: shift by up to `pad_pixels`; resize: only squash to a square.
    """
    random_fraction: float = option(0.875, above=0, at_most=1)
    """Width and height of a squash_random crop, as a fraction of the image's: 0.8 is 128 of 160
    (arXiv:1912.11370).
    """
    crop_flavour: Literal["paper", "torchvision"] = option("paper")
    """How an inception crop is drawn, see `data.crops`; torchvision's usual min_area is 0.08."""
    min_area: float = option(0.05, above=0, at_most=1)
    """Smallest area of an inception crop, as a fraction of the image's."""
    max_area: float = option(1.0, above=0, at_most=1)
    """Largest area of an inception crop, as a fraction of the image's."""
    central_fraction: float = option(0.875, above=0, at_most=1)
    """Side of a central crop, as a fraction of the short side: 0.875 is the central 224 of 256.
    Evaluation uses it too.
    """
    pad_pixels: int = option(4, at_least=0)
    """Largest shift of a padded crop, in pixels."""
    interpolation: Literal["bilinear", "bicubic"] = option("bilinear")
    """Filter of resizing: bilinear, as in TensorFlow's recipes, or bicubic, as in most PyTorch ones
    (Pillow's, antialiased). Evaluation uses it too.
    """
    antialias: bool = option(True)
    """Whether shrinking an image averages over all its pixels, see `data.resize`. Evaluation uses
    it too.
    """
    randaugment_layers: int = option(0, at_least=0, at_most=100)
    """Number of RandAugment operations (arXiv:1909.13719); 0: off."""
    randaugment_magnitude: float = option(10.0, at_least=0, at_most=30)
    """Strength of RandAugment. The scale ends at 10; larger values extrapolate in the paper's
    flavour and are clipped in timm's.
    """
    randaugment_flavour: Literal["paper", "timm"] = option("paper")
    """paper: operations and strengths of the paper's code. timm: rand-mM-mstd0.5-inc1 of timm,
    which applies each operation with probability 1/2 (DeiT, MAE).
    """
    three_augment: bool = option(False)
    """Apply one of grayscale, solarize and blur (arXiv:2204.07118, with color_jitter=0.3)."""
    repeats: int = option(1, at_least=1)
    """Number of copies of each image, with different augmentations, in a batch (repeated
    augmentation, arXiv:1901.09335). A step is still `global_batch_size` examples.
    """
    color_jitter: float = option(0.0, at_least=0, at_most=1)
    """Scale brightness, contrast and saturation by up to 1 +- this, in random order; 0: off."""
    flip: bool = option(True)
    """On the device: mirror left to right with probability 1/2."""
    erasing_probability: float = option(0.0, at_least=0, at_most=1)
    """On the device: probability of erasing a rectangle of an image (arXiv:1708.04896)."""

    def check(self) -> None:
        if self.min_area > self.max_area:
            raise ConfigError(
                f"is {self.min_area:g} and 'max_area' {self.max_area:g}",
                "min_area <= max_area",
                "swap them or set only min_area",
                key="min_area",
            )
        if self.interpolation == "bicubic" and not self.antialias:
            raise ConfigError(
                "is false with bicubic interpolation",
                "true",
                "leave it out, or set interpolation=bilinear",
                key="antialias",
            )


class MixingConfig(Section):
    """Mixing of image pairs on the device. If both are on, each batch uses one at random."""

    mixup_alpha: float = option(0.0, at_least=0)
    """Mixup ratios are drawn from Beta(alpha, alpha) (arXiv:1710.09412); 0: off."""
    cutmix_alpha: float = option(0.0, at_least=0)
    """The same for CutMix (arXiv:1905.04899)."""


class DataConfig(Section):
    """The dataset, and options for reading it."""

    source: SourceKind = option("tfds")
    """Kind of dataset: TFDS-prepared data, a folder of images (one subfolder or tar file per
    class), a CSV file of path,label, or images with captions (a CSV or
    JSONL file, or tar files in WebDataset's layout, see `data.sources.captioned`).
    """
    name: str = option()
    """TFDS name, e.g. "cifar10", "imagenet2012:5.1.0", or a bundled one ("digits"); any name for
    folder and csv.
    """
    data_dir: str | None = option(None, changes_result=False)
    """Folder of TFDS-prepared data (None: TFDS_DATA_DIR or ~/tensorflow_datasets), the folder
    of images, or the CSV file. They may be in a bucket, gs://BUCKET/... or s3://BUCKET/....
    """
    train_split: str = option("train")
    """TFDS split string or a preset, see `data.sources.splits`."""
    subset: SubsetConfig = section(SubsetConfig)
    image_key: str | None = option(None)
    """Name of the image feature; None: "image", or the only image feature."""
    label_key: str | None = option(None)
    """Name of the class feature; None: "label", or the only class feature."""
    captions: CaptionsConfig = section(CaptionsConfig)
    label_rule: LabelRule | None = option(None)
    """Computes the class from other features, see `data.sources.label_rules`."""
    on_bad_example: Literal["error", "skip"] = option("error")
    """What to do with an image that cannot be decoded or whose label is out of range."""
    num_classes: int | None = option(None, at_least=1)
    """Number of classes of the head; None: as in the dataset."""
    global_batch_size: int = option(at_least=1)
    """Examples per step, over all devices and hosts."""
    image_size: int = option(224, at_least=1)
    """Height and width of the model's input in pixels."""
    sequence_length: int | None = option(None, at_least=4)
    """Images are resized to keep their aspect ratio, so that they have at most this many patches;
    the sequence is padded to it (NaFlex, arXiv:2502.14786). None: all images have `image_size`.
    """
    augment: AugmentConfig = section(AugmentConfig)
    eval_crop: Literal["central", "resize", "squash_central"] = option("central")
    """Evaluation: "central" crops the central square, see `augment.central_fraction`; "resize"
    resizes the whole image and ignores its aspect ratio; "squash_central" does so and then crops
    the centre, like big_vision's `resize` and `central_crop`.
    """
    num_threads: int | None = option(None, at_least=0, changes_result=False)
    """Reader threads per process; None: one per core."""
    num_workers: int | None = option(None, at_least=0, changes_result=False)
    """Reader processes; None: none on machines of up to 8 cores."""
    cache_mb: int = option(512, at_least=0)
    """Cache the decoded images of a split in the memory of each process, if they fit into this many
    megabytes; 0: no cache. For JPEGs that the decoder shrinks, cached and uncached pixels differ by
    a few levels.
    """
    cache_dir: str | None = option(None, changes_result=False)
    """Local folder in which data from buckets is kept for the next epoch and the next run (None:
    $XDG_CACHE_HOME/vit_jax/blocks, by default in ~/.cache). Processes and runs may share it.
    """
    cache_dir_gb: float = option(50.0, at_least=0, changes_result=False)
    """Largest size of `cache_dir` in gigabytes. Of larger datasets a part is kept; 0: nothing."""

    def check(self) -> None:
        pad = self.augment.pad_pixels
        if self.augment.crop == "pad" and pad >= self.image_size:
            raise ConfigError(
                f"is {pad} for images of {self.image_size} pixels, which a shift could move out of"
                " the picture",
                f"less than {self.image_size} pixels",
                "set it to about an eighth of data.image_size",
                key="augment.pad_pixels",
            )
        if self.label_rule is not None and self.source != "tfds":
            raise ConfigError(
                f"is {self.label_rule!r} for source {self.source}",
                "a TFDS dataset",
                "leave it out",
                key="label_rule",
            )
