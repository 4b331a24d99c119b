"""Config sections of the data: dataset, reading and augmentation."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

from vit_jax.config.captions import CaptionsConfig
from vit_jax.data.augment import AugmentConfig, augment_class
from vit_jax.errors import ConfigError
from vit_jax.own_functions import (
    FromFunction,
    check_no_part_of,
    own_function,
    owner_of,
    section_of_function,
    with_keys,
)
from vit_jax.registry import NameIn, Registry
from vit_jax.schema import ChosenBy, Section, check_at_most_one, option, section

F = TypeVar("F", bound=Callable[..., Any])

SourceKind = Literal["tfds", "folder", "csv", "captioned"]
SOURCES: Registry["type[Section]"] = Registry(kind="source")
for _kind in (*get_args(SourceKind), "passed"):
    SOURCES.add(_kind, Section, "vit_jax.data.sources")  # They have no options of their own.
if TYPE_CHECKING:
    SourceName = str
else:
    SourceName = Annotated[str, NameIn(SOURCES)]
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
        if not check_at_most_one(self, *keys) and self.seed:
            raise ConfigError(
                f"is {self.seed}, but no subset is chosen, so nothing reads it",
                f"one of {', '.join(keys)}",
                "set one of them, or leave it out",
                key="seed",
            )

    @property
    def rule(self) -> tuple[str, float] | None:
        """("fraction" or "examples", amount); None: all examples."""
        if self.preset is not None:
            return SUBSET_PRESETS[self.preset]
        given = [(key, getattr(self, key)) for key in ("fraction", "examples")]
        return next(((key, value) for key, value in given if value is not None), None)


class DataConfig(Section):
    """The dataset, and options for reading it."""

    read_by = {
        "central_fraction": ("eval_crop", ("central", "squash_central")),
        "image_key": ("source", ("tfds",)),
        "label_key": ("source", ("tfds",)),
        "label_rule": ("source", ("tfds",)),
    }

    source: SourceName = option("tfds")
    """Kind of dataset: TFDS-prepared data, a folder of images (one subfolder or tar file per
    class), a list of images (csv: a CSV, TSV or JSONL file of path and label), images with captions
    (captioned: such a file, or tar files in WebDataset's layout, see `data.sources.captioned`), or
    one of your own (`vit_jax.register_source`). passed: what `vit_jax.fit` was given.
    """
    name: str = option()
    """TFDS name, e.g. "cifar10", "imagenet2012:5.1.0", or a bundled one ("digits"); any name for
    other sources.
    """
    data_dir: str | None = option(None, changes_result=False)
    """Folder of TFDS-prepared data (None: TFDS_DATA_DIR or ~/tensorflow_datasets), the folder
    of images, or the CSV file. They may be in a bucket, gs://BUCKET/... or s3://BUCKET/....
    """
    train_split: str = option("train")
    """TFDS split string or a preset, see `data.sources.splits`."""
    subset: SubsetConfig = section(SubsetConfig)
    image_key: str | None = option(None)
    """Name of the image feature of a TFDS dataset; None: "image", or the only image feature."""
    label_key: str | None = option(None)
    """Name of the class feature of a TFDS dataset; None: "label", or the only class feature."""
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
    interpolation: Literal["bilinear", "bicubic"] = option("bilinear")
    """Filter of resizing: bilinear, as in TensorFlow's recipes, or bicubic, as in most PyTorch ones
    (Pillow's, antialiased).
    """
    antialias: bool = option(True)
    """Whether shrinking an image averages over all its pixels, see `data.resize`."""
    augment: Annotated[AugmentConfig, ChosenBy(augment_class, by_name=False)] = section(
        lambda: augment_class({})()
    )
    repeats: int = option(1, at_least=1)
    """Number of copies of each image, with different augmentations, in a batch (repeated
    augmentation, arXiv:1901.09335). A step is still `global_batch_size` examples.
    """
    eval_crop: Literal["central", "resize", "squash_central"] = option("central")
    """Evaluation: "central" crops the central square, see `central_fraction`; "resize" resizes the
    whole image and ignores its aspect ratio; "squash_central" does so and then crops the centre,
    like big_vision's `resize` and `central_crop`.
    """
    central_fraction: float = option(0.875, above=0, at_most=1)
    """Evaluation: side of a central crop, as a fraction of the short side: 0.875 is the central 224
    of 256.
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

    @property
    def eval_view(self) -> dict[str, Any]:
        """The options of `make_eval_transform`."""
        names = ("central_fraction", "interpolation", "antialias")
        return {"crop": self.eval_crop, **{name: getattr(self, name) for name in names}}

    def check(self) -> None:
        self.augment.crop.check_size(self.image_size)
        if self.interpolation == "bicubic" and not self.antialias:
            raise ConfigError(
                "is false with bicubic interpolation",
                "true",
                "leave it out, or set interpolation=bilinear",
                key="antialias",
            )


class SourceConfig(FromFunction, Section):
    """Options of a source of your own."""


class _DataConfig(DataConfig):
    """The data section where there are sources of your own: each has a key, its section."""

    def __init__(self, **values: Any):
        source = values.get("source")
        if source in _own_sources() and values.get(source) is None:
            values[source] = {}
        super().__init__(**values)

    def check(self) -> None:
        super().check()
        for name in type(self).model_fields.keys() & _own_sources():
            if name != self.source and getattr(self, name) is not None:
                raise ConfigError(
                    f"is set with data.source={self.source}",
                    f"the options of {self.source}",
                    f"set data.source={name}, or data.{name}=false",
                    key=name,
                )


def register_source(function: F) -> F:
    """Registers a dataset; use it as a decorator.

    The function's name is a value of `data.source`. Its keyword-only parameters are keys
    `data.NAME.KEY`, like those of a loss (`register_loss`). It is called for each split that a
    split string such as "train[:90%]" names.

    Args:
        function: (data_dir, split, *, keys) -> the examples of a split: an object with a length
            whose [i] is a pair of an image and a label, the same pair each time. The image is the
            content of an image file (bytes), pixels u8[H, W, 3], or a PIL image; the label is the
            number of its class. Its attribute `class_names`, if it has one, names the classes; else
            set `data.num_classes`. Its attribute `labels` i[N], if it has one, saves reading all
            examples for weights of classes and subsets. Threads read it; reader processes
            (`data.num_workers`) get a pickled copy. `data_dir` is `data.data_dir`, a str or None.

    Returns:
        The function, unchanged.

    Raises:
        PluginError: parameters that cannot be keys, or a name that another module has registered.

    >>> @register_source  # doctest: +SKIP
    ... def slides(data_dir, split, *, magnification: int = 20):
    ...     return Slides(f"{data_dir}/{split}", magnification)
    """
    own = own_function("source", function, ("data_dir", "split"))
    check_no_part_of(own, DataConfig, "data")
    SOURCES.add(own.name, section_of_function(own, SourceConfig), owner_of(function))
    return function


def _own_sources() -> dict[str, type[Section]]:
    return {name: cls for name, cls in SOURCES.items() if cls is not Section}


def data_class(section: Mapping[str, Any]) -> type[DataConfig]:
    """Returns the class of the section `data`, with a key for each source of your own."""
    SOURCES.knows(section.get("source"))  # Loads installed plugins if it is unknown.
    own = tuple(_own_sources().items())
    return with_keys(_DataConfig, own) if own else DataConfig
