"""How many threads linear algebra on the host takes."""

import contextlib
from collections.abc import Iterator

from threadpoolctl import threadpool_limits

# Values below which a matrix keeps one core busy, and no more.
_SMALL = 1 << 24


@contextlib.contextmanager
def threads_for(values: int) -> Iterator[None]:
    """Keeps the host's BLAS and LAPACK to one thread while it works on a small matrix.

    With a thread a core, most of the time goes into waiting for each other: on two busy cores,
    L-BFGS on 1,653 x 128 features took 100 times as long as with one thread.

    Args:
        values: of the largest matrix.
    """
    with threadpool_limits(1) if values < _SMALL else contextlib.nullcontext():
        yield
