"""Classes and examples of a run, without its data wherever that can be."""

import dataclasses

from vit_jax.config.run import Config
from vit_jax.data.dataset_sizes import DATASET_SIZES, known_size
from vit_jax.data.sources import class_count, open_training_data
from vit_jax.errors import DataError


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What of the data a step and a run depend on.

    Attributes:
        num_classes: C.
        num_examples: an epoch.
        source: where the two come from, for people.
    """

    num_classes: int
    num_examples: int
    source: str


def find_sizes(config: Config, num_classes: int | None, num_examples: int | None) -> Sizes:
    """Returns classes and examples: as asked for, else of a well-known dataset, else of the data.

    Args:
        config: its data section is read; the data themselves are opened only for what is missing.
        num_classes: from the command line.
        num_examples: from the command line.

    Raises:
        DataError: unknown, and the data are not here.
    """
    sources = ["as given"] if num_classes or num_examples else []
    if not (num_classes and num_examples):
        classes, examples = known_size(config.data)
        if examples is not None or (num_examples and classes):
            sources.append(f"{config.data.name} as published")
        num_classes, num_examples = num_classes or classes, num_examples or examples
    if not (num_classes and num_examples):
        try:
            source = open_training_data(config.data).source
        except DataError as error:
            missing = [n for n, v in (("--num_classes", num_classes),
                                      ("--num_examples", num_examples)) if not v]  # fmt: skip
            raise DataError(
                f"the size of dataset '{config.data.name}' is not known, and {error.got}",
                f"a well-known one ({', '.join(DATASET_SIZES)}), or the data",
                f"say it with {' and '.join(f'{name}=N' for name in missing)}",
            ) from None
        num_classes = num_classes or class_count(source, config.data.num_classes)
        num_examples = num_examples or len(source)
        sources.append("read from the data")
    return Sizes(num_classes, num_examples, ", ".join(sources))
