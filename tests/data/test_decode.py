import functools
import io
import struct
import sys
import types

import cv2
import numpy as np
import pytest
from images import encode, exif, noise, photo, smooth
from PIL import Image

from vit_jax.data import decode as decode_module
from vit_jax.data import image_formats, jpeg
from vit_jax.data.decode import StoredImage, decode, rgb_pixels
from vit_jax.data.jpeg import UnsupportedJpegError
from vit_jax.errors import DataError

needs_library = pytest.mark.skipif(jpeg.library() is None, reason="no libjpeg-turbo 3 here")


def pixels_of(encoded: bytes) -> np.ndarray:
    return np.asarray(decode(encoded)).astype(int)


@pytest.fixture(params=["libjpeg-turbo", "pillow"])
def decoder(request, monkeypatch):
    """Both decoders in turn; libjpeg-turbo may not hand over to Pillow."""
    if request.param == "pillow":
        monkeypatch.setattr(decode_module, "decode_part", _unsupported)
    elif jpeg.library() is None:
        pytest.skip("no libjpeg-turbo 3 here")
    return request.param


def _unsupported(*args):
    raise UnsupportedJpegError


def _gray_16(order: str, kind: str) -> bytes:
    return encode(np.array([[0, 255, 256, 65535]], f"{order}u2"), kind)


def _palette(**options) -> bytes:
    image = Image.new("P", (2, 1))
    image.putpalette([9, 8, 7, 6, 5, 4])
    image.putdata([1, 0])
    return encode(image, **options)


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (encode(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8)), [[1, 2, 3], [4, 5, 6]]),
        (encode(np.array([[0, 128, 255]], np.uint8)), [[0] * 3, [128] * 3, [255] * 3]),
        (encode(Image.new("1", (1, 1), 1)), [[255, 255, 255]]),
        (encode(Image.new("LA", (1, 1), (7, 0))), [[7, 7, 7]]),
        (encode(Image.new("RGBA", (1, 1), (10, 20, 30, 0))), [[10, 20, 30]]),
        (encode(Image.new("CMYK", (1, 1), (0, 255, 255, 0)), "TIFF"), [[255, 0, 0]]),
        (_palette(), [[6, 5, 4], [9, 8, 7]]),
        (_palette(transparency=bytes([0, 128])), [[6, 5, 4], [9, 8, 7]]),
        # The high byte of 0, 255, 256 and 65535.
        (_gray_16("<", "PNG"), [[0] * 3, [0] * 3, [1] * 3, [255] * 3]),
        (_gray_16(">", "TIFF"), [[0] * 3, [0] * 3, [1] * 3, [255] * 3]),
        (b"P6 2 1 255\n\1\2\3\4\5\6", [[1, 2, 3], [4, 5, 6]]),
        (b"P6\n# a comment\n1 1 255\n\1\2\3", [[1, 2, 3]]),
        (b"P5 2 1 255\n\1\2", [[1] * 3, [2] * 3]),
        (np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8), [[1, 2, 3], [4, 5, 6]]),
        (np.array([[[1], [2]]], np.uint8), [[1] * 3, [2] * 3]),
        (np.array([[1, 2]], np.uint8), [[1] * 3, [2] * 3]),
    ],
)  # fmt: skip
def test_every_pixel_format_becomes_rgb(encoded, expected):
    image = decode(encoded)
    assert image.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(image)[0], expected)


@pytest.mark.parametrize("box", [(0, 0, 50, 30), (3, 4, 40, 29)])
@pytest.mark.parametrize("shrink", [1, 2])
def test_an_array_is_read_like_a_file_with_its_pixels(box, shrink):
    pixels = noise(30, 50)
    encoded = StoredImage(encode(pixels))
    for view in (pixels, np.asfortranarray(pixels), pixels[:, ::-1].copy()[:, ::-1]):
        image = StoredImage(view)
        assert image.size == encoded.size == (50, 30)
        part = image.part(box, shrink)
        np.testing.assert_array_equal(part, encoded.part(box, shrink))


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((4, 4, 3)),
        np.zeros((3, 4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((1, 4, 4, 3), np.uint8),
    ],
)
def test_an_array_that_is_not_pixels_is_a_data_error(pixels):
    with pytest.raises(DataError, match=r"an image of \w+\[.*\]; expected pixels uint8\[H, W, 3\]"):
        decode(pixels)


def _gray_tiff(bits: int, pixels: bytes, *, zero_is: int = 1, sample_format: int = 1) -> bytes:
    """Returns a TIFF of two rows and columns, as scanners write it, but Pillow does not."""
    tags = {256: 2, 257: 2, 258: bits, 259: 1, 262: zero_is, 273: 134, 277: 1, 278: 2,
            279: len(pixels), 339: sample_format}  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4) + pixels


@pytest.mark.parametrize(
    ("bits", "pixels", "zero_is"),
    [
        (16, np.array([0, 255, 25_700, 65_535], "<u2").tobytes(), 1),
        (16, np.array([65_535, 65_280, 39_935, 0], "<u2").tobytes(), 0),
        (12, bytes.fromhex("00000f" "646fff"), 1),
        (8, bytes([255, 255, 155, 0]), 0),
    ],
)  # fmt: skip
def test_a_tiff_says_how_many_bits_it_has_and_whether_zero_is_white(bits, pixels, zero_is):
    encoded = _gray_tiff(bits, pixels, zero_is=zero_is)
    assert pixels_of(encoded)[..., 0].tolist() == [[0, 0], [100, 255]]
    with Image.open(io.BytesIO(encoded)) as image:
        assert rgb_pixels(image)[..., 0].tolist() == [[0, 0], [100, 255]]
    with pytest.raises(DataError, match="the value of white is unknown"):
        decode(_gray_tiff(8, bytes(4), sample_format=2))


@pytest.mark.parametrize(("largest", "said"), [(4095, True), (40_000, False)])
def test_images_of_16_bits_that_are_nearly_black_are_said(caplog, monkeypatch, largest, said):
    monkeypatch.setattr("vit_jax.data.decode._warned_of_dark", False)
    pixels = Image.fromarray(np.array([[0, largest]], np.uint16))
    for _ in range(2):
        decode(encode(pixels, "PNG"))
    found = [record.message for record in caplog.records if "nearly black" in record.message]
    assert len(found) == said
    assert all("high bytes up to 15, and white is 255" in message for message in found)


@pytest.mark.parametrize("kind", [".png", ".tiff"])
@pytest.mark.parametrize(("largest", "said"), [(4095, 1), (40_000, 0)])
def test_colours_of_16_bits_that_are_nearly_black_are_said(
    caplog, monkeypatch, kind, largest, said
):
    _, encoded = cv2.imencode(kind, np.array([[[0, largest, 8]]], np.uint16))
    with Image.open(io.BytesIO(encoded.tobytes())) as image:
        for read in (lambda: decode(encoded.tobytes()), lambda: rgb_pixels(image)):
            caplog.clear()
            monkeypatch.setattr("vit_jax.data.decode._warned_of_dark", False)
            read()
            assert sum("nearly black" in record.message for record in caplog.records) == said


def test_16_bit_rgb_keeps_its_high_bytes():
    rgb = np.array([[[0x0AFF, 0x8000, 0xFFFF]]], np.uint16)
    _, png = cv2.imencode(".png", rgb[..., ::-1])  # OpenCV's order is BGR.
    assert pixels_of(png.tobytes()).tolist() == [[[0x0A, 0x80, 0xFF]]]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation_is_decoded(kind):
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "lime", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    encoded = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert (pixels_of(encoded) == [255, 0, 0]).all()


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("progressive", [False, True])
def test_both_decoders_give_the_same_pixels_of_a_jpeg(monkeypatch, mode, progressive):
    image = Image.fromarray(photo()[:200, :301]).convert(mode)
    encoded = encode(image, "JPEG", progressive=progressive)
    one = pixels_of(encoded)
    monkeypatch.setattr(decode_module, "decode_part", _unsupported)
    other = pixels_of(encoded)
    # Their versions of libjpeg may round differently.
    assert np.abs(one - other).max() <= 1
    assert one.shape == (200, 301, 3)


def test_cmyk_and_ycck_jpegs_are_read_as_inverted(decoder):
    # As Adobe writes them, and Pillow too.
    encoded = encode(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    assert np.abs(pixels_of(encoded) - [255, 0, 0]).max() <= 4
    at = encoded.index(b"Adobe")
    without_marker = encoded[: at - 4] + encoded[at + 12 :]
    np.testing.assert_array_equal(pixels_of(without_marker), pixels_of(encoded))
    # The same said to be YCCK: Y 255, Cb 0, Cr 0 are red 76, green 255, blue 28 before inversion
    # and K 255 is no black.
    ycck = encoded[: at + 11] + b"\2" + encoded[at + 12 :]
    assert np.abs(pixels_of(ycck) - [179, 0, 227]).max() <= 4


# Orientation -> what a viewer does to the stored rows and columns. Source: EXIF 2.3, 4.6.4.A.
UPRIGHT = {
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.rot90(stored, 2).swapaxes(0, 1),
    8: lambda stored: np.rot90(stored),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_the_exif_orientation_is_applied(decoder, kind, orientation):
    stored = smooth(24, 40)
    options = {"lossless": True} if kind == "WEBP" else {"quality": 95} if kind == "JPEG" else {}
    encoded = encode(stored, kind, exif=exif(orientation), **options)
    expected = UPRIGHT[orientation](stored).astype(int)
    image = StoredImage(encoded)
    assert image.size == expected.shape[1::-1]
    assert np.abs(pixels_of(encoded) - expected).max() <= (16 if kind == "JPEG" else 0)


@pytest.mark.parametrize("shrink", [1, 2, 4])
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_a_part_is_cropped_from_the_upright_image(decoder, orientation, shrink):
    # Both sides are divisible by 8, so that turning moves no pixel of the shrunk image.
    encoded = encode(photo()[:160, :240], "JPEG", quality=95, exif=exif(orientation))
    image = StoredImage(encoded)
    whole = image.part((0, 0, *image.size), shrink)
    assert whole.shape[:2] == (image.size[1] // shrink, image.size[0] // shrink)
    left, top, right, bottom = box = (24, 8, 100, 152)
    found = image.part(box, shrink)
    expected = whole[top // shrink : bottom // shrink, left // shrink : right // shrink]
    np.testing.assert_array_equal(found, expected)


def test_a_part_of_a_shrunk_image_is_widened_to_whole_pixels(decoder):
    image = StoredImage(encode(smooth(37, 53), "JPEG"))
    assert image.part((3, 4, 10, 13), 4).shape == (3, 3, 3)  # Columns 0 to 12, rows 4 to 16.
    assert image.part((0, 0, 53, 37), 8).shape == (5, 7, 3)
    assert image.part((52, 36, 53, 37), 8).shape == (1, 1, 3)


@pytest.mark.parametrize(
    ("encoded", "part"),
    [
        (b"", "image of 0 bytes starting with nothing (unknown format)"),
        (b"not an image at all", "unreadable image of 19 bytes starting with 6e 6f 74 20"),
        (encode(noise(32, 32))[:-300], "starting with 89 50 4e 47"),
        (encode(noise(32, 32), "JPEG")[:-300], "(the image data are trunc"),
        (encode(noise(32, 32), "JPEG")[:-2], "(the image data are trunc"),
        (encode(noise(32, 32), "JPEG", progressive=True)[:-300], "(the image data are trunc"),
        (encode(noise(32, 32), "JPEG")[:100], "starting with ff d8 ff e0"),
        (encode(noise(32, 32))[:20], "of 20 bytes"),
        (encode(noise(32, 32), "WEBP")[:-300], "starting with 52 49 46 46"),
        (encode(noise(32, 32), "GIF")[:-300], "starting with 47 49 46 38"),
        (b"P6 2 1 255\n\1\2\3\4\5", "starting with 50 36 20 32"),
        (encode(np.ones((2, 2), np.float32), "TIFF"), "pixels of mode F:"),
        (encode(np.ones((2, 2), np.int32), "TIFF"), "pixels of mode I:"),
    ],
)
def test_unreadable_bytes_are_a_data_error_in_either_decoder(decoder, encoded, part):
    with pytest.raises(DataError) as caught:
        decode(encoded)
    assert part in caught.value.got
    assert caught.value.expected == "an intact PNG, JPEG or other file that Pillow reads"


def test_any_error_of_pillow_is_a_data_error(monkeypatch):
    def read(_):
        raise RuntimeError("no color planes")  # Damaged AVIF files give RuntimeErrors.

    monkeypatch.setattr(Image, "open", read)
    with pytest.raises(DataError, match="no color planes"):
        decode(b"....ftypavif")


@needs_library
@pytest.mark.parametrize(("marker", "skipped"), [(b"\xff\xd3", 2), (b"\xff\xd9", None)])
def test_damage_within_a_jpeg_is_a_data_error_with_libjpegs_message(marker, skipped):
    """A marker in the middle that has no place there, or the end marker."""
    encoded = encode(photo()[:200, :200], "JPEG")
    at = len(encoded) // 2
    rest = encoded[at + skipped :] if skipped else b""
    with pytest.raises(DataError, match=r"\(Corrupt JPEG data: premature end of data segment\)"):
        decode(encoded[:at] + marker + rest)


def test_a_decompression_bomb_is_a_data_error_before_decoding():
    jpeg, png = encode(smooth(8, 8), "JPEG"), encode(smooth(8, 8))
    at = jpeg.index(b"\xff\xc0") + 5
    with pytest.raises(DataError, match=r"\(65535 x 65535 pixels\)"):
        StoredImage(jpeg[:at] + b"\xff\xff\xff\xff" + jpeg[at + 4 :])
    with pytest.raises(DataError):
        StoredImage(png[:16] + b"\0\1\0\0\0\1\0\0" + png[24:])


@needs_library
def test_a_jpeg_that_libjpeg_turbo_refuses_is_decoded_by_pillow():
    # 1 x 3 blocks a unit: no subsampling that TurboJPEG has a name for.
    encoded = encode(photo()[:48, :48], "JPEG", subsampling=0)
    at = encoded.index(b"\xff\xc0") + 11
    strange = encoded[:at] + b"\x13" + encoded[at + 1 :]
    with pytest.raises(UnsupportedJpegError, match="subsampling"):
        jpeg.decode_part(strange, (0, 0, 48, 48))
    assert decode(strange).size == (48, 48)


@needs_library
def test_only_the_header_is_read_until_pixels_are_needed(monkeypatch):
    monkeypatch.setattr(decode_module, "decode_part", functools.partial(pytest.fail, "decoded"))
    assert StoredImage(encode(smooth(20, 30), "JPEG")).size == (30, 20)


def test_heic_is_read_by_pillow_heif_if_it_is_installed(monkeypatch):
    """pillow_heif is replaced by one that lets Pillow read PNG after the header of HEIC."""
    heic = b"\0\0\0\x18ftypheic" + encode(noise(4, 6))
    with pytest.raises(DataError, match=r"HEIC, which needs pillow-heif.*run: pip install pillow"):
        decode(heic)

    def register():
        Image.register_open(
            "HEIF",
            lambda file, name: Image.open(io.BytesIO(file.read()[12:])),
            lambda start: start[4:12] == b"ftypheic",
        )

    monkeypatch.setattr(image_formats, "_has_heif", lambda: True)
    monkeypatch.setitem(
        sys.modules, "pillow_heif", types.SimpleNamespace(register_heif_opener=register)
    )
    try:
        np.testing.assert_array_equal(np.asarray(decode(heic)), noise(4, 6))
    finally:
        image_formats._register_heif.cache_clear()
        Image.OPEN.pop("HEIF", None)
        Image.ID.remove("HEIF")
    assert image_formats.is_image("IMG_1.HEIC")


def test_a_git_lfs_pointer_and_dicom_are_named():
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    with pytest.raises(DataError, match=r"a Git LFS pointer in place of the file.*git lfs pull"):
        decode(pointer)
    with pytest.raises(DataError, match=r"of 200 bytes .* \(DICOM\); .*convert it to JPEG or PNG"):
        decode(bytes(128) + b"DICM" + bytes(68))
