"""Settings of all replays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.tasks.distillation import task as distillation
from vit_jax.tasks.task import Frozen

TEACHER = np.random.RandomState(5).standard_normal((192, 10)).astype(np.float32)


@pytest.fixture(autouse=True)
def _as_the_authors_compute():
    """Exact matmuls; the default promotion, because optax multiplies float by int in places."""
    with jax.numpy_dtype_promotion("standard"), jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def linear_teacher(monkeypatch):
    """A teacher that is a linear function of the means of 4 by 4 pixels."""

    def logits(params, x):
        means = x.reshape(len(x), 8, 4, 8, 4, 3).mean((2, 4))
        return means.reshape(len(x), -1) @ TEACHER

    frozen = Frozen({"w": jax.ShapeDtypeStruct((1,), jnp.float32)}, lambda: {})
    monkeypatch.setattr(distillation, "_read_teacher", lambda *_: (frozen, lambda loop: logits, 0))
