from pathlib import Path

import pytest

import vit_jax

RECIPE = Path(__file__).resolve().parents[2] / "configs/deit3.py"


@pytest.mark.slow
def test_deit3_learns_the_digits(tmp_path, digits_dir):
    """91 % after 3,000 steps. With LAMB's ratio on all parameters and a head of zeros: 15 %."""
    model = {"width": 32, "depth": 2, "mlp_dim": 64, "num_heads": 2, "stochastic_depth": 0.0}
    augment = {"crop": "pad", "pad_pixels": 1, "flip": False, "color_jitter": 0.0, "repeats": 1}
    augment |= {"three_augment": False}
    data = {"name": "digits", "data_dir": str(digits_dir), "image_size": 8, "eval_crop": "resize"}
    run = vit_jax.fit(
        f"{RECIPE}:B/16",
        tmp_path / "run",
        {
            "model.name": "ViT-Ti/2",
            **{f"model.{key}": value for key, value in model.items()},
            "model.dtype": "float32",
            **{f"data.augment.{key}": value for key, value in augment.items()},
            **{f"data.{key}": value for key, value in data.items()},
            "data.global_batch_size": 128,
            "mixing": {},
            "train_epochs": None,
            "train_steps": 3000,
            "evaluation": {"splits": {"test": "test"}},
            "checkpoint": {"interval_steps": 3000},
        },
    )
    assert run.result["eval/test/accuracy_top1"] > 0.85
