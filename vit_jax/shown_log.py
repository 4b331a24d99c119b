"""Shows the log lines of the package where nothing else does, as in a notebook, or hides them."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Literal

_LOGGER = logging.getLogger("vit_jax")


@contextlib.contextmanager
def shown_log(verbose: bool, where: Literal["stdout", "stderr"]) -> Iterator[None]:
    """Prints the log lines of the package during the block, if nothing else shows them."""
    is_shown = _LOGGER.hasHandlers() and _LOGGER.isEnabledFor(logging.INFO)
    if not verbose or is_shown:
        yield
        return
    handler = logging.StreamHandler(getattr(sys, where))
    level, propagate = _LOGGER.level, _LOGGER.propagate
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False  # Some packages give the root logger a handler for warnings.
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)
        _LOGGER.propagate = propagate


@contextlib.contextmanager
def without_info_log() -> Iterator[None]:
    """Hides lines such as the choice of the attention kernel during the block; warnings stay."""
    level = _LOGGER.level
    _LOGGER.setLevel(logging.WARNING)
    try:
        yield
    finally:
        _LOGGER.setLevel(level)
