"""Checks and optionally shrinks one encoded image."""

import io

from PIL import Image

from vit_jax.data.decode import decode

JPEG_QUALITY = 95


def fit_image(encoded: bytes, short_side: int | None) -> tuple[bytes, str]:
    """Checks that an image can be decoded and returns its encoded bytes and format.

    The bytes are unchanged unless the short side is longer than `short_side` pixels. Such an image
    is rotated by its EXIF orientation, resized (bicubic, antialiased) and encoded again without
    metadata: JPEG and WebP as JPEG of quality 95, others as PNG.
    """
    pixels = decode(encoded)
    kind = str(Image.open(io.BytesIO(encoded)).format)
    if short_side is None or min(pixels.size) <= short_side:
        return encoded, kind
    scale = short_side / min(pixels.size)
    size = round(pixels.width * scale), round(pixels.height * scale)
    pixels = pixels.resize(size, Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    if kind in ("JPEG", "MPO", "WEBP"):
        pixels.save(buffer, "JPEG", quality=JPEG_QUALITY)
        return buffer.getvalue(), "JPEG"
    pixels.save(buffer, "PNG")
    return buffer.getvalue(), "PNG"
