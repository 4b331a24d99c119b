"""The measured growth of a layer's time: exponents of made-up times, intervals and counts."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.complexity.measure import (
    FORWARD,
    Timing,
    fit_growth,
    median_over_rounds,
)
from vit_jax.models.complexity import KINDS, Layer


def made_up(seconds, *, rounds, macs=lambda n, d: n * d):
    """Returns timings of N = 4, 16, 64 and D = 8, 32; `seconds(n, d, round)`."""
    return [
        Timing("a", FORWARD, n, d, 1, 1, macs(n, d), [seconds(n, d, r) for r in range(rounds)])
        for d in (8, 32)
        for n in (4, 16, 64)
    ]


def spread(row):
    return [row["time_exponent"], row["time_exponent_low"], row["time_exponent_high"]]


def test_exponents_of_made_up_times_are_found_again():
    """Each round has another speed, and each width another exponent in N."""
    power = {8: 0.5, 32: 1.7}

    def seconds(n, d, round_):
        return (1 + round_) * 1e-6 * n ** power[d] * d**0.3

    in_n, in_d = fit_growth(made_up(seconds, rounds=6, macs=lambda n, d: n * d * d))
    assert (in_n["size"], in_n["from"], in_n["to"], in_n["at"]) == ("tokens", 4, 64, 32)
    assert spread(in_n) == pytest.approx([1.7] * 3)
    assert (in_d["size"], in_d["from"], in_d["to"], in_d["at"]) == ("width", 8, 32, 64)
    by_hand = 0.3 + (1.7 - 0.5) * math.log(64) / math.log(4)
    assert spread(in_d) == pytest.approx([by_hand] * 3)
    assert (in_n["counted_exponent"], in_d["counted_exponent"]) == pytest.approx((1, 2))


def test_the_interval_of_an_exponent_holds_the_rounds_that_it_should():
    """Ten rounds with exponents 1.0 to 1.9: the second and the ninth are the 95 % interval."""
    in_n, in_d = fit_growth(made_up(lambda n, d, r: n ** (1 + r / 10) * d, rounds=10))
    assert spread(in_n) == pytest.approx([1.45, 1.1, 1.8])
    assert spread(in_d) == pytest.approx([1, 1, 1])


@pytest.mark.parametrize(
    ("rounds", "ends"), [(5, (None, None)), (6, (0, 5)), (9, (1, 7)), (40, (13, 26))]
)
def test_intervals_of_medians_are_order_statistics(rounds, ends):
    """The tables of the sign test: the largest k with P(Bin(n, 1/2) < k) <= 2.5 %."""
    found = median_over_rounds([float(i) for i in reversed(range(rounds))])
    assert found == ((rounds - 1) / 2, *ends)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_maps_each_sequence_of_a_batch_by_itself(kind):
    layer = Layer(kind, 8, 2, (2, 2), 0)
    module = kind.build(layer, nnx.Rngs(0))
    tokens = jax.random.normal(jax.random.key(1), (3, 4, 8))
    apart = jnp.concatenate([kind.apply(layer, module, one[None]) for one in tokens])
    np.testing.assert_allclose(kind.apply(layer, module, tokens), apart, atol=1e-5)
