"""Times one layer of attention, convolution and recurrence, and fits how the time grows.

The layers are those of `models.complexity`, which counts their multiply-accumulates. Here they run,
at several numbers of tokens N and widths D, so that the counted growth can be compared with the
measured one.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.memory import check_fits
from vit_jax.models.complexity import LAYERS, Layer, longest_scan_chain
from vit_jax.models.flops import count_macs

FORWARD, BACKWARD = "forward", "forward+backward"
# As in every ViT of the paper, ViT-Ti to ViT-L. A larger width has more heads, not wider ones.
HEAD_WIDTH = 64
# A sample of a fast layer is the mean of as many calls as take this long.
_SAMPLE_S = 0.02
_MOST_CALLS = 1000
_FLOAT_BYTES = 4
_LEVEL = 0.95
_FIX = "use fewer --tokens, smaller --widths or a smaller --batch_size"


@dataclasses.dataclass(frozen=True)
class Spread:
    """A median over rounds and its 95 % interval; None: there are too few rounds for one."""

    median: float
    low: float | None
    high: float | None


@dataclasses.dataclass
class Timing:
    """The times of one layer at one size.

    Attributes:
        layer: name of the kind of layer.
        mode: FORWARD or BACKWARD.
        tokens: N.
        width: D.
        heads: number of attention heads of this width.
        batch_size: B, sequences per call.
        macs: multiply-accumulates of a call, counted in the traced program.
        steps: scan iterations of a call that wait for each other; 1 without a scan.
        seconds: seconds per call, one value per round.
    """

    layer: str
    mode: str
    tokens: int
    width: int
    heads: int
    batch_size: int
    macs: int
    steps: int
    seconds: list[float] = dataclasses.field(default_factory=list)

    @property
    def gflops_per_second(self) -> float:
        """Counted operations, 2 per multiply-accumulate, per second at the median time."""
        return 2 * self.macs / median_over_rounds(self.seconds).median / 1e9

    def row(self) -> dict[str, Any]:
        """Returns the figures for CSV or JSON."""
        spread = median_over_rounds(self.seconds)
        return {
            "layer": self.layer,
            "mode": self.mode,
            "tokens": self.tokens,
            "width": self.width,
            "heads": self.heads,
            "batch_size": self.batch_size,
            "macs": self.macs,
            "sequential_steps": self.steps,
            "rounds": len(self.seconds),
            "ms": spread.median * 1e3,
            "ms_low": None if spread.low is None else spread.low * 1e3,
            "ms_high": None if spread.high is None else spread.high * 1e3,
            "gflops_per_second": self.gflops_per_second,
        }


@dataclasses.dataclass(frozen=True)
class Growth:
    """How the time of a layer grows with one size, beside how its count grows.

    An exponent is the slope of a line through the logarithms: time ~ size^exponent.

    Attributes:
        layer: name of the kind of layer.
        mode: FORWARD or BACKWARD.
        size: "tokens" or "width".
        values: values of that size, ascending.
        other: the value of the other size, which is fixed.
        time: exponent of the time.
        counted: exponent of the multiply-accumulates over the same values.
    """

    layer: str
    mode: str
    size: str
    values: tuple[int, ...]
    other: int
    time: Spread
    counted: float

    def row(self) -> dict[str, Any]:
        """Returns the figures for CSV or JSON."""
        return {
            "layer": self.layer,
            "mode": self.mode,
            "size": self.size,
            "from": self.values[0],
            "to": self.values[-1],
            "at": self.other,
            "time_exponent": self.time.median,
            "time_exponent_low": self.time.low,
            "time_exponent_high": self.time.high,
            "counted_exponent": self.counted,
        }


class LayerTimer:
    """A compiled layer at one size, with its arrays once they are allocated.

    Args:
        layer: kind and size; its grid has no prefix tokens.
        batch_size: B.
        backward: also compute the gradients of the parameters and of the input.

    Attributes:
        timing: the times so far.
        arrays_bytes: memory of parameters and input.
        needed_bytes: memory that a call takes beyond these.
    """

    def __init__(self, layer: Layer, batch_size: int, *, backward: bool):
        graphdef, state = nnx.split(nnx.eval_shape(lambda: layer.build(nnx.Rngs(0))))
        tokens = jax.ShapeDtypeStruct((batch_size, layer.tokens, layer.width), jnp.float32)
        self._shapes = (nnx.to_pure_dict(state), tokens)

        def forward(params: Any, tokens: jax.Array) -> jax.Array:
            return layer.apply(nnx.merge(graphdef, params), tokens)

        def forward_and_backward(params: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
            out, back = jax.vjp(forward, params, tokens)
            # Without the output, XLA would leave out a forward pass that no gradient needs.
            return out, back(tokens)

        traced = jax.jit(forward_and_backward if backward else forward).trace(*self._shapes)
        self.timing = Timing(
            layer.name,
            BACKWARD if backward else FORWARD,
            layer.tokens,
            layer.width,
            layer.num_heads,
            batch_size,
            count_macs(traced.jaxpr.jaxpr),
            max(1, longest_scan_chain(traced.jaxpr.jaxpr)),
        )
        self._compiled = traced.lower().compile()
        self.arrays_bytes = sum(
            _FLOAT_BYTES * math.prod(leaf.shape) for leaf in jax.tree.leaves(self._shapes)
        )
        memory: Any = self._compiled.memory_analysis()
        self.needed_bytes = 0  # A program from a compilation cache may not know its memory.
        if memory is not None:
            self.needed_bytes = memory.temp_size_in_bytes + memory.output_size_in_bytes
        self._arrays: tuple[Any, ...] = ()
        self._calls = 1

    def prepare(self) -> None:
        """Allocates the arrays, and finds out how many calls a sample takes."""
        draw = np.random.default_rng(0).standard_normal
        # The numbers do not change the time, but those of long sums must stay finite.
        scale = self.timing.width**-0.5
        params, tokens = self._shapes
        drawn = jax.tree.map(lambda p: scale * draw(p.shape, np.float32), params)
        self._arrays = jax.device_put((drawn, draw(tokens.shape, np.float32)))
        self._time(1)
        self._calls = min(_MOST_CALLS, math.ceil(_SAMPLE_S / self._time(1)))

    def measure(self) -> None:
        """Takes one sample."""
        self.timing.seconds.append(self._time(self._calls))

    def _time(self, calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            # Queued calls could run at the same time.
            jax.block_until_ready(self._compiled(*self._arrays))
        return (time.perf_counter() - begin) / calls


def num_heads(width: int) -> int:
    """Returns the number of attention heads of a width: the most that are at least 64 wide.

    >>> [num_heads(width) for width in (32, 64, 100, 256, 768)]
    [1, 1, 1, 4, 12]
    """
    return max(h for h in range(1, max(1, width // HEAD_WIDTH) + 1) if width % h == 0)


def check_memory(tokens: Sequence[int], widths: Sequence[int], batch_size: int) -> None:
    """Refuses sizes that cannot fit this machine's memory, by a lower bound.

    Attention keeps at least one weight for each pair of tokens. Every layer has at least two D x D
    matrices, and the input and output have B N D numbers each.

    Raises:
        MemoryLimitError: they do not fit.
    """
    n, d = max(tokens), max(widths)
    values = 2 * d * d + batch_size * (2 * n * d + n * n)
    what = f"self-attention of {n:,} tokens of width {d:,}, batch {batch_size:,}"
    check_fits(_FLOAT_BYTES * values, what, _FIX)


def compile_timers(
    tokens: Sequence[int], widths: Sequence[int], *, batch_size: int, backward: bool
) -> Iterator[LayerTimer]:
    """Compiles each layer at each size; layers of the same size follow each other.

    Args:
        tokens: numbers of tokens, all square.
        widths: D.
        batch_size: B.
        backward: also time forward and backward pass together.
    """
    modes = (False, True) if backward else (False,)
    for width, n, mode, kind in itertools.product(widths, tokens, modes, LAYERS):
        side = math.isqrt(n)
        assert side**2 == n, "the command checks that the number is a square"
        yield LayerTimer(kind(width, num_heads(width), (side, side), 0), batch_size, backward=mode)


def prepare(timers: Sequence[LayerTimer]) -> None:
    """Allocates the arrays of all timers, after checking that they fit.

    Raises:
        MemoryLimitError: they do not fit.
    """
    largest = max(timers, key=lambda timer: timer.needed_bytes)
    needed = largest.needed_bytes + sum(timer.arrays_bytes for timer in timers)
    what = (
        f"{largest.timing.layer}, {largest.timing.mode}, {largest.timing.tokens:,} tokens of width"
        f" {largest.timing.width:,}, batch {largest.timing.batch_size:,}"
    )
    if jax.default_backend() == "cpu":  # Other devices refuse to allocate too much.
        check_fits(needed, what, _FIX)
    for timer in timers:
        timer.prepare()


def median_over_rounds(values: Sequence[float]) -> Spread:
    """Returns a median with a 95 % interval that assumes nothing but independent rounds.

    The ends are order statistics: the number of values below the true median is binomial with
    p = 1/2. Six values are the fewest with such an interval.

    >>> median_over_rounds([5.0, 1.0, 2.0, 3.0, 4.0, 9.0])
    Spread(median=3.5, low=1.0, high=9.0)
    """
    from scipy import stats

    ordered = sorted(values)
    outside = int(stats.binom.ppf((1 - _LEVEL) / 2, len(ordered), 0.5))
    middle = float(np.median(ordered))
    if not outside:
        return Spread(middle, None, None)
    return Spread(middle, ordered[outside - 1], ordered[-outside])


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Returns the slope of the least-squares line through log(value) against log(size).

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def fit_growth(timings: Sequence[Timing]) -> list[Growth]:
    """Fits exponents in N at the largest D, and in D at the largest N.

    Every round gives one exponent, so that a machine that is slower in one round than in another
    does not change it.

    Args:
        timings: of several layers and sizes, all with the same number of rounds.

    Returns:
        One fit for each layer, mode and size with at least two values.
    """
    found = []
    for size, other in (("tokens", "width"), ("width", "tokens")):
        fixed = max(getattr(timing, other) for timing in timings)
        groups: dict[tuple[str, str], list[Timing]] = {}
        for timing in timings:
            if getattr(timing, other) == fixed:
                groups.setdefault((timing.mode, timing.layer), []).append(timing)
        for (mode, layer), group in groups.items():
            group = sorted(group, key=lambda timing: getattr(timing, size))
            values = tuple(getattr(timing, size) for timing in group)
            if len(values) < 2:
                continue
            rounds = zip(*(timing.seconds for timing in group), strict=True)
            found.append(
                Growth(
                    layer,
                    mode,
                    size,
                    values,
                    fixed,
                    median_over_rounds([exponent(values, seconds) for seconds in rounds]),
                    exponent(values, [timing.macs for timing in group]),
                )
            )
    return found
