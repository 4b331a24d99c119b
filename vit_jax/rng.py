"""Named random streams. Each is a pure function of (seed, name, step)."""

import contextlib
import zlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jaxtyping import UInt, UInt64

from vit_jax import jax_internals

# Of generators whose state is set afterwards.
_REPLACED_SEED = np.random.SeedSequence(0)


@contextlib.contextmanager
def fixed_jax_settings() -> Iterator[None]:
    """JAX draws the same numbers here, of 32 bits, whatever its settings or variables are."""
    with (
        jax.enable_x64(False),
        jax.default_prng_impl("threefry2x32"),
        jax.threefry_partitionable(True),
        jax_internals.seed_offset(0),
    ):
        yield


def name_id(name: str) -> int:
    """Returns a 32-bit hash of a stream's name, the same on every machine."""
    return zlib.crc32(name.encode())


def stream(seed: int, name: str, step: int | jax.Array = 0) -> jax.Array:
    """Returns the JAX key of a stream ("init", "dropout", ...) at a step, which may be traced."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), name_id(name)), step)


def generator(seed: int, name: str, step: int) -> np.random.Generator:
    """Returns the NumPy generator of a stream at a step, for work on the host."""
    # As `Philox(key=...)`, which also asks the operating system for entropy that it does not use.
    # That would take longer than all else here, and the loader makes a generator for every image.
    bits = np.random.Philox(_REPLACED_SEED)
    zeros, key = np.zeros(4, np.uint64), [seed << 32 | name_id(name), step]
    bits.state = {
        "bit_generator": "Philox",
        "state": {"counter": zeros, "key": np.array(key, np.uint64)},
        "buffer": zeros,
        "buffer_pos": len(zeros),  # Empty.
        "has_uint32": 0,
        "uinteger": 0,
    }
    return np.random.Generator(bits)


def draw_index(seed: int, name: str, step: int, probabilities: Sequence[float]) -> int:
    """Returns an index drawn from a stream at a step, the same on all hosts."""
    return int(generator(seed, name, step).choice(len(probabilities), p=probabilities))


def splitmix64(states: UInt64[np.ndarray, "*N"]) -> UInt64[np.ndarray, "*N"]:
    """Returns the output of SplitMix64 for each state; different states give different outputs.

    Source: Steele, Lea and Flood, OOPSLA 2014, doi:10.1145/2660193.2660195.
    """
    return _mix_bits(states + np.uint64(0x9E3779B97F4A7C15))


def seeded_hash(seed: int, numbers: UInt[np.ndarray, "*N"]) -> UInt64[np.ndarray, "*N"]:
    """Hashes each number to 64 bits; different numbers never collide. The seed is below 2**32."""
    return _mix_bits(numbers.astype(np.uint64) ^ splitmix64(np.array([seed], np.uint64)))


def _mix_bits(x: UInt64[np.ndarray, "*N"]) -> UInt64[np.ndarray, "*N"]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
