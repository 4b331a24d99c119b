"""The architecture that the shapes of an MLP-Mixer's npz describe."""

from pathlib import Path

import numpy as np
import pytest

from vit_jax.interop import mixer
from vit_jax.interop.tensors import TensorFile

NAMES = ("width", "depth", "token_mlp_dim", "channel_mlp_dim")


@pytest.mark.parametrize(
    ("sizes", "name", "are_published"),
    [
        ((1024, 24, 512, 4096), "Mixer-L/16", True),
        ((1024, 6, 512, 4096), "Mixer-L/16", False),  # Another depth.
        ((640, 8, 256, 2048), "Mixer-B/16", False),  # A width between S and B.
    ],
)
def test_the_name_is_that_of_the_sizes_or_of_the_nearest_width(sizes, name, are_published):
    width, depth, token_mlp_dim, channel_mlp_dim = sizes
    shapes: dict[str, tuple[int, ...]] = {"stem/kernel": (16, 16, 3, width)}
    for layer in range(depth):
        shapes[f"MixerBlock_{layer}/token_mixing/Dense_0/kernel"] = (196, token_mlp_dim)
        shapes[f"MixerBlock_{layer}/channel_mixing/Dense_0/kernel"] = (width, channel_mlp_dim)
    file = TensorFile(Path("mixer.npz"), shapes, 0, lambda name: np.zeros(0))
    found = mixer.describe(file, {})
    own = {} if are_published else dict(zip(NAMES, sizes, strict=True))
    assert found.options == {"name": name, **own}
    assert found.image_size == (224, 224)
