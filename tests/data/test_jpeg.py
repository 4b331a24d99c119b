import io
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from images import encode, photo, smooth
from PIL import Image

from vit_jax.data import jpeg
from vit_jax.data.jpeg import DamagedJpegError, UnsupportedJpegError, decode_part, read_header

needs_library = pytest.mark.skipif(jpeg.library() is None, reason="no libjpeg-turbo 3 here")

# Kind of subsampling -> what Pillow calls it.
SUBSAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}


def whole(encoded: bytes, shrink: int = 1) -> np.ndarray:
    header = read_header(encoded)
    width, height = -(-header.width // shrink), -(-header.height // shrink)
    return decode_part(encoded, (0, 0, width, height), shrink)


def insert(encoded: bytes, marker: int, payload: bytes) -> bytes:
    """Puts a segment right behind the start of the image."""
    return encoded[:2] + struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload + encoded[2:]


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_the_header_gives_size_and_completeness(options):
    header = read_header(encode(smooth(33, 70), "JPEG", **options))
    assert header == (70, 33, 1, True, True)


def big_endian_exif(kind: int, value: bytes) -> bytes:
    entry = struct.pack(">HHI", 0x0112, kind, 1) + value.ljust(4, b"\0")
    return b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 1) + entry


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        (big_endian_exif(3, b"\0\6"), 6),
        (big_endian_exif(4, b"\0\0\0\6"), 6),
        (big_endian_exif(3, b"\0\0"), 1),
        (big_endian_exif(3, b"\0\11"), 1),
        (big_endian_exif(3, b"\0\6")[:-10], 1),
        (b"Exif\0\0", 1),
        (b"Exif\0\0garbage that is no TIFF header", 1),
        (b"http://ns.adobe.com/xap/1.0/\0<x/>", 1),
        (b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>', 6),
        (b"http://ns.adobe.com/xap/1.0/\0<tiff:Orientation>8</tiff:Orientation>", 8),
    ],
    ids=["short", "long", "zero", "nine", "cut", "empty", "garbage", "xmp", "xmp6", "xmp8"],
)
def test_exif_in_either_byte_order_is_read_and_broken_exif_is_ignored(segment, expected):
    header = read_header(insert(encode(smooth(8, 8), "JPEG"), 0xE1, segment))
    assert header == (8, 8, expected, True, True)


def test_exif_comes_before_xmp_as_in_pillow():
    exif = big_endian_exif(3, b"\0\3") + bytes(4)  # There is no second directory.
    xmp = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>'
    encoded = encode(smooth(8, 12), "JPEG")
    for segments, expected in (([xmp], 6), ([exif], 3), ([xmp, exif], 3), ([exif, xmp], 3)):
        found = encoded
        for segment in segments:
            found = insert(found, 0xE1, segment)
        assert read_header(found).orientation == expected
        assert Image.open(io.BytesIO(found)).getexif()[0x0112] == expected


@pytest.mark.parametrize(("mode", "common"), [("CMYK", False), ("L", True)])
def test_four_colours_are_not_common_and_gray_is(mode, common):
    assert read_header(encode(Image.new(mode, (8, 8)), "JPEG")).common == common


def test_arithmetic_coding_and_twelve_bits_are_not_common():
    encoded = encode(smooth(8, 8), "JPEG")
    frame = encoded.index(b"\xff\xc0")
    arithmetic = encoded[:frame] + b"\xff\xc9" + encoded[frame + 2 :]
    twelve_bits = encoded[: frame + 4] + b"\x0c" + encoded[frame + 5 :]
    assert not read_header(arithmetic).common
    assert not read_header(twelve_bits).common


@needs_library
def test_bytes_that_fill_gaps_are_ignored():
    encoded = encode(smooth(8, 8), "JPEG")
    before_markers = encoded[:2] + b"\xff\xff\xff" + encoded[2:]
    assert read_header(before_markers) == read_header(encoded)
    before_the_end = encoded[:-2] + b"\0" * 7 + encoded[-2:]
    np.testing.assert_array_equal(whole(before_the_end), whole(encoded))


@pytest.mark.parametrize("cut", [1, 2, 100])
def test_a_jpeg_without_its_end_marker_is_incomplete(cut):
    assert not read_header(encode(photo()[:64, :64], "JPEG")[:-cut]).complete


@pytest.mark.parametrize(
    "encoded",
    [b"", b"\xff\xd8", b"\xff\xd8\xff", b"\xff\xd8\xff\xc0\0", b"\xff\xd8 no markers", b"\x89PNG",
     encode(smooth(8, 8), "JPEG")[:100], b"\xff\xd8\xff\xda\0\x02\0\0"],
    ids=["empty", "start", "ff", "cut-frame", "no-marker", "png", "cut-header", "no-frame"],
)  # fmt: skip
def test_a_broken_header_gives_none(encoded):
    assert read_header(encoded) is None


@needs_library
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_a_decoded_part_equals_the_part_of_the_whole_image(subsampling, progressive):
    encoded = encode(
        photo()[:131, :203], "JPEG", subsampling=SUBSAMPLINGS[subsampling], progressive=progressive
    )
    expected = whole(encoded)
    assert expected.shape == (131, 203, 3)
    rng = np.random.default_rng(0)
    boxes = [(0, 0, 1, 1), (202, 130, 203, 131), (16, 16, 32, 32), (15, 15, 17, 17),
             (0, 0, 203, 131)]  # fmt: skip
    for _ in range(60):
        left, right = np.sort(rng.choice(204, 2, replace=False)).tolist()
        top, bottom = np.sort(rng.choice(132, 2, replace=False)).tolist()
        boxes.append((left, top, right, bottom))
    for box in boxes:
        left, top, right, bottom = box
        found = decode_part(encoded, box)
        np.testing.assert_array_equal(found, expected[top:bottom, left:right], str(box))


@needs_library
@pytest.mark.parametrize("shrink", [2, 4, 8])
@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_a_part_of_a_shrunk_image_equals_the_part_of_the_whole_image(subsampling, shrink):
    encoded = encode(photo()[:131, :203], "JPEG", subsampling=SUBSAMPLINGS[subsampling])
    expected = whole(encoded, shrink)
    height, width = -(-131 // shrink), -(-203 // shrink)
    assert expected.shape == (height, width, 3)
    for box in [(3, 2, 11, 9), (width - 1, 0, width, height), (8, 8, 16, 16)]:
        left, top, right, bottom = box
        found = decode_part(encoded, box, shrink)
        np.testing.assert_array_equal(found, expected[top:bottom, left:right])


@needs_library
def test_damaged_image_data_are_an_error_only_if_they_are_needed():
    encoded = encode(photo()[:320, :320], "JPEG")
    at = len(encoded) * 3 // 4
    # A table that is none, an error behind a warning.
    broken = encoded[:at] + b"\xff\xc4" + encoded[at + 2 :]
    with pytest.raises(DamagedJpegError, match="Bogus Huffman table"):
        whole(broken)
    # The upper quarter lies before the damage.
    np.testing.assert_array_equal(decode_part(broken, (0, 0, 320, 80)), whole(encoded)[:80])


@needs_library
def test_threads_can_decode_at_the_same_time():
    images = 20 * [encode(photo()[i * 40 : i * 40 + 160, :160], "JPEG") for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(whole, images))
    np.testing.assert_array_equal(found, [whole(encoded) for encoded in images])


@pytest.fixture
def libraries(monkeypatch):
    """A list to fill with the only libraries that can be found."""
    found = []
    jpeg.library.cache_clear()
    monkeypatch.setattr(jpeg, "_library_candidates", lambda: iter(found))
    monkeypatch.delattr(jpeg._local, "decoder", raising=False)
    yield found
    jpeg.library.cache_clear()


@pytest.mark.parametrize("paths", [[], ["/nowhere/libturbojpeg.so"]])
def test_a_missing_library_is_logged_in_one_line(libraries, caplog, paths):
    libraries += paths
    for _ in range(3):
        with pytest.raises(UnsupportedJpegError, match="no libjpeg-turbo"):
            decode_part(encode(smooth(8, 8), "JPEG"), (0, 0, 8, 8))
    (line,) = caplog.messages
    assert line.startswith("no libjpeg-turbo 3 found: Pillow decodes whole JPEGs")


def test_a_library_older_than_3_is_not_used(libraries):
    libraries.append("libc.so.6")  # Any library without these functions.
    assert jpeg.library() is None
