"""Fixtures of the attacks; `ATTACKS=100 ATTACK_SEED=1 pytest tests/attacks` makes more."""

import jax
import pytest
from attacks.draws import SEED, Draw
from shared_programs import _share_programs  # noqa: F401


@pytest.fixture(scope="module", autouse=True)
def _optax_promotes():
    """optax.adam raises a float to an int power, which strict promotion forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def draw(request):
    """Which attacks of a kind are made."""
    made = Draw(request.node.name)
    yield made
    print(f"ATTACK_SEED={SEED}: {made.count} of {made.total} attacks")
