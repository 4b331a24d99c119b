"""A run of seconds with all state that must survive a resume: Adam, EMA, dropout, mixing.

`tiny.py:unmixed` does not mix images: its step compiles in a third of the time.
"""


def get_config(variant="mixed"):
    mix = {"mix": {"mixup_alpha": 0.2}} if variant == "mixed" else {}
    return {
        "seed": 3,
        "model": {
            "name": "ViT-Ti/4",
            "width": 16,
            "depth": 1,
            "mlp_dim": 32,
            "num_heads": 2,
            "dropout": 0.1,
            "stochastic_depth": 0.1,
        },
        "data": {
            "name": "digits",
            "image_size": 8,
            "global_batch_size": 32,
            "eval_crop": "resize",
            "augment": {"crop": {"name": "pad", "pixels": 1}, "flip": True, **mix},
        },
        "optimizer": {
            "learning_rate": 1e-3,
            "weight_decay": 0.1,
            "clip_global_norm": 1.0,
            "schedule": {"warmup_steps": 20},
        },
        "ema_decay": 0.9,
        "train_steps": 240,
        "evaluation": {"splits": {"test": "test"}, "interval_steps": 100},
        "checkpoint": {"interval_steps": 10, "keep_last": 2},
        "logging": {
            "interval_steps": 1,
            "tensorboard": False,
            "curves": False,
            "example_ids": "hash",
        },
    }
