import jax
import pytest


@pytest.fixture(autouse=True)
def _optax_promotes():
    """optax.adam raises a float to an int power, which strict promotion forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield
