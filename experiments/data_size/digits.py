"""ViT against ResNet on 50 to 1,149 handwritten digits. See docs/tutorials/vit-and-resnet.md."""

from vit_jax.sweep import Selection, vary

SETTINGS = {
    "data.name": "digits",
    "data.image_size": 16,
    "data.augment.flip": False,
    "data.train_split": "train[:80%]",
    "evaluation.splits": {"dev": "train[80%:]"},
    "model.pooling": "flatten",
    "train_examples": 30_000,
}
REPORT = {
    "question": "Which needs fewer images: a ViT or a ResNet?",
    "tables": [{"rows": "model", "columns": "train_examples", "metric": "eval/test/accuracy_top1"}],
    "plots": [{"x": "train_examples", "y": "eval/test/accuracy_top1", "log_x": True}],
}


def get_sweep():
    """Returns the jobs."""
    for images in (50, 200, 1149):
        for name, model in {"vit": "ViT-Pico/4", "resnet": "BiT-R-Pico"}.items():
            config = f"configs/cifar10_small.py:{model}"
            settings = {**SETTINGS, "data.subset.examples": images}
            rates = vary("optimizer.learning_rate", [3e-3, 1e-2, 3e-2, 1e-1])
            yield Selection(
                f"{images}/{name}",
                [(config, {**settings, **rate}) for rate in rates],
                "eval/dev/accuracy_top1",
                final_overrides={"evaluation.splits": {"test": "test"}},
            )
