"""The training batches of a run, each with the program that takes it."""

import logging
from collections.abc import Callable, Iterator

import jax
import numpy as np

from vit_jax.data.arrays import Preprocessing
from vit_jax.data.cache import cached
from vit_jax.data.loader import batch_spec, on_device, train_batches
from vit_jax.errors import DataError
from vit_jax.parallel.mesh import host_rows, to_devices
from vit_jax.rng import draw_index
from vit_jax.train.program import Program
from vit_jax.train.session import Session

log = logging.getLogger(__name__)

# Bad examples that are logged.
_MAX_SHOWN = 20


class TrainingFeed(Iterator[tuple[Program, dict[str, jax.Array]]]):
    """The batches after the start of a session, loaded in the background.

    A run with several sizes draws one for each batch: its program, and the shapes of its arrays.

    Attributes:
        skipped: indices of this host's bad examples, which others have replaced.
    """

    def __init__(self, session: Session):
        data, program = session.config.data, session.program
        self._session, self._step = session, session.start.step
        self.skipped = {*session.start.skipped}
        rows = host_rows(program.mesh, data.global_batch_size)
        self._batches = train_batches(
            cached(session.source, data.cache_mb),
            _preprocessing_of_batch(program),
            batch_spec(data, data.global_batch_size, rows),
            seed=session.config.seed,
            start_step=self._step,
            end_step=program.total_steps,
        )

    def __enter__(self) -> "TrainingFeed":
        return self

    def __exit__(self, *exception: object) -> None:
        self._batches.close()

    def __next__(self) -> tuple[Program, dict[str, jax.Array]]:
        """Returns the program of the next step and its batch, and logs the examples."""
        host_batch = next(self._batches)
        program = program_of_batch(self._session.program, self._step)
        self._step += 1
        self._session.examples.write(self._step, host_batch["index"])
        self._note_skipped(host_batch["skipped"])
        return program, to_devices(on_device(host_batch), program.mesh)

    def _note_skipped(self, skipped: np.ndarray) -> None:
        """Logs each bad example of this host once; `skipped` has -1 where there is none."""
        for index in sorted(set(skipped[skipped >= 0].tolist()) - self.skipped):
            self.skipped.add(index)
            if len(self.skipped) > _MAX_SHOWN:
                continue
            source = self._session.source
            try:
                what = f"example {source[index].id} of {source.name}"
            except DataError as error:
                what = error.got
            more = "; further ones are not shown" if len(self.skipped) == _MAX_SHOWN else ""
            log.warning("skipped because it cannot be used: %s%s", what, more)


def program_of_batch(program: Program, batch: int) -> Program:
    """Returns the program that takes a batch of a run: one of its sizes is drawn."""
    return _sizes(program)[_size_of_batch(program)(batch)]


def _preprocessing_of_batch(program: Program) -> Callable[[int], Preprocessing]:
    choices = [size.task.train_preprocessing for size in _sizes(program)]
    size_of = _size_of_batch(program)
    return lambda batch: choices[size_of(batch)]


def _sizes(program: Program) -> list[Program]:
    return list(program.variants.values()) or [program]


def _size_of_batch(program: Program) -> Callable[[int], int]:
    """Returns batch -> place of its size in `_sizes`. Reader processes call it, too."""
    if not program.variants:
        return lambda batch: 0
    seed, shares = program.config.seed, program.config.flexible.shares
    return lambda batch: draw_index(seed, "size", batch, shares)
