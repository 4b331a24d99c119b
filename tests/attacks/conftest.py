"""Fixtures of the attacks; `ATTACKS=100 ATTACK_SEED=1 pytest tests/attacks` makes more."""

import pytest
from attacks.draws import SEED, Draw
from shared_programs import _share_programs  # noqa: F401


@pytest.fixture
def draw(request):
    """Which attacks of a kind are made."""
    made = Draw(request.node.name)
    yield made
    print(f"ATTACK_SEED={SEED}: {made.count} of {made.total} attacks")
