"""Limits the threads of linear algebra on the host."""

import contextlib
from collections.abc import Iterator

from threadpoolctl import threadpool_limits

# Smaller matrices do not need more than one core.
_SMALL = 1 << 24


@contextlib.contextmanager
def threads_for(values: int) -> Iterator[None]:
    """Limits the host's BLAS and LAPACK to one thread while the largest matrix has few values.

    With one thread per core, the threads mostly wait for each other: on two busy cores, L-BFGS on
    1,653 x 128 features took 100 times as long as with one thread.
    """
    with threadpool_limits(1) if values < _SMALL else contextlib.nullcontext():
        yield
