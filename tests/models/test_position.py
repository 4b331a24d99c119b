import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from random_models import run

from vit_jax.models.embedding import TableSpec, build_table, sincos_2d, sincos_2d_mae
from vit_jax.models.position import rope_2d, rotate


def test_sincos_by_hand():
    """Width 8: two frequencies, 1 and 1/10000; patch (row 1, column 2) of a 2 x 3 grid."""
    table = sincos_2d((2, 3), 8)
    assert table.shape == (1, 6, 8)
    a, b = 2.0, 1.0
    want = [
        np.sin(a),
        np.sin(a / 1e4),
        np.cos(a),
        np.cos(a / 1e4),
        np.sin(b),
        np.sin(b / 1e4),
        np.cos(b),
        np.cos(b / 1e4),
    ]
    np.testing.assert_allclose(table[0, 5], want, rtol=1e-6)
    np.testing.assert_allclose(table[0, 0], [0, 0, 1, 1, 0, 0, 1, 1])


def test_the_sincos_table_of_mae_by_hand():
    """Width 8: two frequencies, 1 and 10000^(-1/2); patch (row 1, column 2) of a 2 x 3 grid."""
    x, y = np.array([2.0, 0.02]), np.array([1.0, 0.01])
    want = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)])
    np.testing.assert_allclose(sincos_2d_mae((2, 3), 8)[0, 5], want, rtol=1e-6)
    module = build_table(TableSpec("sincos_2d_mae", (2, 3), 8, True, 0), rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(run(module, 7)[0, 1:], sincos_2d_mae((2, 3), 8)[0])
    differences = [
        np.abs(sincos_2d_mae((14, 14), d) - sincos_2d((14, 14), d)).max() for d in (768, 512)
    ]
    np.testing.assert_allclose(differences, [0.025, 0.037], atol=1e-3)


def test_registers_and_padding_have_no_position_and_a_class_token_has_one_in_one_dimension():
    """Class token, two registers, a 1 x 2 grid of patches, one token of padding."""
    module = build_table(TableSpec("learned_1d", (1, 2), 4, True, 2), rngs=nnx.Rngs(0))
    assert module.table.shape == (1, 3, 4)
    got = run(module, 6)
    np.testing.assert_array_equal(got[0, [0, 3, 4]], module.table[0])
    np.testing.assert_array_equal(got[0, [1, 2, 5]], np.zeros((3, 4)))


def test_a_class_token_has_no_place_in_a_grid():
    module = build_table(TableSpec("learned_2d", (2, 1), 4, True, 1), rngs=nnx.Rngs(0))
    assert (module.by_row.shape, module.by_column.shape) == ((2, 2), (1, 2))
    table = np.asarray(run(module, 4))
    np.testing.assert_array_equal(table[0, :2], np.zeros((2, 4)))
    np.testing.assert_array_equal(table[0, 2:, 2:], module.by_row)
    fixed = build_table(TableSpec("sincos_2d", (2, 1), 4, True, 1), rngs=nnx.Rngs(0))
    table = np.asarray(run(fixed, 4))
    np.testing.assert_array_equal(table[0, :2], np.zeros((2, 4)))
    np.testing.assert_array_equal(table[0, 2:], sincos_2d((2, 1), 4)[0])
    assert not jax.tree.leaves(nnx.to_pure_dict(nnx.state(fixed)))


def test_rope_keeps_norms_and_leaves_prefix_tokens_alone():
    cos, sin = rope_2d((2, 3), 8, num_prefix=2)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 8, 1, 8)), jnp.float32)
    x, y = map(np.asarray, (x, jax.jit(rotate)(x, (jnp.asarray(cos), jnp.asarray(sin)))))
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)
    np.testing.assert_array_equal(y[:, :2], x[:, :2])
    assert np.abs(y - x)[0, 2:].max(-1).min() > 0.1


def test_rope_logits_depend_only_on_the_offset_of_patches():
    """On a 1 x 4 grid, q at column i and k at column j give a function of i - j."""
    cos, sin = rope_2d((1, 4), 8, num_prefix=0)
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal(8).astype(np.float32) for _ in range(2))
    spread = [jnp.asarray(np.broadcast_to(v, (1, 4, 1, 8))) for v in (q, k)]
    turn = jax.jit(rotate)
    rotated = [np.asarray(turn(v, (jnp.asarray(cos), jnp.asarray(sin)))) for v in spread]
    logits = np.einsum("bnhk,bmhk->nm", *rotated)
    for offset in (-2, -1, 0, 1, 2):
        diagonal = np.diagonal(logits, offset)
        np.testing.assert_allclose(diagonal, np.full_like(diagonal, diagonal[0]), rtol=1e-4)
    assert np.ptp(logits) > 0.1


def test_rope_angles_by_hand():
    """Head dimension 4 has one period, 1: the angle is 2 pi times the centre's coordinate."""
    cos, sin = rope_2d((2, 1), 4, num_prefix=0)
    angle_y, angle_x = 2 * np.pi * -0.5, 0.0
    np.testing.assert_allclose(cos[0], np.cos([angle_y, angle_x] * 2), atol=1e-6)
    np.testing.assert_allclose(sin[1], np.sin([-angle_y, angle_x] * 2), atol=1e-6)
