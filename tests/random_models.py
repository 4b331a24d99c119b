"""Models with random values in all parameters, so that none is hidden by one that is zero."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.models.registry import build_model, model_options
from vit_jax.named_tree import named_leaves


def randomize(build, seed=0):
    """Returns the module that `build()` makes, with all parameters drawn from N(0, 0.5^2)."""
    return _fill(*nnx.split(nnx.eval_shape(build)), seed)


def _fill(graphdef, state, seed):
    leaves, treedef = jax.tree.flatten(nnx.to_pure_dict(state))
    rng = np.random.default_rng(seed)
    leaves = [jnp.asarray(0.5 * rng.standard_normal(x.shape), jnp.float32) for x in leaves]
    return nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))


def random_model(name, *, num_classes=5, image_size=16, seed=0, **options):
    """Returns a model of the registry with random parameters."""
    return _fill(*_parts(model_options(name, **options), num_classes, image_size), seed)


@functools.cache
def _parts(config, num_classes, image_size):
    """Graph and shapes of a model, traced once for equal arguments."""
    sizes = {"num_classes": num_classes, "image_size": image_size}
    return nnx.split(nnx.eval_shape(lambda: build_model(config, key=jax.random.key(0), **sizes)))


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
    """Returns a loss in which each class has another weight, and its gradient."""
    graphdef, params = nnx.split(model)

    def total(params):
        logits = nnx.merge(graphdef, params)(images, key=key)
        return jnp.sum(jnp.square(logits) * jnp.arange(1.0, 1 + logits.shape[1])[None])

    step = jax.jit(jax.value_and_grad(total))
    return step(nnx.to_pure_dict(params))


def assert_equal_training(models, images, key=None):
    """Checks that loss and gradients of all models agree, to 1e-4 of each largest gradient."""
    (want_loss, want_grads), *others = (value_and_grad(m, images, key) for m in models)

    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(want_grads))

    def compare(path, want, got):
        # A gradient that is zero in exact arithmetic is rounding noise.
        atol = max(1e-4 * float(np.abs(want).max()), 1e-6 * largest)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=atol, err_msg=str(path))

    for loss, grads in others:
        np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
        jax.tree_util.tree_map_with_path(compare, want_grads, grads)


def assert_every_parameter_gets_a_gradient(model, images, zero=()):
    """Checks every layer of every stack too.

    Args:
        model: any model.
        images: its input.
        zero: names of parameters whose gradient is zero in exact arithmetic.
    """
    gradients = named_leaves(value_and_grad(model, images)[1])
    largest = max(float(np.abs(gradient).max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        assert np.isfinite(gradient).all(), name
        for layer in np.asarray(gradient if "blocks/" in name else gradient[None]):
            assert (np.abs(layer).max() > 1e-7 * largest) == (name not in zero), name
