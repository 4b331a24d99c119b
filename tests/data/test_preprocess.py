"""Preprocessing for a loaded model, from files, arrays and PIL images."""

import dataclasses
import json

import numpy as np
import pytest
from images import encode
from PIL import Image
from weight_files import random_loaded

import vit_jax
from vit_jax.data.decode import decode
from vit_jax.data.preprocess import Preprocess, preprocess_of
from vit_jax.errors import DataError, WeightsError
from vit_jax.interop.load import load
from vit_jax.interop.save import save
from vit_jax.models.family import EvalView

_PIXELS = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)


def test_every_kind_of_image_gives_the_same_batch(tmp_path):
    preprocess = Preprocess((16, 16))
    image = Image.fromarray(_PIXELS)
    image.save(tmp_path / "a.png")
    want = preprocess(_PIXELS)
    assert want.shape == (1, 16, 16, 3)
    assert want.dtype == np.float32
    for given in (image, tmp_path / "a.png", str(tmp_path / "a.png"), _PIXELS[None], [image]):
        np.testing.assert_array_equal(preprocess(given), want)
    both = preprocess([image, _PIXELS[:, ::-1].copy()])
    assert both.shape == (2, 16, 16, 3)
    np.testing.assert_array_equal(both[0], want[0])


def test_values_and_crop_by_hand():
    whole = Preprocess((2, 2), crop="central", central_fraction=0.5)
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[1:3, 3:5] = [[[255, 0, 51]] * 2] * 2  # The central square of half the height.
    np.testing.assert_allclose(whole(pixels), np.tile([1, -1, -0.6], (1, 2, 2, 1)), atol=1e-6)
    own = Preprocess((2, 2), "resize", mean=(0.0, 0.5, 0.2), deviation=(1.0, 0.5, 0.1))
    white = np.full((2, 2, 3), 255, np.uint8)
    np.testing.assert_allclose(own(white)[0, 0, 0], [1, 1, 8], atol=1e-5)


def test_other_modes_and_orientations_follow_the_decoder():
    gray = Image.fromarray(_PIXELS[:32, :32, 0])
    np.testing.assert_array_equal(
        Preprocess((32, 32), "resize")(gray)[0, :, :, 1],
        _PIXELS[:32, :32, 0].astype(np.float32) / np.float32(127.5) - 1,
    )
    turned = Image.fromarray(_PIXELS[:32, :32])
    turned.getexif()[0x0112] = 3  # Upside down.
    flipped = Preprocess((32, 32), "resize")(turned)
    np.testing.assert_array_equal(
        flipped, Preprocess((32, 32), "resize")(_PIXELS[31::-1, 31::-1].copy())
    )
    for mode in ("CMYK", "YCbCr"):
        assert Preprocess((8, 8))(Image.fromarray(_PIXELS).convert(mode)).shape == (1, 8, 8, 3)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I;16B"])
def test_pixels_of_a_pil_image_are_those_of_its_file(mode):
    gray = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)
    if mode.startswith("I;16"):
        image = Image.frombytes(
            mode, (8, 8), gray.astype(">u2" if "B" in mode else "<u2").tobytes()
        )
        expected = np.repeat(gray[..., None] // 256, 3, -1)
    else:
        alpha = np.dstack([_PIXELS[:8, :8], _PIXELS[8:16, :8, 0]])
        image = Image.fromarray(alpha).convert(mode)
        expected = np.asarray(decode(encode(image)))
    np.testing.assert_array_equal(Preprocess((8, 8), "resize")(image)[0],
                                  expected.astype(np.float32) / np.float32(127.5) - 1)  # fmt: skip


@pytest.mark.parametrize("mode", ["I", "F"])
def test_a_pil_image_and_a_file_whose_white_is_unknown_are_refused(mode):
    image = Image.fromarray(np.full((8, 8), 65535, np.int32)).convert(mode)
    for given in (lambda: decode(encode(image, "TIFF")), lambda: Preprocess((8, 8))(image)):
        with pytest.raises(DataError, match=f"mode {mode}: the value of white is unknown"):
            given()


CONFIGS = {"timm": "config.json", "transformers": "preprocessor_config.json"}


def _save_with(folder, format, **changes):
    save(random_loaded(), folder, format)
    path = folder / CONFIGS[format]
    config = json.loads(path.read_text())
    (config["pretrained_cfg"] if format == "timm" else config).update(changes)
    path.write_text(json.dumps(config))
    return load(folder).model


def test_it_follows_what_the_weights_expect(tmp_path):
    model = _save_with(tmp_path / "timm", "timm", crop_pct=1.0, interpolation="bicubic")
    preprocess = vit_jax.preprocess_of(model)
    assert (preprocess.size, preprocess.crop) == ((32, 32), "central")
    assert (preprocess.central_fraction, preprocess.interpolation) == (1.0, "bicubic")
    crop = {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}
    hf = _save_with(tmp_path / "hf", "transformers", do_center_crop=True, resample=3, **crop)
    assert hf.view == EvalView("central", 0.875, interpolation="bicubic")
    new = vit_jax.create_model("ViT-Mini/4", image_size=32)
    assert preprocess_of(new) == Preprocess((32, 32))


@pytest.mark.parametrize("crop", ["central", "resize", "squash_central"])
def test_a_written_processor_resizes_and_crops_as_before(crop, tmp_path):
    """transformers resizes to `size`, without the aspect ratio if it is a height and a width."""
    view = EvalView(crop, 0.8, interpolation="bicubic")
    save(dataclasses.replace(random_loaded(), view=view), tmp_path / "hf", "transformers")
    path = tmp_path / "hf" / "preprocessor_config.json"
    processor = json.loads(path.read_text())
    size = {"central": {"shortest_edge": 40}, "squash_central": {"height": 40, "width": 40}}
    assert processor["size"] == size.get(crop, {"height": 32, "width": 32})
    assert processor.get("do_center_crop", False) == (crop != "resize")
    assert load(tmp_path / "hf").view == view
    del processor["vit_jax_view"]
    path.write_text(json.dumps(processor))
    found = load(tmp_path / "hf").view
    assert (found.crop, found.interpolation) == (crop, "bicubic")
    assert crop == "resize" or found.central_fraction == 0.8


OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
HALF_MEAN, IMAGENET_MEAN = (0.5,) * 3, (0.485, 0.456, 0.406)


@pytest.mark.parametrize(
    ("processor", "view", "mean"),
    [
        ({"image_processor_type": "CLIPImageProcessor"}, ("central", 1.0, "bicubic"), OPENAI_MEAN),
        ({"image_processor_type": "BitImageProcessor", "size": 256},
         ("central", 0.875, "bicubic"), OPENAI_MEAN),
        ({"feature_extractor_type": "DeiTFeatureExtractor"},
         ("squash_central", 0.875, "bicubic"), HALF_MEAN),
        ({"image_processor_type": "SiglipImageProcessorFast"},
         ("resize", 0.875, "bicubic"), HALF_MEAN),
        ({"image_processor_type": "ViTImageProcessor"}, ("resize", 0.875, "bilinear"), HALF_MEAN),
        ({"image_mean": IMAGENET_MEAN, "resample": None},
         ("resize", 0.875, "bilinear"), IMAGENET_MEAN),
        (None, ("resize", 0.875, "bilinear"), HALF_MEAN),
    ],
)  # fmt: skip
@pytest.mark.parametrize("nested", [False, True])
def test_what_a_processor_leaves_out_is_that_of_its_class(processor, view, mean, nested, tmp_path):
    """The defaults of transformers' classes; newer versions nest them in another file."""
    folder = tmp_path / "weights"
    save(random_loaded(), folder, "transformers")
    (folder / "preprocessor_config.json").unlink()
    if processor is not None:
        name = "processor_config.json" if nested else "preprocessor_config.json"
        content = {"image_processor": processor} if nested else processor
        (folder / name).write_text(json.dumps(content))
    found = load(folder)
    assert (found.view.crop, found.view.central_fraction, found.view.interpolation) == view
    folded = found.report.normalization or ((0.5,) * 3, (0.5,) * 3)
    assert folded[0] == pytest.approx(mean)
    assert ("assumed" in found.report.line()) == (processor is None)


def test_what_timm_leaves_out_is_that_of_imagenet(tmp_path):
    folder = tmp_path / "weights"
    save(random_loaded(), folder, "timm")
    config = json.loads((folder / "config.json").read_text())
    for pretrained, view in (
        ({"crop_mode": "squash"}, EvalView("squash_central", 0.875, interpolation="bicubic")),
        ({"crop_pct": 1.0, "crop_mode": "squash"}, EvalView("resize", interpolation="bicubic")),
    ):
        (folder / "config.json").write_text(json.dumps(config | {"pretrained_cfg": pretrained}))
        found = load(folder)
        assert found.view == view
        assert found.report.normalization[0] == pytest.approx(IMAGENET_MEAN)
    del config["pretrained_cfg"]
    (folder / "config.json").write_text(json.dumps(config))
    assert "this is assumed: images in [-1, 1], a central crop" in load(folder).report.line()


@pytest.mark.parametrize(
    ("format", "changes", "words"),
    [
        ("transformers", {"do_resize": False}, "do_resize False"),
        ("transformers", {"do_rescale": False}, "do_rescale False"),
        ("transformers", {"rescale_factor": 1}, "rescale_factor 1;"),
        ("transformers", {"resample": 1}, "resample 1;"),
        ("transformers", {"do_pad": True}, "do_pad True;"),
        ("transformers", {"size": {"longest_edge": 9}}, "longest_edge"),
        ("transformers", {"do_center_crop": False}, "or do_center_crop"),
        ("transformers", {"do_center_crop": True, "crop_size": 256}, "at most the size"),
        ("transformers", {"image_processor_type": "ConvNextImageProcessor"}, "ConvNext"),
        ("timm", {"crop_pct": 1.1}, "crop_pct 1.1"),
        ("timm", {"crop_mode": "border"}, "crop_mode 'border'"),
        ("timm", {"interpolation": "lanczos"}, "interpolation 'lanczos'"),
    ],
)
def test_preprocessing_that_is_not_supported_is_refused(format, changes, words, tmp_path):
    with pytest.raises(WeightsError, match=words):
        _save_with(tmp_path / "model", format, **changes)


def test_bicubic_squash_central_takes_the_middle_of_both_sides():
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[10:30, 20:60] = 255
    found = Preprocess((8, 8), "squash_central", 0.5, "bicubic").pixels(pixels)
    assert (found[1:-1, 1:-1] == 255).all()
    assert Preprocess((8, 8), "central", 1.0, "bicubic").pixels(pixels).min() == 0
