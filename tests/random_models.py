"""Models whose every parameter is random, so that nothing hides behind those that start at zero."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.models.registry import build_model, model_options


def randomize(build, seed=0):
    """Returns the module that `build()` makes, every parameter drawn anew from N(0, 0.5^2)."""
    graphdef, state = nnx.split(nnx.eval_shape(build))
    leaves, treedef = jax.tree.flatten(nnx.to_pure_dict(state))
    rng = np.random.default_rng(seed)
    leaves = [jnp.asarray(0.5 * rng.standard_normal(x.shape), jnp.float32) for x in leaves]
    return nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))


def random_model(name, *, num_classes=5, image_size=16, seed=0, **options):
    """Returns a model of the registry with random parameters."""
    config = model_options(name, **options)
    sizes = {"num_classes": num_classes, "image_size": image_size}
    return randomize(lambda: build_model(config, key=jax.random.key(0), **sizes), seed)


def random_images(batch=2, size=16, seed=1):
    """Returns images in [-1, 1]; `size` is a side, or (height, width)."""
    sides = (size, size) if isinstance(size, int) else size
    return np.random.default_rng(seed).uniform(-1, 1, (batch, *sides, 3)).astype(np.float32)


def params64(model):
    """Returns the parameters as nested dicts of float64 arrays."""
    pure = nnx.to_pure_dict(nnx.state(model))
    return jax.tree.map(lambda x: np.asarray(x, np.float64), pure)


def run(module, x, **options):
    """Returns module(x, **options), compiled as a whole."""
    graphdef, params = nnx.split(module)

    def call(params):
        return nnx.merge(graphdef, params)(x, **options)

    return jax.jit(call)(nnx.to_pure_dict(params))


def value_and_grad(model, images, key=None):
    """Returns a loss, in which each class weighs differently, and its gradient."""
    graphdef, params = nnx.split(model)

    def total(params):
        logits = nnx.merge(graphdef, params)(images, key=key)
        return jnp.sum(jnp.square(logits) * jnp.arange(1.0, 1 + logits.shape[1])[None])

    step = jax.jit(jax.value_and_grad(total))
    return step(nnx.to_pure_dict(params))


def assert_equal_training(models, images, key=None):
    """Loss and gradient of all models are the same, to 1e-4 of each parameter's largest."""
    (want_loss, want_grads), *others = (value_and_grad(m, images, key) for m in models)

    def compare(path, want, got):
        atol = 1e-4 * float(np.abs(want).max())
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=atol, err_msg=str(path))

    for loss, grads in others:
        np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
        jax.tree_util.tree_map_with_path(compare, want_grads, grads)


def assert_every_parameter_gets_a_gradient(model, images):
    """So does each layer of a stack."""
    for path, grad in jax.tree_util.tree_leaves_with_path(value_and_grad(model, images)[1]):
        names = [entry.key for entry in path]
        assert np.isfinite(grad).all(), names
        for layer in np.asarray(grad if "blocks" in names else grad[None]):
            assert np.abs(layer).max() > 1e-9, names
