"""Draws some test scenes of `digit_scenes` above their masks.

python -m experiments.dense.scenes DATA experiments/dense/results/scenes.png
"""

import sys

import numpy as np
from matplotlib import colormaps
from PIL import Image

from vit_jax.data.masked_images import MaskSource

_SCENES, _ENLARGED = 10, 3


def main(data_dir: str, output: str) -> None:
    """Writes the picture.

    Args:
        data_dir: folder of TFDS datasets.
        output: PNG file.
    """
    found = MaskSource("digit_scenes", data_dir).read("test", (32, 32), _SCENES)
    colours = np.round(255 * np.asarray(colormaps["tab10"].colors)).astype(np.uint8)
    palette = np.concatenate([np.full((1, 3), 255, np.uint8), colours])
    rows = [np.concatenate(list(part), 1) for part in (found.pixels, palette[found.masks])]
    picture = np.concatenate(rows).repeat(_ENLARGED, 0).repeat(_ENLARGED, 1)
    Image.fromarray(picture).save(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
