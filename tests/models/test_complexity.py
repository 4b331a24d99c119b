import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.models.complexity import KINDS, Cost, Layer, comparable_layers, count
from vit_jax.models.flops import count_macs
from vit_jax.models.registry import model_options

GRIDS = [((14, 14), 1, 768), ((3, 2), 3, 64), ((1, 1), 0, 16)]


@pytest.mark.parametrize(("grid", "prefix", "d"), GRIDS)
def test_costs_equal_the_formulas(grid, prefix, d):
    g = grid[0] * grid[1]
    n = g + prefix
    found = [count(Layer(kind, d, 4, grid, prefix)) for kind in KINDS]
    assert found == [
        Cost(4 * d * d + 4 * d, 4 * n * d * d + 2 * n * n * d, 1, 1),
        Cost(9 * d * d + d, 9 * g * d * d, 1, max(1, max(grid) - 1)),
        Cost(3 * d * d + d, 3 * n * d * d, 1, max(1, n - 1)),
        Cost(2 * d * d + d, 2 * n * d * d, n, n),
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("grid", "prefix"), [((3, 4), 1), ((5, 2), 0)])
def test_path_lengths_equal_those_in_the_jacobian(kind, grid, prefix):
    """Paths are computed from powers of the dependency matrix, for a recurrence cell by cell."""
    layer = Layer(kind, 4, 2, grid, prefix)
    graphdef, state = nnx.split(kind.build(layer, nnx.Rngs(0)))
    params = nnx.to_pure_dict(state)
    x = jax.random.normal(jax.random.key(3), (1, layer.tokens, 4))
    whole = depends(lambda x: kind.apply(layer, nnx.merge(graphdef, params), x), x)
    if kind.is_sequential:
        # A token depends on those before it, through as many cells as lie between, and its own.
        i, j = np.indices(whole.shape)
        assert (whole == (j <= i)).all()
        paths = np.where(j <= i, i - j + 1, 0)
    else:
        paths, reached = np.zeros(whole.shape, int), np.eye(layer.tokens, dtype=bool)
        for length in range(1, layer.tokens + 1):
            reached = whole @ reached
            paths = np.where(reached & (paths == 0), length, paths)
    assert paths.max() == kind.path(layer)


def depends(function, x):
    """Whether output token i has any derivative by input token j, bool[N, N]."""
    jacobian = jax.jit(jax.jacobian(function))(x)[0, :, :, 0]  # i, features, j, features
    return np.asarray((jacobian != 0).any((1, 3)))


def test_macs_of_conditions_loops_and_groups_are_counted():
    a = jnp.ones((2, 3))

    def loop(x):
        return jax.lax.fori_loop(0, 5, lambda i, x: x @ x, x)

    def branch(x):
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ x.T @ x, lambda x: x + 1.0, x)

    def endless(x):
        return jax.lax.while_loop(lambda x: x[0, 0] < 9, lambda x: x @ x, x)

    def grouped(x):
        return jax.lax.conv_general_dilated(
            x,
            jnp.ones((3, 2, 8)),
            (1,),
            "SAME",
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=2,
        )

    def macs(function, x):
        return count_macs(jax.make_jaxpr(function)(x).jaxpr)

    square = jnp.ones((3, 3))
    assert macs(loop, square) == 5 * 27
    assert macs(branch, a) == 2 * 3 * 2 * 2
    assert macs(grouped, jnp.ones((1, 7, 4))) == 7 * 8 * 3 * 2
    assert macs(lambda x: x * x + x.sum(), a) == 0
    with pytest.raises(ValueError, match="while loop"):
        macs(endless, square)


def test_layers_have_the_model_s_sizes():
    for layer in comparable_layers(model_options("ViT-S/16", num_registers=4), 64):
        assert (layer.width, layer.num_heads, layer.grid, layer.num_prefix) == (384, 6, (4, 4), 5)
    (attention, grid, *_) = comparable_layers(model_options("R50+ViT-B/32", pooling="gap"), 224)
    assert (attention.tokens, grid.tokens, attention.width) == (49, 49, 768)
