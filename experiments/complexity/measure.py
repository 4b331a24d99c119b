"""Times one layer of self-attention, convolution and recurrence, and fits how the time grows.

    python -m experiments.complexity.measure [--output=FOLDER] [--tokens=64,256] [--rounds=6]

`models --complexity` counts what each layer computes; this script runs the same layers, all of them
in turn in every round, and writes layers.csv and layers-growth.csv. `page` needs two numbers of
tokens and two widths at least.
"""

import argparse
import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx
from scipy import stats

from vit_jax.models.complexity import KINDS, Layer
from vit_jax.models.flops import count_macs

RESULTS = Path(__file__).parent / "results"
FORWARD, BACKWARD = "forward", "forward+backward"
# As in every ViT of the paper, ViT-Ti to ViT-L. A larger width has more heads, not wider ones.
HEAD_WIDTH = 64
# A sample of a fast layer is the mean of as many calls as take this long.
_SAMPLE_S = 0.02
_MOST_CALLS = 1000


@dataclasses.dataclass
class Timing:
    """The times of one layer with N tokens of width D: seconds per call, one value per round."""

    layer: str
    mode: str
    tokens: int
    width: int
    heads: int
    batch_size: int
    macs: int
    seconds: list[float] = dataclasses.field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Returns the row of layers.csv."""
        row = dataclasses.asdict(self)
        median, low, high = median_over_rounds(row.pop("seconds"))
        return row | {
            "rounds": len(self.seconds),
            "ms": median * 1e3,
            "ms_low": None if low is None else low * 1e3,
            "ms_high": None if high is None else high * 1e3,
            "gflops_per_second": 2 * self.macs / median / 1e9,
        }


class LayerTimer:
    """A compiled layer. With `backward` it also computes the gradients of parameters and input."""

    def __init__(self, layer: Layer, batch_size: int, *, backward: bool):
        graphdef, state = nnx.split(nnx.eval_shape(lambda: layer.kind.build(layer, nnx.Rngs(0))))
        tokens = jax.ShapeDtypeStruct((batch_size, layer.tokens, layer.width), jnp.float32)
        self._shapes = (nnx.to_pure_dict(state), tokens)

        def forward(params: Any, tokens: jax.Array) -> jax.Array:
            return layer.kind.apply(layer, nnx.merge(graphdef, params), tokens)

        def forward_and_backward(params: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
            out, back = jax.vjp(forward, params, tokens)
            # Without the output, XLA would leave out a forward pass that no gradient needs.
            return out, back(tokens)

        traced = jax.jit(forward_and_backward if backward else forward).trace(*self._shapes)
        self.timing = Timing(
            layer.kind.name,
            BACKWARD if backward else FORWARD,
            layer.tokens,
            layer.width,
            layer.num_heads,
            batch_size,
            count_macs(traced.jaxpr.jaxpr),
        )
        self.compiled = traced.lower().compile()
        self.arrays: tuple[Any, ...] = ()
        self._calls = 1

    def prepare(self) -> None:
        """Allocates the arrays, and finds out how many calls a sample takes."""
        draw = np.random.default_rng(0).standard_normal
        # The numbers do not change the time, but those of long sums must stay finite.
        scale = self.timing.width**-0.5
        params, tokens = self._shapes
        drawn = jax.tree.map(lambda p: scale * draw(p.shape, np.float32), params)
        self.arrays = jax.device_put((drawn, draw(tokens.shape, np.float32)))
        self._time(1)
        self._calls = min(_MOST_CALLS, math.ceil(_SAMPLE_S / self._time(1)))

    def measure(self) -> None:
        """Takes one sample."""
        self.timing.seconds.append(self._time(self._calls))

    def _time(self, calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            # Queued calls could run at the same time.
            jax.block_until_ready(self.compiled(*self.arrays))
        return (time.perf_counter() - begin) / calls


def num_heads(width: int) -> int:
    """Returns the number of attention heads of a width: the most that are at least 64 wide."""
    return max(h for h in range(1, max(1, width // HEAD_WIDTH) + 1) if width % h == 0)


def compile_timers(
    tokens: Sequence[int], widths: Sequence[int], batch_size: int = 1
) -> Iterator[LayerTimer]:
    """Compiles each layer at each size, numbers of tokens being squares, in both modes."""
    for width, n, mode, kind in itertools.product(widths, tokens, (False, True), KINDS):
        layer = Layer(kind, width, num_heads(width), (math.isqrt(n), math.isqrt(n)), 0)
        yield LayerTimer(layer, batch_size, backward=mode)


def median_over_rounds(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Returns a median and the ends of its 95 % interval, None for fewer than six values.

    The ends are order statistics: the number of values below the true median is binomial with
    p = 1/2, so nothing but independent rounds is assumed.
    """
    ordered = sorted(values)
    outside = int(stats.binom.ppf(0.025, len(ordered), 0.5))
    middle = float(np.median(ordered))
    return (middle, ordered[outside - 1], ordered[-outside]) if outside else (middle, None, None)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Returns the slope of the least-squares line through log(value) against log(size)."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def fit_growth(timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """Fits exponents in N at the largest D, and in D at the largest N: rows of layers-growth.csv.

    Every round gives one exponent, so that a machine that is slower in one round than in another
    does not change it. A size with one value has none.
    """
    found = []
    for size, other in (("tokens", "width"), ("width", "tokens")):
        fixed = max(getattr(timing, other) for timing in timings)
        groups: dict[tuple[str, str], list[Timing]] = {}
        for timing in sorted(timings, key=lambda timing: getattr(timing, size)):
            if getattr(timing, other) == fixed:
                groups.setdefault((timing.mode, timing.layer), []).append(timing)
        for (mode, layer), group in groups.items():
            values = [getattr(timing, size) for timing in group]
            if len(values) < 2:
                continue
            rounds = zip(*(timing.seconds for timing in group), strict=True)
            median, low, high = median_over_rounds([exponent(values, round_) for round_ in rounds])
            found.append(
                {
                    "layer": layer,
                    "mode": mode,
                    "size": size,
                    "from": values[0],
                    "to": values[-1],
                    "at": fixed,
                    "time_exponent": median,
                    "time_exponent_low": low,
                    "time_exponent_high": high,
                    "counted_exponent": exponent(values, [timing.macs for timing in group]),
                }
            )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, and writes the two tables."""

    def numbers(text: str) -> list[int]:
        return sorted({int(part) for part in text.split(",")})

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=numbers, default=[64, 256, 1024, 4096])
    parser.add_argument("--widths", type=numbers, default=[64, 256])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    if any(math.isqrt(n) ** 2 != n for n in args.tokens):
        parser.error(f"--tokens={args.tokens}: expected squares, such as 64,256")
    timers = list(compile_timers(args.tokens, args.widths))
    for timer in timers:
        timer.prepare()
    for _ in range(args.rounds):
        for timer in timers:
            timer.measure()
    timings = [timer.timing for timer in timers]
    pd.DataFrame([t.row() for t in timings]).to_csv(args.output / "layers.csv", index=False)
    pd.DataFrame(fit_growth(timings)).to_csv(args.output / "layers-growth.csv", index=False)


if __name__ == "__main__":
    main()
