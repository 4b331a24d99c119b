"""Fixture for tests that register code from outside the package."""

import pytest

from vit_jax.config.data import SOURCES
from vit_jax.config.evaluation import METRICS
from vit_jax.config.hooks import HOOKS
from vit_jax.config.task import TASKS
from vit_jax.data.augment import AUGMENTATIONS
from vit_jax.data.crops import CROPS
from vit_jax.losses import LOSSES
from vit_jax.models.image_families import IMAGE_FAMILIES
from vit_jax.tasks.task import TASK_CLASSES
from vit_jax.train.optimizers import OPTIMIZERS

REGISTRIES = (
    AUGMENTATIONS, CROPS, HOOKS, IMAGE_FAMILIES, LOSSES, METRICS, OPTIMIZERS, SOURCES, TASKS,
    TASK_CLASSES,
)  # fmt: skip


@pytest.fixture
def own_code():
    """What a test registers is forgotten after it."""
    yield
    for registry in REGISTRIES:
        for name in [*registry._found]:
            if not (registry.owner(name) or "").startswith("vit_jax."):
                del registry._found[name]
