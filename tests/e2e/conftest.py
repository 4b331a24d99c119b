import pytest
from shared_programs import _share_programs  # noqa: F401


@pytest.fixture(scope="module", autouse=True)
def _optax_promotes(optax_promotes):
    """All runs here train with Adam."""
