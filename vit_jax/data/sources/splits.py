"""Split strings: TFDS syntax for every kind of source, and presets of published protocols.

`train`, `train[:98%]`, `train[10%:20%]+test` and `all` are TFDS syntax
(https://www.tensorflow.org/datasets/splits). A preset can replace any split:

- `train800`, `val200`, `train800val200`, `vtab_test`: VTAB-1k. VTAB divides each dataset into
  training, validation and test parts; these are the first 800 training examples, the first 200
  validation examples, both, and the test part. Source: arXiv:1910.04867; the parts of each dataset
  follow github.com/google-research/task_adaptation, `task_adaptation/data`.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vit_jax.errors import DataError

# VTAB's validation part of a dataset: a split, or the percentage of "train" at which it starts.
_VTAB_VALIDATION: dict[str, str | int] = {
    "caltech101": 90,
    "cifar10": 90,
    "cifar100": 90,
    "clevr": 90,
    "diabetic_retinopathy_detection": "validation",
    "dmlab": "validation",
    "dsprites": 80,
    "dtd": "validation",
    "eurosat": 60,
    "kitti": "validation",
    "oxford_flowers102": "validation",
    "oxford_iiit_pet": 80,
    "patch_camelyon": "validation",
    "resisc45": 60,
    "smallnorb": "test",
    "sun397": "validation",
    "svhn_cropped": 90,
}
# VTAB's test part, for datasets whose test part is not the split "test".
_VTAB_TEST = {
    "clevr": "validation",
    "dsprites": "train[90%:]",
    "eurosat": "train[80%:]",
    "resisc45": "train[80%:]",
    "smallnorb": "test[50%:]",
}


class Span(NamedTuple):
    """Examples start to stop - 1 of a split."""

    split: str
    start: int
    stop: int


def read_split(split: str, shards: Mapping[str, Sequence[int]], dataset: str) -> list[Span]:
    """Returns the parts of a TFDS split string, in order, where presets are already expanded.

    `shards` has the number of examples in each file of a split.
    """
    import tensorflow_datasets as tfds

    infos = {
        name: tfds.core.SplitInfo(name=name, shard_lengths=list(lengths), num_bytes=0)
        for name, lengths in shards.items()
    }
    try:
        parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(infos)
    except (ValueError, NotImplementedError) as error:
        some = "train" if "train" in shards else next(iter(shards), "train")
        raise DataError(
            f"split {split!r} of {dataset}: {str(error).splitlines()[0].rstrip('.')}",
            f"one of {', '.join(shards)}, or a part such as {some}[:90%]",
            "check the name of the split",
        ) from None
    sizes = {name: info.num_examples for name, info in infos.items()}
    spans = [
        Span(p.splitname, p.from_ or 0, sizes[p.splitname] if p.to is None else p.to) for p in parts
    ]
    for span in spans:
        if span.start > span.stop:
            raise DataError(
                f"split {split!r} of {dataset} has a part {span.split}[{span.start}:{span.stop}]",
                "parts whose end is after their start",
                "swap the two numbers",
            )
    for one, other in itertools.combinations(spans, 2):
        shared = min(one.stop, other.stop) - max(one.start, other.start)
        if one.split == other.split and shared > 0:
            raise DataError(
                f"split {split!r} of {dataset} has {shared:,} examples of {one.split} twice",
                "parts that share no examples",
                "change or remove one of the parts",
            )
    if not sum(span.stop - span.start for span in spans):
        raise DataError(
            f"split {split!r} of {dataset} is empty", "at least one example", "widen the split"
        )
    return spans


def expand_presets(split: str, sizes: Mapping[str, int], name: str) -> str:
    """Returns a split string with presets replaced by TFDS syntax.

    A split of the dataset takes precedence over a preset. `name` is without config and version.

    >>> expand_presets("val200", {"train": 50_000, "test": 10_000}, "cifar100")
    'train[45000:45200]'
    """
    parts = [part.strip() for part in split.split("+")]
    return "+".join(p if p in sizes else _expand_preset(p, sizes, name) for p in parts)


def _expand_preset(part: str, sizes: Mapping[str, int], name: str) -> str:
    if part == "train800":
        return "train[:800]"
    if part == "val200":
        return _val200(sizes, name)
    if part == "train800val200":
        return f"train[:800]+{_val200(sizes, name)}"
    if part == "vtab_test":
        return _VTAB_TEST.get(name, "test")
    return part


def _val200(sizes: Mapping[str, int], name: str) -> str:
    """Returns the split of VTAB's 200 validation examples.

    For datasets outside VTAB these are the first 200 of "validation", or the 200 that start at 90 %
    of "train".
    """
    usual = "validation" if "validation" in sizes else 90
    where = _VTAB_VALIDATION.get(name, usual)
    if isinstance(where, str):
        return f"{where}[:200]"
    start = sizes.get("train", 0) * where // 100
    return f"train[{start}:{start + 200}]"
