"""The architecture that the shapes of an MLP-Mixer's npz describe."""

from pathlib import Path

import numpy as np
import pytest

from vit_jax.interop import mixer
from vit_jax.interop.tensors import TensorFile


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((1024, 24, 512, 4096), {"name": "Mixer-L/16"}),
        # Another depth of Mixer-L; a width between Mixer-S and Mixer-B.
        (
            (1024, 6, 512, 4096),
            {
                "name": "Mixer-L/16",
                "width": 1024,
                "depth": 6,
                "token_mlp_dim": 512,
                "channel_mlp_dim": 4096,
            },
        ),
        (
            (640, 8, 256, 2048),
            {
                "name": "Mixer-B/16",
                "width": 640,
                "depth": 8,
                "token_mlp_dim": 256,
                "channel_mlp_dim": 2048,
            },
        ),
    ],
)
def test_the_name_is_that_of_the_sizes_or_of_the_nearest_width(sizes, options):
    width, depth, token_mlp_dim, channel_mlp_dim = sizes
    shapes: dict[str, tuple[int, ...]] = {"stem/kernel": (16, 16, 3, width)}
    for layer in range(depth):
        shapes[f"MixerBlock_{layer}/token_mixing/Dense_0/kernel"] = (196, token_mlp_dim)
        shapes[f"MixerBlock_{layer}/channel_mixing/Dense_0/kernel"] = (width, channel_mlp_dim)
    file = TensorFile(Path("mixer.npz"), shapes, 0, lambda name: np.zeros(0))
    found = mixer.describe(file, {})
    assert found.options == options
    assert found.image_size == (224, 224)
