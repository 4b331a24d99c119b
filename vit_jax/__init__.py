"""Vision Transformers in JAX: pretrain, fine-tune, compare and analyse."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit_jax.classify import Prediction, predict
    from vit_jax.config.data import register_source
    from vit_jax.config.hooks import register_hook
    from vit_jax.data.augment import register_augmentation
    from vit_jax.data.preprocess import Preprocess, preprocess, preprocess_of
    from vit_jax.data.tokenizers import load_tokenizer
    from vit_jax.errors import UserError
    from vit_jax.evaluation.metrics import register_metric
    from vit_jax.interop.load import load_pretrained
    from vit_jax.interop.save import save_pretrained
    from vit_jax.losses import register_loss
    from vit_jax.models.family import ImageModel
    from vit_jax.models.image_families import register_family
    from vit_jax.models.registry import create_model, list_models
    from vit_jax.runs import LoadedRun, fit, load_run
    from vit_jax.tasks.task import register_task
    from vit_jax.train.optimizers import register_optimizer

__version__ = "0.1.0"

# Imported on first use, so that `import vit_jax` is fast.
_PUBLIC = {
    "ImageModel": "vit_jax.models.family",
    "LoadedRun": "vit_jax.runs",
    "create_model": "vit_jax.models.registry",
    "fit": "vit_jax.runs",
    "list_models": "vit_jax.models.registry",
    "load_pretrained": "vit_jax.interop.load",
    "load_run": "vit_jax.runs",
    "load_tokenizer": "vit_jax.data.tokenizers",
    "predict": "vit_jax.classify",
    "Prediction": "vit_jax.classify",
    "Preprocess": "vit_jax.data.preprocess",
    "preprocess": "vit_jax.data.preprocess",
    "preprocess_of": "vit_jax.data.preprocess",
    "register_augmentation": "vit_jax.data.augment",
    "register_family": "vit_jax.models.image_families",
    "register_hook": "vit_jax.config.hooks",
    "register_loss": "vit_jax.losses",
    "register_metric": "vit_jax.evaluation.metrics",
    "register_optimizer": "vit_jax.train.optimizers",
    "register_source": "vit_jax.config.data",
    "register_task": "vit_jax.tasks.task",
    "save_pretrained": "vit_jax.interop.save",
    "UserError": "vit_jax.errors",
}

__all__ = [
    "ImageModel",
    "LoadedRun",
    "Prediction",
    "Preprocess",
    "UserError",
    "__version__",
    "create_model",
    "fit",
    "list_models",
    "load_pretrained",
    "load_run",
    "load_tokenizer",
    "predict",
    "preprocess",
    "preprocess_of",
    "register_augmentation",
    "register_family",
    "register_hook",
    "register_loss",
    "register_metric",
    "register_optimizer",
    "register_source",
    "register_task",
    "save_pretrained",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'vit_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
