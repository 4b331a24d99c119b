"""Writes a dataset as a folder of photos, one subfolder per class, optionally of ImageNet's size.

    python -m experiments.speed.photos clothing_small DATA PHOTOS
    python -m experiments.speed.photos clothing_small DATA PHOTOS --size=470x390 --kilobytes=110

With --kilobytes, each photo is encoded at the lowest JPEG quality that gives at least that size, or
at quality 99.
"""

import argparse
import io
from pathlib import Path

from PIL import Image

from vit_jax.data.decode import decode
from vit_jax.data.sources import TfdsSource


def encoded(image: Image.Image, least_bytes: int) -> bytes:
    """Returns a JPEG of at least `least_bytes` bytes, or of quality 99."""
    low, high = 50, 99
    while True:
        stream, quality = io.BytesIO(), (low + high) // 2
        image.save(stream, "JPEG", quality=quality)
        if low >= high:
            return stream.getvalue()
        if stream.tell() < least_bytes:
            low = quality + 1
        else:
            high = quality


def main() -> None:
    """Writes the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("data_dir")
    parser.add_argument("photos", type=Path)
    parser.add_argument("--split", default="train")
    parser.add_argument("--size", help="WIDTHxHEIGHT in pixels")
    parser.add_argument("--kilobytes", type=int)
    args = parser.parse_args()
    source = TfdsSource(args.name, args.split, args.data_dir)
    for index in range(len(source)):
        example = source[index]
        content = example.image
        if args.size or args.kilobytes:
            image = decode(content)
            if args.size:
                width, _, height = args.size.partition("x")
                image = image.resize((int(width), int(height)), Image.Resampling.LANCZOS)
            content = encoded(image, 1000 * (args.kilobytes or 0))
        folder = args.photos / source.class_names[example.label].replace("/", "-")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index:06d}.jpg").write_bytes(content)


if __name__ == "__main__":
    main()
