"""A bag of patches on drawn shapes, with the Poly-1 loss and brightness: seconds on a CPU.

python -m vit_jax train --config=recipe.py --workdir=runs/bag
"""

import mylab  # noqa: F401  Registers what the config names.


def get_config():
    """Returns the config."""
    return {
        "model": {"name": "Bag-64/4"},
        "loss": {"name": "poly", "epsilon": 1.0},
        "data": {
            "source": "shapes",
            "shapes": {"side": 24},
            "name": "shapes",
            "image_size": 24,
            "global_batch_size": 50,
            "eval_crop": "resize",
            "augment": {"crop": {"name": "pad", "pixels": 2}, "brightness": {"max_change": 0.2}},
        },
        "optimizer": {"learning_rate": 1e-2, "schedule": {"warmup_steps": 20}},
        "train_steps": 200,
        "evaluation": {"splits": {"test": "test"}, "metrics": ["worst_class"]},
    }
