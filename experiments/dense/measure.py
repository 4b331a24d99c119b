"""Measures segmentation and correspondence of the frozen features of a model.

    python -m experiments.dense.measure runs/vit --data=SCENES --layers=3,5

CHECKPOINT is anything that `vit_jax.load_pretrained` reads, `untrained:MODEL` for a new model, or
`colours`: the mean colours of 8 x 8 blocks of 32-pixel images. --data is a folder with
images/SPLIT/NAME.jpg and masks/SPLIT/NAME.png for the splits train and test. The pixel values of a
mask are classes: 0 is the background, 255 does not count. Layers are those of `model.features`,
after the final norm.
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from flax import nnx
from PIL import Image

import vit_jax
from experiments.dense import segmentation
from experiments.dense.correspondence import correspondence

_BATCH_SIZE = 64


def layer_maps(model: vit_jax.ImageModel, layer: int, pixels: np.ndarray) -> np.ndarray:
    """Returns the feature maps f32[M, h, w, D] of a layer for images u8[M, H, W, 3]."""
    features = nnx.jit(lambda model, x: model.features(x, (layer,), normalise=True)[0])
    images = _in_unit_range(pixels)
    parts = (images[i : i + _BATCH_SIZE] for i in range(0, len(images), _BATCH_SIZE))
    return np.concatenate([np.asarray(features(model, part), np.float32) for part in parts])


def block_means(pixels: np.ndarray) -> np.ndarray:
    """Returns the mean colours of 8 x 8 blocks of images, f32[M, 8, 8, 3]."""
    _, height, width, _ = pixels.shape
    blocks = _in_unit_range(pixels).reshape(-1, 8, height // 8, 8, width // 8, 3)
    return blocks.mean((2, 4))


def _in_unit_range(pixels: np.ndarray) -> np.ndarray:
    return pixels.astype(np.float32) / np.float32(127.5) - 1


def read_split(folder: Path, split: str, size: tuple[int, int], limit: int):
    """Returns at most `limit` images u8[M, H, W, 3] and masks u8[M, H, W] of (height, width)."""
    files = sorted((folder / "images" / split).iterdir())
    count = min(limit, len(files))
    pixels, masks = [], []
    for file in (files[i * len(files) // count] for i in range(count)):
        mask = Image.open(folder / "masks" / split / f"{file.stem}.png")
        pixels.append(Image.open(file).convert("RGB").resize(size[::-1], Image.BILINEAR))
        masks.append(mask.resize(size[::-1], Image.NEAREST))
    return np.stack(pixels), np.stack(masks).astype(np.uint8)


def main(argv: list[str] | None = None) -> None:
    """Prints the table of all layers, and writes it to a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", help="file, folder, run, untrained:MODEL or colours")
    parser.add_argument("--data", type=Path, required=True, help="folder of images and masks")
    parser.add_argument("--layers", default="-1", help="of the model, e.g. 3,6,9,12")
    parser.add_argument("--num_images", type=int, default=10**9, help="of each split; default: all")
    parser.add_argument("--epochs", type=int, default=20, help="of training (%(default)s)")
    parser.add_argument("--output", type=Path, help="CSV file")
    args = parser.parse_args(argv)
    if args.checkpoint == "colours":
        size, maps_fns = (32, 32), {0: block_means}
    else:
        model = vit_jax.load_pretrained(args.checkpoint)
        size = model.image_size
        maps_fns = {n: partial(layer_maps, model, n) for n in map(int, args.layers.split(","))}
    train, train_masks = read_split(args.data, "train", size, args.num_images)
    test, test_masks = read_split(args.data, "test", size, args.num_images)
    masks = np.concatenate([train_masks, test_masks])
    num_classes = 1 + int(masks[masks != segmentation.IGNORED].max())
    constant = segmentation.constant_iou(test_masks)
    rows = []
    for layer, maps_fn in maps_fns.items():
        maps = (maps_fn(train), train_masks, maps_fn(test), test_masks)
        confusions = segmentation.probe(*maps, num_classes=num_classes, epochs=args.epochs)
        total, ends = confusions.sum(0), segmentation.iou_interval(confusions)
        rows.append((layer, "mean IoU", segmentation.mean_iou(total), *ends, constant))
        rows.append((layer, "pixels right", np.trace(total) / total.sum(), None, None, None))
        rows += [(layer, *row) for row in correspondence(maps_fn, test, test_masks)]
    table = pd.DataFrame(rows, columns=["layer", "measure", "value", "low", "high", "chance"])
    print(table.round(3).to_string(index=False, na_rep=""))
    if args.output:
        table.to_csv(args.output, index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
