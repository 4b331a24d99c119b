"""Weights out: bit-equal round trips, and the other projects' own code loads what we write."""

import ast
import dataclasses
import re

import jax
import numpy as np
import pytest
from interop.files import assert_same_params, intermediates, params, run_reference
from random_models import run
from weight_files import random_loaded, random_weights

from vit_jax.errors import WeightsError
from vit_jax.interop.formats import all_formats
from vit_jax.interop.load import load
from vit_jax.interop.save import new_path, save
from vit_jax.storage.paths import user_path

IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)).astype(np.float32)


MIXER = {"depth": 2, "width": 24, "token_mlp_dim": 5, "channel_mlp_dim": 12}
ROUND_TRIPS = [
    ("vision_transformer", "ViT-Ti/8", {}),
    ("vision_transformer", "ViT-Ti/8", {"representation_size": 12}),
    ("vision_transformer", "ViT-Ti/8", {"pooling": "map"}),
    ("vision_transformer", "ViT-Ti/8", {"pooling": "gap"}),
    ("vision_transformer", "R+ViT-Ti/16", {}),
    ("transformers", "ViT-Ti/8", {}),
    ("transformers", "ViT-Ti/8", {"gelu_approximate": False, "norm_epsilon": 1e-12}),
    ("transformers", "ViT-Ti/8", {"qkv_bias": False}),
    ("timm", "ViT-Ti/8", {}),
    ("timm", "ViT-Ti/8", {"gelu_approximate": False, "layer_scale": 1e-5}),
    ("timm", "ViT-Ti/8", {"pooling": "gap", "class_token": True}),
    ("timm", "ViT-Ti/8", {"pooling": "map"}),
    ("vision_transformer", "Mixer-S/8", MIXER),
    ("orbax", "Mixer-S/8", {"depth": 2, "token_mlp_dim": 5}),
    pytest.param("big_transfer", "BiT-R26x1", {}, marks=pytest.mark.slow),
    ("orbax", "BiT-R-Nano", {}),
    ("orbax", "ViT-Ti/8", {"position_embedding": "rope_2d", "mlp": "swiglu", "num_registers": 2}),
    ("orbax", "ViT-Ti/8", {"qk_norm": True, "depth": 2}),
]


@pytest.mark.parametrize(("format", "name", "options"), ROUND_TRIPS)
def test_a_round_trip_is_bit_exact(tmp_path, format, name, options):
    ours = random_loaded(name, **options)
    npz = format in ("vision_transformer", "big_transfer")
    there = tmp_path / ("there.npz" if npz else "there")
    save(ours, there, format)
    back = load(there)
    assert back.options == ours.options
    assert_same_params(params(back.model), params(ours.model))


def test_every_format_has_a_round_trip_test():
    names = {format.name for format in all_formats()} | {"orbax"}
    found = {getattr(case, "values", case)[0] for case in ROUND_TRIPS}
    assert found == names


@pytest.mark.parametrize("kind", ["sincos_2d", "sincos_2d_mae", "learned_2d"])
def test_other_position_embeddings_are_written_as_an_equal_learned_table(tmp_path, kind):
    ours = random_loaded(position_embedding=kind)
    save(ours, tmp_path / "there", "transformers")
    back = load(tmp_path / "there")
    assert back.options.position_embedding == "learned_1d"
    table, learned = ours.model.position_embedding, back.model.position_embedding
    np.testing.assert_array_equal(run(learned, 17), run(table, 17))
    found, want = params(back.model), params(ours.model)
    same = [name for name in want if not name.startswith("position_embedding")]
    assert_same_params({n: found[n] for n in same}, {n: want[n] for n in same})


def test_in_timm_registers_have_no_position_and_the_class_token_includes_its_own(tmp_path):
    ours = random_loaded(num_registers=3)
    save(ours, tmp_path / "there", "timm")
    back = load(tmp_path / "there")
    found, want = (intermediates(m.model, IMAGES, "embedded")["embedded"] for m in (back, ours))
    np.testing.assert_allclose(found, want, atol=1e-6)


def test_a_rectangular_grid_survives_the_round_trip(tmp_path):
    ours = random_loaded(image_size=(16, 48))
    for format in ("timm", "orbax"):
        save(ours, tmp_path / format, format)
        back = load(tmp_path / format)
        assert (back.image_size, back.model.grid) == ((16, 48), (2, 6))
        assert_same_params(params(back.model), params(ours.model))


@pytest.mark.parametrize(
    ("format", "name", "options", "match"),
    [
        ("timm", "BiT-R-Nano", {}, "BiT-R-Nano in format timm; expected big_transfer or orbax"),
        ("big_transfer", "BiT-R26x1", {"pooling": "flatten"}, "pooling = 'flatten'"),
        ("vision_transformer", "ViT-Ti/8", {"gelu_approximate": False}, "gelu_approximate = False"),
        ("vision_transformer", "ViT-Ti/8", {"num_registers": 1}, "'registers', which .* no name"),
        ("vision_transformer", "ViT-Ti/8", {"qkv_bias": False}, "qkv_bias = False"),
        ("vision_transformer", "ViT-Ti/8", {"pooling": "flatten"}, "pooling = 'flatten'"),
        ("vision_transformer", "ViT-Ti/8", {"pooling": "gap", "class_token": True}, "class_token"),
        ("vision_transformer", "R+ViT-Nano/4", {}, "stem is for small images"),
        ("transformers", "ViT-Ti/8", {"pooling": "gap"}, "pooling = 'gap'.*format orbax"),
        ("transformers", "ViT-Ti/8", {"representation_size": 8}, "a tanh layer before the head"),
        (
            "timm",
            "ViT-Ti/8",
            {"pooling": "gap", "norm_after_pooling": True},
            "norm_after_pooling",
        ),
        ("timm", "ViT-Ti/8", {"norm_epsilon": 1e-5}, "norm_epsilon = 1e-05"),
        ("timm", "ViT-Ti/8", {"position_embedding": "rope_2d"}, "position_embedding = 'rope_2d'"),
        ("timm", "ViT-Ti/8", {"qk_norm": True}, "which has no name in that format"),
        ("vision_transformer", "ViT-Ti/8", {"norm_placement": "post"}, "norm_placement = 'post'"),
        ("transformers", "ViT-Ti/8", {"norm_placement": "res_post"}, "placement = 'res_post'"),
        ("timm", "ViT-Ti/8", {"norm_placement": "res_post"}, "norm_placement = 'res_post'"),
    ],
)  # fmt: skip
def test_a_model_that_a_format_cannot_hold_is_refused_and_nothing_is_written(
    tmp_path, format, name, options, match
):
    ours = random_loaded(name, **options)
    (tmp_path / "out").mkdir()
    with pytest.raises(WeightsError, match=match):
        save(ours, tmp_path / "out" / "there.npz", format)
    assert list((tmp_path / "out").iterdir()) == []


def test_files_left_by_a_killed_process_are_replaced(tmp_path):
    ours = random_loaded()
    (tmp_path / ".there.part").mkdir()
    (tmp_path / ".there.part" / "config.json").write_text("half")
    save(ours, tmp_path / "there", "timm")
    assert not (tmp_path / ".there.part").exists()


def test_written_weights_are_readable_by_other_users(tmp_path):
    ours = random_loaded()
    save(ours, tmp_path / "there", "timm")
    weights, config = (tmp_path / "there" / n for n in ("model.safetensors", "config.json"))
    assert weights.stat().st_mode == config.stat().st_mode


_TRANSFORMERS = """
import sys, numpy as np, torch, transformers
model, info = transformers.AutoModelForImageClassification.from_pretrained(
    sys.argv[1], output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"], info
images = torch.from_numpy(np.load(sys.argv[2])).permute(0, 3, 1, 2)
with torch.no_grad():
    np.save(sys.argv[3], model.eval()(images).logits.numpy())
"""
_TIMM = """
import sys, numpy as np
from experiments.speed.import_timm import import_timm
timm = import_timm()
import torch
model = timm.create_model(f"local-dir:{sys.argv[1]}", pretrained=True)
images = torch.from_numpy(np.load(sys.argv[2])).permute(0, 3, 1, 2)
with torch.no_grad():
    np.save(sys.argv[3], model.eval()(images).numpy())
"""


@pytest.mark.interop
@pytest.mark.parametrize(
    ("format", "script", "options"),
    [
        ("transformers", _TRANSFORMERS, {}),
        ("transformers", _TRANSFORMERS, {"gelu_approximate": False, "norm_epsilon": 1e-12}),
        ("transformers", _TRANSFORMERS, {"qkv_bias": False}),
        ("timm", _TIMM, {}),
        ("timm", _TIMM, {"gelu_approximate": False, "layer_scale": 1e-5}),
        ("timm", _TIMM, {"pooling": "gap", "class_token": True, "num_registers": 2}),
        ("timm", _TIMM, {"pooling": "gap", "position_embedding": "sincos_2d"}),
        ("timm", _TIMM, {"pooling": "map", "gelu_approximate": False}),
    ],
)
def test_the_reference_library_loads_it_and_gives_equal_logits(tmp_path, format, script, options):
    ours = random_loaded(**options)
    there, images, logits = (tmp_path / name for name in ("there", "images.npy", "logits.npy"))
    save(ours, there, format)
    np.save(images, IMAGES)
    run_reference(format, script, there, images, logits)
    want = np.load(logits)
    with jax.default_matmul_precision("highest"):
        got = np.asarray(ours.model(IMAGES))
    assert np.abs(want).max() > 0.1
    np.testing.assert_allclose(got, want, atol=1e-4 * max(1, np.abs(want).max()), rtol=0)


def test_an_npz_file_keeps_the_image_size_that_no_tensor_tells(tmp_path):
    ours = random_loaded(pooling="gap", position_embedding="sincos_2d")
    save(ours, tmp_path / "there.npz", "vision_transformer")
    assert load(tmp_path / "there.npz").image_size == (32, 32)
    with np.load(tmp_path / "there.npz") as file:  # Other readers see the tensors only.
        assert all(file[name].dtype == np.float32 for name in file.files)


def test_classes_without_names_have_none_after_transformers(tmp_path):
    save(dataclasses.replace(random_loaded(), class_names=None), tmp_path / "there", "transformers")
    assert load(tmp_path / "there").class_names is None


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("transformers", {"pooling": "gap"}),
        ("vision_transformer", {"norm_epsilon": 1e-5}),
        ("vision_transformer", {"gelu_approximate": False}),
    ],
)
def test_the_advice_for_an_option_that_a_format_cannot_hold_works(tmp_path, format, options):
    source, end = tmp_path / "ours", ".npz" if format == "vision_transformer" else ""
    random_weights(source, **options)
    with pytest.raises(WeightsError) as caught:
        save(load(source), tmp_path / f"there{end}", format)
    assert "use format orbax" in caught.value.fix
    save(load(source), tmp_path / "other", "orbax")
    changed = re.search(r"convert with --model\.(\S+),", caught.value.fix)
    is_free = next(iter(options)) in ("norm_epsilon", "gelu_approximate")
    assert (changed is not None) == is_free  # Other options would change the parameters.
    if changed is not None:
        key, _, value = changed[1].partition("=")
        save(load(source, **{key: ast.literal_eval(value)}), tmp_path / f"there{end}", format)


def test_an_export_to_a_bucket_that_fails_leaves_nothing(bucket):
    path = user_path(f"{bucket.url}/out")
    bucket.server.faults(read_only=True, only="write .*/out/model.json")

    def export():
        with new_path(path) as local:
            (local / "params").mkdir(parents=True)
            (local / "params" / "x").write_text("1")
            (local / "model.json").write_text("{}")

    with pytest.raises(WeightsError, match="expected a writable bucket") as caught:
        export()
    assert caught.value.got.startswith(f"cannot write {path}: ")
    bucket.server.faults()
    assert path.find() == []
    export()
    assert (path / "params" / "x").read_text() == "1"
