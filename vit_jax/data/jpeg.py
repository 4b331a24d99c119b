"""Partial JPEG decoding with libjpeg-turbo, and JPEG headers.

libjpeg-turbo decodes a region of an image at full size, or at a half, a quarter or an eighth of it
(from fewer DCT coefficients), and stops after the region's last row. This module calls the library
through ctypes. It looks for version 3.0 or later in the wheel `turbojpeg`, then on the system.
Without the library, Pillow decodes whole images.

`turbojpeg` is a small wheel with one maintainer, of which only the library file is used.
experiments/speed/README.md has the speed of two better-maintained packages; both are slower.
"""

import ctypes
import ctypes.util
import functools
import importlib.metadata
import logging
import re
import struct
import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

log = logging.getLogger(__name__)

# Constants of TurboJPEG 3.
_DECOMPRESS, _RGB, _WARNING = 1, 0, 0
_SUBSAMPLING, _WIDTH = 4, 5
# Width of a coding unit by subsampling: 4:4:4, 4:2:2, 4:2:0, gray, 4:4:0, 4:1:1.
_UNIT_WIDTHS = (8, 16, 16, 8, 8, 32)

_START_OF_FRAME = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
# Baseline, extended and progressive, all Huffman-coded.
_COMMON_FRAMES = {0xC0, 0xC1, 0xC2}
_START_OF_SCAN, _EXIF = 0xDA, 0xE1
_WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD9)}
_ORIENTATION = 0x0112
# Programs that drop EXIF data write the orientation here. Pillow reads it in the same way.
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([1-8])')

# libjpeg warnings that do not affect the pixels. Any other warning means wrong pixels; an error
# after a warning is reported as a warning. Damage that leaves valid codes is not detected.
_HARMLESS = re.compile(
    r"Corrupt JPEG data: (\d+ extraneous bytes before marker 0xd9|bad ICC marker)"
    r"|Invalid SOS parameters|Unknown Adobe color transform|Warning: unknown JFIF revision"
)


class Header(NamedTuple):
    """The header of a JPEG."""

    width: int  # As stored, before any rotation.
    height: int  # As stored.
    orientation: int  # 1 to 8, from EXIF, else from XMP; 1: as stored.
    common: bool  # 8 bits, gray or three colours, Huffman-coded; Pillow decodes other kinds.
    complete: bool  # There is an end-of-image marker after the image data.


class DamagedJpegError(ValueError):
    """Image data with errors, so that some pixels are wrong."""


class UnsupportedJpegError(ValueError):
    """A JPEG that libjpeg-turbo cannot decode."""


def read_header(encoded: bytes) -> Header | None:
    """Returns the header of a JPEG; None: not a JPEG, or its header is broken."""
    if encoded[:2] != b"\xff\xd8":
        return None
    try:
        return _parse_markers(encoded)
    except (IndexError, struct.error):
        return None


def _parse_markers(encoded: bytes) -> Header | None:
    position, frame = 2, None
    orientation: int | None = None
    from_xmp = 1
    while encoded[position] == 0xFF:
        marker = encoded[position + 1]
        if marker == 0xFF:  # Padding before a marker.
            position += 1
            continue
        if marker in _WITHOUT_LENGTH:
            position += 2
            continue
        (length,) = struct.unpack_from(">H", encoded, position + 2)
        if marker in _START_OF_FRAME:
            frame = (marker, *struct.unpack_from(">BHHB", encoded, position + 4))
        elif marker == _EXIF and encoded[position + 4 : position + 10] == b"Exif\0\0":
            orientation = _exif_orientation(encoded[position + 10 : position + 2 + length])
        elif marker == _EXIF and encoded.startswith(_XMP, position + 4):
            found = _XMP_ORIENTATION.search(encoded, position, position + 2 + length)
            from_xmp = int(found[1]) if found else from_xmp
        elif marker == _START_OF_SCAN:
            if frame is None:
                return None
            kind, bits, height, width, components = frame
            common = kind in _COMMON_FRAMES and bits == 8 and components in (1, 3) and height > 0
            # In image data a 0 follows every 0xFF, so this can only be the end marker.
            complete = encoded.rfind(b"\xff\xd9", position) >= 0
            return Header(width, height, orientation or from_xmp, common, complete)
        position += 2 + length
    return None


def _exif_orientation(tiff: bytes) -> int | None:
    """Returns the orientation in the first directory of EXIF data; None if there is none."""
    order = "<" if tiff[:2] == b"II" else ">"
    try:
        (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
        (entries,) = struct.unpack_from(f"{order}H", tiff, directory)
        for i in range(entries):
            tag, kind = struct.unpack_from(f"{order}HH", tiff, directory + 2 + 12 * i)
            if tag == _ORIENTATION:
                layout = {3: "H", 4: "I"}.get(kind, "B")
                (value,) = struct.unpack_from(order + layout, tiff, directory + 10 + 12 * i)
                return value if 1 <= value <= 8 else 1
    except struct.error:
        pass
    return None


class _Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("x", "y", "width", "height")]


class _Factor(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("numerator", "denominator")]


@functools.cache
def library() -> ctypes.CDLL | None:
    """Returns libjpeg-turbo with its functions declared. If it is missing, warns, returns None."""
    for path in _library_candidates():
        try:
            found = ctypes.CDLL(path)
            _declare_functions(found)
        except (OSError, AttributeError):  # Not loadable, or older than 3.0.
            continue
        return found
    log.warning(
        "no libjpeg-turbo 3 found: Pillow decodes whole JPEGs instead, which is slower and detects"
        " no damage except truncation (fix: pip install turbojpeg)"
    )
    return None


def _library_candidates() -> Iterator[str]:
    try:
        files = importlib.metadata.files("turbojpeg") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    yield from (str(file.locate()) for file in files if file.name.startswith("libturbojpeg"))
    if (found := ctypes.util.find_library("turbojpeg")) is not None:
        yield found


def _declare_functions(lib: ctypes.CDLL) -> None:
    handle, image = [ctypes.c_void_p], [ctypes.c_char_p, ctypes.c_size_t]
    for name, result, arguments in (
        ("tj3Init", ctypes.c_void_p, [ctypes.c_int]),
        ("tj3Destroy", None, handle),
        ("tj3DecompressHeader", ctypes.c_int, handle + image),
        ("tj3Get", ctypes.c_int, [*handle, ctypes.c_int]),
        ("tj3SetScalingFactor", ctypes.c_int, [*handle, _Factor]),
        ("tj3SetCroppingRegion", ctypes.c_int, [*handle, _Region]),
        (
            "tj3Decompress8",
            ctypes.c_int,
            handle + image + [ctypes.c_void_p, ctypes.c_int, ctypes.c_int],
        ),
        ("tj3GetErrorCode", ctypes.c_int, handle),
        ("tj3GetErrorStr", ctypes.c_char_p, handle),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


class _Decoder:
    """A libjpeg-turbo decoder for use by one thread."""

    def __init__(self, lib: ctypes.CDLL):
        self._lib = lib
        self._handle = lib.tj3Init(_DECOMPRESS)

    def __del__(self):
        self._lib.tj3Destroy(self._handle)

    def decode(
        self, encoded: bytes, box: tuple[int, int, int, int], shrink: int
    ) -> UInt8[np.ndarray, "h w 3"]:
        lib, handle, size = self._lib, self._handle, len(encoded)
        lib.tj3SetCroppingRegion(handle, _Region(0, 0, 0, 0))
        self._check(lib.tj3DecompressHeader(handle, encoded, size))
        self._check(lib.tj3SetScalingFactor(handle, _Factor(1, shrink)))
        left, top, right, bottom = box
        width = -(-lib.tj3Get(handle, _WIDTH) // shrink)
        kind = lib.tj3Get(handle, _SUBSAMPLING)
        if width < right or not 0 <= kind < len(_UNIT_WIDTHS):
            raise UnsupportedJpegError("unusual size or subsampling of colours")
        # A region starts at a multiple of the unit width. Colours at its border are interpolated
        # differently from those inside, so one more column on each side makes the part exact.
        unit = max(_UNIT_WIDTHS[kind] // shrink, 1)
        start, end = max(left - 1, 0) // unit * unit, min(right + 1, width)
        region = _Region(start, top, end - start, bottom - top)
        self._check(lib.tj3SetCroppingRegion(handle, region))
        pixels = np.empty((region.height, region.width, 3), np.uint8)
        self._check(lib.tj3Decompress8(handle, encoded, size, pixels.ctypes.data, 0, _RGB))
        return pixels[:, left - start : right - start]

    def _check(self, status: int) -> None:
        """Raises the error of a nonzero status. libjpeg keeps only the first warning's text."""
        if status == 0:
            return
        message = self._lib.tj3GetErrorStr(self._handle).decode(errors="replace")
        if self._lib.tj3GetErrorCode(self._handle) != _WARNING:
            raise UnsupportedJpegError(message)
        if not _HARMLESS.match(message):
            raise DamagedJpegError(message)


_local = threading.local()


def decode_part(
    encoded: bytes, box: tuple[int, int, int, int], shrink: int = 1
) -> UInt8[np.ndarray, "h w 3"]:
    """Decodes a region of a JPEG whose header is `common`. Releases the GIL while decoding.

    The box is in pixels of the shrunk, stored image and must be inside it. `shrink` is 1, 2, 4 or
    8: an image of width W becomes ceil(W / shrink) wide. Rows of the result need not be contiguous.
    Data below the region is not read.

    Raises:
        DamagedJpegError: the data are damaged and libjpeg-turbo filled in pixels.
        UnsupportedJpegError: libjpeg-turbo is missing or cannot decode this kind.
    """
    lib = library()
    if lib is None:
        raise UnsupportedJpegError("no libjpeg-turbo")
    decoder = getattr(_local, "decoder", None)
    if decoder is None:
        decoder = _local.decoder = _Decoder(lib)
    return decoder.decode(encoded, box, shrink)
