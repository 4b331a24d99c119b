"""Pictures in tests have few pixels, which makes them twice as fast to write."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def small_pictures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit_jax.report.drawing.DPI", 40)
        yield
