"""What several hosts must agree on."""

import jax
import numpy as np
from jax.experimental import multihost_utils


def is_first_host() -> bool:
    """Whether this process is the one that writes logs."""
    return jax.process_index() == 0


def any_host(flag: bool) -> bool:
    """Whether the flag is set on any host. Every host must call it at the same point."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))
