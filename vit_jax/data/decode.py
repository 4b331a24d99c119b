"""Decodes a region of a stored image: an encoded file, or an array of its pixels.

How each kind of image is treated:

| image                         | treatment                                                     |
|-------------------------------|---------------------------------------------------------------|
| JPEG, baseline or progressive | libjpeg-turbo decodes the region, DCT-scaled; else Pillow     |
| gray, palette, 1 bit          | RGB                                                           |
| CMYK and YCCK JPEG            | RGB by Pillow; values are inverted, as Adobe writes them      |
| transparency                  | dropped: the stored colours are used                          |
| 16 bits a channel             | the high byte; in TIFF also of 12 bits, and if zero is white  |
| 32 bits, signed, floating     | an error: the value of white is unknown                       |
| animated GIF, WebP, PNG; TIFF | the first frame or page                                       |
| orientation, in EXIF or XMP   | applied; sizes and boxes are those of the upright image       |
| colour profile (ICC)          | ignored                                                       |
| truncated file                | an error, even if the region is intact                        |
| damaged JPEG                  | an error if a pixel of the region may be wrong; without       |
|                               | libjpeg-turbo only truncation is detected                     |
| more than 179 million pixels  | an error                                                      |
| HEIC                          | RGB, if pillow-heif is installed; else an error               |
| not an image, or no bytes     | an error; a Git LFS pointer is named                          |
| array                         | uint8 of 1 or 3 channels; one is gray; others are an error    |

PyTorch's and TensorFlow's readers ignore the orientation; a handful of ImageNet's photos have one.
"""

import io
import logging
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from vit_jax.data.boxes import Box
from vit_jax.data.image_formats import described, register_formats
from vit_jax.data.jpeg import DamagedJpegError, UnsupportedJpegError, decode_part, read_header
from vit_jax.errors import DataError

log = logging.getLogger(__name__)

# Pillow has the same limit.
_MAX_PIXELS = 178_956_970
_ORIENTATION = 0x0112
# Tags of TIFF.
_BITS, _MEANING_OF_ZERO, _SAMPLE_FORMAT = 258, 262, 339
_ZERO_IS_WHITE, _SIGNED = 0, 2
# Pillow's readers raise many types of errors on damaged files; AVIF's raises RuntimeError.
_PILLOW_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    Image.DecompressionBombError,
    RuntimeError,
    LookupError,
    ArithmeticError,
    TypeError,
    struct.error,
    zlib.error,
)
# Images of 16 bits whose high bytes are all smaller may have at most 14 bits.
_DARK = 64
_warned_of_dark = False
# EXIF orientation -> (swap rows and columns, then reverse columns, reverse rows) to make the stored
# image upright.
_UPRIGHT = {
    1: (False, False, False),
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, True, False),
    7: (True, True, True),
    8: (True, False, True),
}
# An encoded file, or pixels u8[H, W, 3]; gray: u8[H, W, 1] or u8[H, W].
ImageData = bytes | np.ndarray


class StoredImage:
    """An image whose regions can be decoded. The constructor reads only a JPEG's header.

    `size` is the width and height of the upright image. Raises DataError for a file that is not an
    image, or a truncated one, and for an array that is not pixels.
    """

    def __init__(self, image: ImageData):
        is_array = isinstance(image, np.ndarray)
        self._pixels = _rgb_array(image) if is_array else None
        self._encoded = encoded = b"" if is_array else image
        self._upright = _UPRIGHT[1]
        header = read_header(encoded)
        width = height = 0
        if header is not None:
            width, height = header.width, header.height
            if not header.complete:
                raise _unreadable_error(encoded, "the image data are truncated")
            if width * height > _MAX_PIXELS:
                raise _unreadable_error(encoded, f"{width} x {height} pixels")
            self._upright = _UPRIGHT[header.orientation]
        if header is None or not header.common:
            height, width = self._decode_whole().shape[:2]
        self.size = (height, width) if self._upright[0] else (width, height)

    def part(self, box: Box, shrink: int = 1) -> UInt8[np.ndarray, "h w 3"]:
        """Returns the pixels of a region of the upright image, optionally shrunk by 2, 4 or 8.

        The box is in pixels of the full-size image and must be inside it. It is extended to whole
        pixels of the shrunk image. Damaged data raise DataError.
        """
        left, top, right, bottom = self._to_stored_box(box)
        box = left // shrink, top // shrink, -(-right // shrink), -(-bottom // shrink)
        pixels = self._stored_part(box, shrink)
        swapped, columns, rows = self._upright
        if swapped:
            pixels = pixels.swapaxes(0, 1)
        pixels = pixels[:: -1 if rows else 1, :: -1 if columns else 1]
        # OpenCV cannot read arrays with negative strides.
        return np.ascontiguousarray(pixels) if any(self._upright) else pixels

    def _to_stored_box(self, box: Box) -> Box:
        """Converts a box in the upright image to the same box in the stored image."""
        left, top, right, bottom = box
        swapped, columns, rows = self._upright
        width, height = self.size
        if columns:
            left, right = width - right, width - left
        if rows:
            top, bottom = height - bottom, height - top
        return (top, left, bottom, right) if swapped else (left, top, right, bottom)

    def _stored_part(self, box: Box, shrink: int) -> UInt8[np.ndarray, "h w 3"]:
        whole = self._pixels
        if whole is None:
            try:
                return decode_part(self._encoded, box, shrink)
            except DamagedJpegError as error:
                raise _unreadable_error(self._encoded, str(error)) from None
            except UnsupportedJpegError:
                whole = self._decode_whole()
        left, top, right, bottom = box
        pixels = whole[top * shrink : bottom * shrink, left * shrink : right * shrink]
        if shrink == 1:
            return pixels
        return cv2.resize(pixels, (right - left, bottom - top), interpolation=cv2.INTER_AREA)

    def _decode_whole(self) -> UInt8[np.ndarray, "h w 3"]:
        """Decodes the whole stored image and keeps it."""
        if self._pixels is not None:
            return self._pixels
        try:
            register_formats(self._encoded)
            image = Image.open(io.BytesIO(self._encoded))
            is_deep = _has_deep_colours(image)
            if image.format not in ("JPEG", "MPO"):  # Their orientation is known already.
                image.load()
                orientation = image.getexif().get(_ORIENTATION, 1)
                self._upright = _UPRIGHT.get(orientation, _UPRIGHT[1])
            tags = getattr(image, "tag_v2", {})
            self._pixels = np.asarray(_to_rgb(image, tags, is_deep=is_deep))
        except UnidentifiedImageError:  # Its message is only a memory address.
            raise _unreadable_error(self._encoded, "unknown format") from None
        except _PILLOW_ERRORS as error:
            raise _unreadable_error(self._encoded, str(error)) from None
        return self._pixels


def decode(image: ImageData) -> Image.Image:
    """Decodes a whole image: upright, RGB, 8 bits per channel. DataError: not an intact image."""
    stored = StoredImage(image)
    return Image.fromarray(np.ascontiguousarray(stored.part((0, 0, *stored.size))))


def rgb_pixels(image: Image.Image) -> UInt8[np.ndarray, "h w 3"]:
    """Returns the pixels of a PIL image, upright, by the rules for files at the top.

    Raises DataError for a mode whose white is unknown, and for a file that cannot be loaded.
    """
    try:
        is_deep, upright = _has_deep_colours(image), ImageOps.exif_transpose(image)
        tags = getattr(image, "tag_v2", {})
        return np.ascontiguousarray(_to_rgb(upright, tags, is_deep=is_deep))
    except _PILLOW_ERRORS as error:
        raise DataError(
            f"a PIL image of mode {image.mode} ({error})",
            "8 or 16 bits per channel, in a mode that Pillow converts to RGB",
            "scale it to [0, 255] and convert it to 8 bits",
        ) from None


def _rgb_array(image: np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
    """Returns an array of pixels in RGB, contiguous for OpenCV."""
    is_gray = image.ndim == 2 or image.shape[2:] == (1,)
    if image.dtype != np.uint8 or not (is_gray or image.shape[2:] == (3,)) or not image.size:
        raise DataError(
            f"an image of {image.dtype}{list(image.shape)}",
            "pixels uint8[H, W, 3] or, if they are gray, uint8[H, W, 1] or uint8[H, W]",
            "scale them to 0 to 255, and put the channels last",
        )
    if is_gray:
        return np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)
    return np.ascontiguousarray(image)


def _to_rgb(image: Image.Image, tags: Mapping[int, Any], *, is_deep: bool) -> Image.Image:
    """Returns an image in RGB, given its TIFF file's tags and if it had 16 bits a colour."""
    if image.mode.startswith("I;16"):
        # Pillow's own conversion clips grays at 255, and passes over these tags.
        bits, *_ = tags.get(_BITS, (16,))
        stored = np.asarray(image)
        high = (stored >> (bits - 8)).astype(np.uint8)
        _check_dark(high)
        image = Image.fromarray(~high if tags.get(_MEANING_OF_ZERO) == _ZERO_IS_WHITE else high)
    if image.mode in ("I", "F") or _SIGNED in tags.get(_SAMPLE_FORMAT, ()):
        raise ValueError(f"pixels of mode {image.mode}: the value of white is unknown")
    if "transparency" in image.info:
        image = image.convert("RGBA")
    image = image.convert("RGB")
    if is_deep:
        _check_dark(np.asarray(image))
    return image


def _has_deep_colours(image: Image.Image) -> bool:
    """Whether a file has 16 bits a colour; ask before Pillow loads only the high bytes."""
    return any(";16" in str(tile) for tile in getattr(image, "tile", ()))


def _check_dark(high: UInt8[np.ndarray, "*S"]) -> None:
    """Warns once if all high bytes are small: the file may have fewer bits, such as an X-ray."""
    global _warned_of_dark
    if high.max() < _DARK and not _warned_of_dark:
        _warned_of_dark = True
        log.warning(
            "an image with 16 bits a channel has high bytes up to %d, and white is 255, so it is"
            " read as nearly black; if white is another value in these files, scale them to 8 bits",
            int(high.max()),
        )


def _unreadable_error(encoded: bytes, reason: str) -> DataError:
    start = encoded[:4].hex(" ") or "nothing"
    known, fix = described(encoded) or (reason, "repair or remove it")
    return DataError(
        f"unreadable image of {len(encoded)} bytes starting with {start} ({known})",
        "an intact PNG, JPEG or other file that Pillow reads",
        fix,
    )
