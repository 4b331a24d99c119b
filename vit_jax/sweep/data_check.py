"""Finds out once, before the first job, whether the data of a sweep can be opened."""

from collections.abc import Iterable

from vit_jax.config.run import Config
from vit_jax.data.benchmarks import find_benchmark
from vit_jax.data.sources import open_source, open_training_data
from vit_jax.errors import UserError
from vit_jax.sweep.plan import PlannedJob

# Keys of the data section that decide which examples are opened.
_KEYS = ("source", "name", "data_dir", "train_split", "subset", "image_key", "label_key",
         "label_rule", "captions", "on_bad_example")  # fmt: skip


def check_data(jobs: Iterable[PlannedJob]) -> None:
    """Raises the UserError of the first data that cannot be opened; it names the jobs.

    Jobs with the same examples are checked together.
    """
    alike: dict[str, list[PlannedJob]] = {}
    for job in jobs:
        if job.config is not None:
            alike.setdefault(_examples_of(job.config), []).append(job)
    for same in alike.values():
        first = same[0]
        if first.config is None:
            continue
        try:
            open_training_data(first.config.data)
            for split in _splits(first.config):
                open_source(first.config.data, split)
        except UserError as error:
            more = f" and {len(same) - 1} more" if len(same) > 1 else ""
            got = f"the data of job {first.name!r}{more}: {error.got}"
            raise type(error)(got, error.expected, error.fix) from None


def _examples_of(config: Config) -> str:
    values = config.data.to_mapping()
    keys = (*_KEYS, config.data.source)  # A source of your own has a section of its name.
    return repr(([values.get(key) for key in keys], _splits(config)))


def _splits(config: Config) -> list[str]:
    """Returns the splits of its data that a run is evaluated on."""
    evaluation = config.evaluation
    splits = {**evaluation.splits, **evaluation.final_splits}
    return sorted({split for split in splits.values() if find_benchmark(split) is None})
