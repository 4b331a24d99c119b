"""Which files are images by their names, and which are images of a format that is not read."""

import functools
from collections import Counter
from collections.abc import Iterable
from importlib import util

from vit_jax.errors import DataError
from vit_jax.storage.files import LFS_FIX, LFS_POINTER, is_lfs_pointer

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff",
    ".ppm", ".pgm",
)  # fmt: skip
# Read where pillow-heif is installed.
_HEIF_SUFFIXES = (".heic", ".heif", ".hif")
# AVIF begins in the same way, and Pillow reads it.
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_UNREAD = {
    "HEIC": _HEIF_SUFFIXES,
    "JPEG XL": (".jxl",),
    "JPEG 2000": (".jp2", ".j2k", ".j2c", ".jpf", ".jpx"),
    "JPEG XR": (".jxr", ".wdp"),
    "camera raw": (".raw", ".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".sr2", ".orf",
                   ".rw2", ".raf", ".pef", ".srw", ".x3f"),
    "DICOM": (".dcm", ".dicom"),
    "NIfTI": (".nii", ".nii.gz"),
    "OpenEXR": (".exr",),
    "Radiance HDR": (".hdr",),
    "Photoshop": (".psd", ".psb"),
    "SVG": (".svg", ".svgz"),
    "EPS": (".eps",),
    "PDF": (".pdf",),
    "Targa": (".tga",),
    "ICO": (".ico", ".cur"),
    "ICNS": (".icns",),
    "MPO": (".mpo",),
    "APNG": (".apng",),
    "DIB": (".dib",),
    "X11 image": (".xbm", ".xpm", ".xwd"),
    "PNM": (".pnm", ".pbm", ".pam", ".pfm"),
    "PCX": (".pcx",),
    "QOI": (".qoi",),
    "FITS": (".fits", ".fit"),
    "slide scan": (".svs", ".ndpi", ".mrxs", ".czi"),
}  # fmt: skip
_FORMAT_OF = {suffix: name for name, suffixes in _UNREAD.items() for suffix in suffixes}
HOW_TO_CONVERT = (
    "convert them to JPEG or PNG, e.g. with ImageMagick: magick mogrify -format jpg FILES (HEIC is"
    " read once pillow-heif is installed: pip install pillow-heif)"
)


def is_image(name: str) -> bool:
    """Whether a file is an image that can be read, by its name."""
    suffixes = IMAGE_SUFFIXES + _HEIF_SUFFIXES if _has_heif() else IMAGE_SUFFIXES
    return name.lower().endswith(suffixes)


def unread_formats(names: Iterable[str]) -> Counter[str]:
    """Returns the formats of images that are not read, by the names of files, and their numbers."""
    found = Counter[str]()
    for name in names:
        lower = name.lower()
        suffix = ".nii.gz" if lower.endswith(".nii.gz") else f".{lower.rpartition('.')[2]}"
        if suffix in _FORMAT_OF and not is_image(name):
            found[_FORMAT_OF[suffix]] += 1
    return found


def counted(formats: Counter[str]) -> str:
    """Returns the formats and how many files have them.

    >>> counted(Counter({"DICOM": 1, "HEIC": 1200}))
    '1,200 HEIC, 1 DICOM'
    """
    ordered = sorted(formats.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{number:,} {name}" for name, number in ordered)


def no_images_error(what: str, formats: Counter[str], fix: str) -> DataError:
    """Returns the error for a place without images that can be read."""
    expected = f"files ending in {', '.join(IMAGE_SUFFIXES[:3])}, ..."
    if not formats:
        return DataError(what, expected, fix)
    return DataError(
        f"{what}; its images are of formats that are not read: {counted(formats)}",
        expected,
        HOW_TO_CONVERT,
    )


def described(encoded: bytes) -> tuple[str, str] | None:
    """Returns what a file is that is no image for us, by its first bytes, and how to fix it."""
    if is_lfs_pointer(encoded):
        return LFS_POINTER, LFS_FIX
    if _is_heif(encoded) and not _has_heif():
        return "HEIC, which needs pillow-heif", "run: pip install pillow-heif, or convert it"
    if encoded[128:132] == b"DICM":
        return "DICOM", "convert it to JPEG or PNG, which needs a window of its values"
    return None


def register_formats(encoded: bytes) -> None:
    """Lets Pillow read this file, if another installed package can."""
    if _is_heif(encoded) and _has_heif():
        _register_heif()


def _is_heif(encoded: bytes) -> bool:
    return encoded[4:8] == b"ftyp" and encoded[8:12] in _HEIF_BRANDS


@functools.cache
def _has_heif() -> bool:
    return util.find_spec("pillow_heif") is not None


@functools.cache
def _register_heif() -> None:
    import pillow_heif  # pyright: ignore[reportMissingImports]

    pillow_heif.register_heif_opener()
