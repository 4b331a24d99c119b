"""Feature maps equal those of timm's `forward_intermediates`."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from golden.recipe import images
from interop.files import run_reference
from random_models import random_model
from weight_files import random_loaded

from vit_jax.interop.load import load
from vit_jax.interop.save import save
from vit_jax.models.registry import model_options

_TIMM = """
import json, sys, numpy as np
from experiments.speed.import_timm import import_timm
timm = import_timm()
import torch
folder, name, layers = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
if name.startswith("local-dir:"):
    model = timm.create_model(name, pretrained=True).eval()
else:
    model = timm.create_model(name, num_classes=5).eval()
    model.load_pretrained(f"{folder}/there.npz")
    # As in big_vision's code for these files, and ours. timm pads with 0, as big_transfer did.
    model.stem.pad = torch.nn.ConstantPad2d(1, float("-inf"))
images = torch.from_numpy(np.load(f"{folder}/images.npy")).permute(0, 3, 1, 2)
more = {} if model.__class__.__name__ == "ResNetV2" else {"return_prefix_tokens": True}
found = {}
with torch.no_grad():
    for norm in (False, True):
        maps = model.forward_intermediates(
            images, indices=layers, norm=norm, stop_early=True, intermediates_only=True, **more
        )
        for layer, x in zip(layers, maps):
            x, prefix = x if isinstance(x, tuple) else (x, None)
            found[f"{layer} {norm}"] = x.permute(0, 2, 3, 1).numpy()
            if prefix is not None:
                found[f"{layer} {norm} prefix"] = prefix.numpy()
np.savez(f"{folder}/maps.npz", **found)
"""


def _timm_maps(folder, name, layers, x):
    np.save(folder / "images.npy", x)
    run_reference("timm", _TIMM, folder, name, json.dumps(layers))
    return np.load(folder / "maps.npz")


def _assert_close(got, want):
    assert np.abs(want).max() > 0.1
    np.testing.assert_allclose(got, want, atol=1e-4 * max(1, np.abs(want).max()), rtol=0)


@pytest.mark.interop
@pytest.mark.parametrize("registers", [0, 2])
def test_features_of_a_vit_equal_those_of_timm(tmp_path, registers):
    ours = random_loaded(num_registers=registers, gelu_approximate=False)
    save(ours, tmp_path / "there", "timm")
    model, x = load(tmp_path / "there").model, images(ours.image_size[0])
    depth = model.num_layers
    want = _timm_maps(tmp_path, f"local-dir:{tmp_path / 'there'}", list(range(depth)), x)
    layers = range(1, depth + 1)  # timm counts blocks from 0.
    for normalise in (False, True):
        with jax.default_matmul_precision("highest"):
            found = model.features(x, layers, normalise=normalise, prefix=True)
        for layer, (patches, tokens) in zip(layers, found, strict=True):
            _assert_close(patches, want[f"{layer - 1} {normalise}"])
            _assert_close(tokens, want[f"{layer - 1} {normalise} prefix"])


@pytest.mark.interop
def test_features_of_a_bit_resnet_equal_those_of_timm(tmp_path):
    model = random_model("BiT-R50x1", num_classes=5, image_size=64)
    about = {"options": model_options("BiT-R50x1"), "image_size": (64, 64), "class_names": None}
    loaded = dataclasses.replace(random_loaded(), model=model, **about)
    save(loaded, tmp_path / "there.npz", "big_transfer")
    x = images(64)
    want = _timm_maps(tmp_path, "resnetv2_50x1_bit", [1, 2, 3, 4], x)
    for normalise in (False, True):
        with jax.default_matmul_precision("highest"):
            found = model.features(x, (1, 2, 3, 4), normalise=normalise)
        for layer, got in zip((1, 2, 3, 4), found, strict=True):
            _assert_close(got, want[f"{layer} {normalise}"])
