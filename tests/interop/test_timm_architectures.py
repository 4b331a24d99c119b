"""Every ViT of timm is loaded with equal logits, or refused by name: one block, random weights."""

import json
import sys
from pathlib import Path

import pytest
from interop.files import run_reference

pytestmark = [pytest.mark.interop, pytest.mark.slow]
MODULES = ("vision_transformer", "deit", "eva", "beit", "vision_transformer_hybrid",
           "vision_transformer_relpos")  # fmt: skip


def test_no_architecture_is_silently_wrong(tmp_path):
    printed = run_reference("timm", Path(__file__).read_text(encoding="utf-8"), tmp_path)
    found = [json.loads(line) for line in printed.splitlines()]
    wrong = [row for row in found if isinstance(row["found"], float) and row["found"] > 2e-4]
    assert not wrong
    assert sum(isinstance(row["found"], float) for row in found) >= EQUAL


EQUAL = 159


def main(folder):
    """Prints {"name", "found"} of each: the largest difference of the logits, or the error."""
    from experiments.speed.import_timm import import_timm

    timm = import_timm()
    names = [name for module in MODULES for name in timm.list_models(module=module)]
    for name in dict.fromkeys(names):
        made = make(timm, name)
        if made is not None:
            print(json.dumps({"name": name, "found": compared(*made, folder)}), flush=True)


def make(timm, name):
    """Returns a model of one block with random weights, and its image size; None: timm cannot."""
    import torch

    torch.manual_seed(0)
    try:
        model = timm.create_model(name, num_classes=5, depth=1)
        side = 4 * model.patch_embed.patch_size[0]
        model = timm.create_model(name, num_classes=5, depth=1, img_size=side).eval()
    except (TypeError, AttributeError, AssertionError, RuntimeError):
        return None
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape)
            fan = parameter[0].numel() if parameter.ndim in (2, 4) else 10
            parameter.copy_(noise / fan**0.5 + (parameter if parameter.ndim == 1 else 0))
    return model, side


def compared(model, side, folder):
    import numpy as np
    import torch
    from timm.models._hub import save_for_hf

    from vit_jax.errors import UserError
    from vit_jax.interop.load import load

    pixels = np.random.default_rng(0).integers(0, 256, (2, side, side, 3), np.uint8)
    mean, std = (np.array(model.pretrained_cfg[key], np.float32) for key in ("mean", "std"))
    inputs = torch.from_numpy((pixels / np.float32(255) - mean) / std).permute(0, 3, 1, 2)
    with torch.no_grad():
        want = model(inputs).numpy()
    save_for_hf(model, folder, safe_serialization=True)
    try:
        logits = load(folder, image_size=side).model(pixels.astype(np.float32) / 127.5 - 1)
    except UserError as error:
        return str(error)
    return float(np.abs(np.asarray(logits) - want).max() / max(1.0, np.abs(want).max()))


if __name__ == "__main__":
    main(sys.argv[1])
