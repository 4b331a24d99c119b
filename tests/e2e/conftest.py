import jax
import pytest
from shared_programs import _share_programs  # noqa: F401


@pytest.fixture(scope="module", autouse=True)
def _optax_promotes():
    """optax.adam raises a float to an int power, which strict promotion forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield
