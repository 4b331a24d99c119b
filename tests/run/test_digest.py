"""Digests of arrays do not depend on shards, and change with any value."""

import itertools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.run import digest
from vit_jax.run.digest import (
    _sum,
    array_digest,
    combined_digest,
    device_sums,
    json_digest,
    tree_digests,
)

DTYPES = ["float32", "bfloat16", "int8", "bool", "float64", "int32"]


def random_array(shape, dtype="float32"):
    values = np.random.default_rng(0).standard_normal(shape)
    return np.asarray(jnp.asarray(values, "float32")).astype(jnp.dtype(dtype))


def test_a_small_digest_by_hand():
    """The keys are odd 64-bit numbers; that of a scalar is 1."""
    assert array_digest(np.array(3, np.int32)) == "0000000000000003"
    assert array_digest(np.zeros((0, 3))) == "0000000000000000"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(12,), (4, 6, 70)])
def test_the_parts_of_an_array_add_up_to_its_digest(shape, dtype):
    array, total = random_array(shape, dtype), 0
    for halves in itertools.product((0, 1), repeat=len(shape)):
        start = [size // 2 * half for size, half in zip(shape, halves, strict=True)]
        part = tuple(slice(s, s + size // 2) for s, size in zip(start, shape, strict=True))
        total += _sum(array[part], start)
    assert f"{total % 2**64:016x}" == array_digest(array)


def test_arrays_on_devices_have_the_digest_of_their_values():
    array = random_array((6, 4))
    tree = {"a": jnp.asarray(array), "b": jnp.zeros((), jnp.int32)}
    assert tree_digests({"x": tree})["x"] == {"a": array_digest(array), "b": "0" * 16}
    assert jax.tree.leaves(tree_digests({})) == []


@pytest.mark.parametrize("dtype", [*DTYPES, "float16", "float8_e4m3fn", "uint32"])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (4, 6, 70)])
def test_devices_compute_the_same_digest(shape, dtype):
    """A float64 in JAX has 64 bits only in this test; otherwise it would become a float32."""
    array = random_array(shape, dtype)
    with jax.enable_x64(True):
        (total,) = device_sums({"a": jnp.asarray(array)}).values()
    assert f"{int(total):016x}" == array_digest(array)


def test_each_flipped_bit_and_each_exchange_changes_the_digest():
    array = random_array((3, 2))
    seen = {array_digest(array)}
    for index, bit in itertools.product(range(array.size), range(32)):
        changed = array.copy()
        changed.reshape(-1).view(np.uint32)[index] ^= np.uint32(1 << bit)
        seen.add(array_digest(changed))
    for rows in ([1, 0, 2], [2, 1, 0]):
        seen.add(array_digest(array[rows]))
    seen.add(array_digest(-array))  # Sign bits, which a plain sum of odd multiples would lose.
    assert len(seen) == 1 + array.size * 32 + 3


def test_combined_digests_depend_on_names_and_not_on_their_order():
    assert combined_digest({"a": "1", "b": "2"}) == combined_digest({"b": "2", "a": "1"})
    assert combined_digest({"a": "1", "b": "2"}) != combined_digest({"a": "2", "b": "1"})
    assert json_digest({"a": (1, 2), 3: 0.1}) == json_digest({"3": 0.1, "a": [1, 2]})


def test_digests_in_the_background_are_of_the_values_before_the_next_step():
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    values = step(jnp.arange(1 << 16, dtype=jnp.float32))
    expected, may_start = array_digest(np.array(values, copy=True)), threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "_sum", lambda *part: may_start.wait(60) and _sum(*part))
        read = digest.start_digests("test", {"params": {"a": values}})
        values = jax.block_until_ready(step(step(values)))
        may_start.set()
        assert read() == {"params": {"a": expected}}
    assert array_digest(np.asarray(values)) != expected
