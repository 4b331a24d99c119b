"""Named random streams: every stream is a function of (seed, name, step) and nothing else."""

import zlib

import jax
import numpy as np


def name_id(name: str) -> int:
    """Returns the 32-bit number that stands for a stream's name, the same on every machine."""
    return zlib.crc32(name.encode())


def stream(seed: int, name: str, step: int | jax.Array = 0) -> jax.Array:
    """Returns the JAX key of a stream at a step; `step` may be traced.

    Args:
        seed: the run's one seed.
        name: "init", "dropout", "mixing", "flip", ...
        step: training step.
    """
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), name_id(name)), step)


def generator(seed: int, name: str, step: int) -> np.random.Generator:
    """Returns the NumPy generator of a stream at a step, for work on the host."""
    return np.random.Generator(np.random.Philox(key=[seed << 32 | name_id(name), step]))


def shuffle_seed(seed: int) -> int:
    """Returns the 32-bit seed of the example order. Hashed, since Grain adds the epoch to it.

    Otherwise epoch 1 of seed 0 would have the order of epoch 0 of seed 1.
    """
    return int(np.random.SeedSequence([seed, name_id("order")]).generate_state(1)[0])
