"""Settings of all replays."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _as_the_authors_compute():
    """Exact matmuls; the default promotion, because optax multiplies float by int in places."""
    with jax.numpy_dtype_promotion("standard"), jax.default_matmul_precision("highest"):
        yield
