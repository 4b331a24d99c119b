"""Shows the log lines of the package where nothing else does, as in a notebook."""

import contextlib
import logging
from collections.abc import Iterator
from typing import TextIO

_LOGGER = logging.getLogger("vit_jax")


@contextlib.contextmanager
def shown_log(verbose: bool, stream: TextIO) -> Iterator[None]:
    """Prints the log lines of the package during the block, if nothing else handles them.

    Args:
        verbose: False: do nothing.
        stream: where to print.
    """
    if not verbose or _LOGGER.hasHandlers():
        yield
        return
    handler, level = logging.StreamHandler(stream), _LOGGER.level
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)
