"""Small models with random weights, in memory and on disk."""

import functools

import jax
import numpy as np
from flax import nnx
from random_models import random_model

from vit_jax.interop.load import Loaded
from vit_jax.interop.report import LoadReport
from vit_jax.interop.save import save
from vit_jax.models.family import EvalView
from vit_jax.models.registry import model_options

TINY = {"width": 24, "depth": 2, "mlp_dim": 36, "num_heads": 3}


@functools.cache
def random_loaded(
    name="ViT-Ti/8", *, num_classes=5, image_size=(32, 32), class_names=None, **options
) -> Loaded:
    """Returns a model whose every parameter is random; the same one for the same arguments."""
    options = {**(TINY if name.startswith("ViT-Ti") else {}), **options}
    model = random_model(name, num_classes=num_classes, image_size=image_size, **options)
    graphdef, state = nnx.split(model)
    params = jax.tree.map(lambda p: 0.4 * p, nnx.to_pure_dict(state))
    return Loaded(
        model=nnx.merge(graphdef, params),
        options=model_options(name, **options),
        num_classes=num_classes,
        image_size=image_size,
        class_names=class_names or tuple(f"thing {i}" for i in range(num_classes)),
        view=EvalView(),
        report=LoadReport("memory", "vit_jax", name, 0),
    )


def random_weights(path, name="ViT-Ti/8", **options) -> Loaded:
    """Writes a random model in the format `orbax` and returns it."""
    loaded = random_loaded(name, **options)
    save(loaded, path, "orbax")
    return loaded


def parameters(loaded):
    """Returns the parameters as nested dicts of NumPy arrays."""
    return jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(loaded.model)))
