"""Fixtures of the attacks: what is attacked, and how much of it.

python -m pytest tests/attacks                                # a short draw
python -m pytest tests/attacks -m slow                        # up to 12 attacks of each kind
ATTACKS=10000 ATTACK_SEED=1 python -m pytest tests/attacks -m slow   # everything, with a seed
"""

import jax
import pytest
from attacks.draws import SEED, Draw
from shared_programs import _share_programs  # noqa: F401


@pytest.fixture(scope="module", autouse=True)
def _optax_promotes():
    """optax.adam raises a float to an int power, which strict promotion forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(params=["short", pytest.param("whole", marks=pytest.mark.slow)])
def draw(request):
    """Which attacks of a kind are made."""
    made = Draw(request.node.name, whole=request.param == "whole")
    yield made
    print(f"ATTACK_SEED={SEED}: {made.count} of {made.total} attacks")


@pytest.fixture(params=[pytest.param("whole", marks=pytest.mark.slow)])
def slow_draw(request):
    """Like `draw`, for attacks that take many seconds each: only the slow tests make any."""
    made = Draw(request.node.name, whole=True)
    yield made
    print(f"ATTACK_SEED={SEED}: {made.count} of {made.total} attacks")
