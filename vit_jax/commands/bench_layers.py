"""Time one layer of self-attention, convolution and recurrence, and fit how the time grows.

    python -m vit_jax bench layers
    python -m vit_jax bench layers --tokens=64,256,1024,4096 --widths=64,256 --backward
    python -m vit_jax bench layers --tokens=196,784 --widths=192,384,768 --output=layers.csv

`models --complexity` counts what each layer computes; this command runs the same layers. All layers
are timed in turn in every round. The second table has exponents: the time grows like N^p or D^p.
Where p differs from the counted exponent, the count does not predict the time.
"""

import argparse
import csv
import io
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit_jax.commands.arguments import output_file, positive_int
from vit_jax.errors import ConfigError
from vit_jax.storage.files import write_atomically, write_json
from vit_jax.tables import plain_table

if TYPE_CHECKING:
    from rich.console import Console

    from vit_jax.bench.layers import Growth, Timing

# Width of the tables. In a narrower terminal lines are wrapped, not truncated.
_COLUMNS = 120

_NOTES = (
    "MACs: multiply-accumulates of matmuls and convolutions, counted in the traced program.",
    "GFLOP/s: 2 operations for each MAC, divided by the median time. Where it is the same at all"
    " sizes, the count predicts the time.",
    "Steps: scan iterations that wait for each other, so that only the MACs of one step can run in"
    " parallel.",
    "Exponents: slope of log time against log size, fitted in each round; counted: the slope of log"
    " MACs.",
    "Not measured: attention kernels that keep the N² weights on the chip, and RNN kernels."
    " Attention is two einsums here, the recurrence a scan of one step for each token.",
)
_DEVICE_NOTES = {
    "cpu": "CPU: programs that share its cores and caches make times longer. Exponents change where"
    " arrays stop fitting the caches.",
    "gpu": "GPU: layers below some size take the time of launching their kernels, and each step of"
    " the scan launches its own. XLA may compute float32 matmuls in TF32.",
    "tpu": "TPU: float32 matmuls are computed in bfloat16 by default; widths are padded to 128.",
}


def squares(text: str) -> list[int]:
    """Parses comma-separated numbers of tokens, each of a square grid; returns them sorted."""
    numbers = sizes(text)
    for number in numbers:
        side = math.isqrt(number)
        if side**2 != number:
            raise argparse.ArgumentTypeError(
                f"{number} is not the number of tokens of a square grid, unlike"
                f" {max(1, side) ** 2} or {(side + 1) ** 2}"
            )
    return numbers


def sizes(text: str) -> list[int]:
    """Parses comma-separated positive numbers; returns them sorted, each once."""
    return sorted({positive_int(part) for part in text.split(",")})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument(
        "--tokens",
        type=squares,
        default=[64, 256, 1024, 4096],
        metavar="N,N,...",
        help="numbers of tokens N, squares because of the grid; default: 64,256,1024,4096",
    )
    parser.add_argument(
        "--widths",
        type=sizes,
        default=[64, 256],
        metavar="D,D,...",
        help="widths D; default: 64,256. Attention has a head for each 64 of them",
    )
    parser.add_argument(
        "--batch_size", type=positive_int, default=1, help="sequences at once; default: 1"
    )
    parser.add_argument(
        "--backward",
        action="store_true",
        help="also time forward and backward pass together, with gradients of weights and inputs",
    )
    parser.add_argument(
        "--rounds",
        type=positive_int,
        default=10,
        help="rounds over all layers and sizes; default: 10. Intervals need 6",
    )
    parser.add_argument(
        "--output",
        type=output_file,
        help="FILE.csv for the times, with FILE-growth.csv for the exponents; or FILE.json for both"
        " and the times of every round",
    )


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    if overrides:
        raise ConfigError(
            f"--config.{overrides[0]} with bench layers", "no config", "see bench layers --help"
        )
    if args.output is not None and args.output.suffix not in (".json", ".csv"):
        raise ConfigError(f"--output={args.output}", "FILE.json or FILE.csv", "rename it")
    from rich.console import Console

    from vit_jax.bench.layers import check_memory, compile_timers, fit_growth, prepare

    check_memory(args.tokens, args.widths, args.batch_size)
    options = {"batch_size": args.batch_size, "backward": args.backward}
    programs = 4 * len(args.tokens) * len(args.widths) * (1 + args.backward)
    timers = list(
        _progress(compile_timers(args.tokens, args.widths, **options), "compiling", programs)
    )
    prepare(timers)
    for _ in _progress(range(args.rounds), "measuring", args.rounds):
        for timer in timers:
            timer.measure()
    timings = [timer.timing for timer in timers]
    growths = fit_growth(timings)
    console = Console(highlight=False)
    if console.width < _COLUMNS:
        console = Console(highlight=False, width=_COLUMNS)
    _show(console, timings, growths)
    if args.output is not None:
        _write(args.output, timings, growths)
    return 0


def _progress(items: Iterable[Any], what: str, total: int) -> Iterable[Any]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    is_hidden = not sys.stderr.isatty()
    return track(items, what, total, transient=True, console=console, disable=is_hidden)


def _show(console: "Console", timings: "list[Timing]", growths: "list[Growth]") -> None:
    import jax

    device = jax.devices()[0]
    rounds, batch = len(timings[0].seconds), timings[0].batch_size
    for mode in dict.fromkeys(timing.mode for timing in timings):
        title = f"One layer, {mode}, batch {batch:,}, float32, {device.device_kind}"
        console.print(title, style="bold", markup=False)
        console.print(_times_table([timing for timing in timings if timing.mode == mode]))
    if growths:
        console.print("Exponents of the growth", style="bold")
        console.print(_growth_table(growths))
    few = timings[0].row()["ms_low"] is None
    first = (
        f"Medians of {rounds} rounds; a 95 % interval needs 6."
        if few
        else f"Medians of {rounds} rounds [95 % interval of the median]."
    )
    # Notes can be wrapped to the width of a narrow terminal.
    console = type(console)(highlight=False) if console.is_terminal else console
    for note in (first, *_NOTES, _DEVICE_NOTES.get(device.platform, "")):
        if note:
            console.print(note, style="dim", markup=False)


def _times_table(timings: "Sequence[Timing]") -> Any:
    from rich.text import Text

    table = plain_table("layer", right=("N", "D", "MACs", "steps", "ms", "", "GFLOP/s"))
    last = None
    for timing in timings:
        size = (timing.tokens, timing.width)
        if last not in (None, size):
            table.add_section()
        last = size
        row = timing.row()
        table.add_row(
            timing.layer,
            f"{timing.tokens:,}",
            f"{timing.width:,}",
            f"{timing.macs:,}",
            f"{timing.steps:,}",
            f"{row['ms']:,.3f}",
            Text(_interval(row["ms_low"], row["ms_high"], 3)),
            f"{row['gflops_per_second']:,.1f}",
        )
    return table


def _growth_table(growths: "Sequence[Growth]") -> Any:
    from rich.text import Text

    table = plain_table(
        "layer", right=("time", "", "counted"), left="for which sizes, in which pass"
    )
    last = None
    for growth in growths:
        group = (growth.size, growth.mode)
        if last not in (None, group):
            table.add_section()
        last = group
        symbol, other = ("N", "D") if growth.size == "tokens" else ("D", "N")
        table.add_row(
            growth.layer,
            f"{symbol}^{growth.time.median:.2f}",
            Text(_interval(growth.time.low, growth.time.high, 2)),
            f"{symbol}^{growth.counted:.2f}",
            f"{symbol} = {growth.values[0]:,} to {growth.values[-1]:,}, {other} ="
            f" {growth.other:,}, {growth.mode}",
        )
    return table


def _interval(low: float | None, high: float | None, digits: int) -> str:
    if low is None or high is None:
        return ""
    return f"[{low:,.{digits}f}, {high:,.{digits}f}]"


def _write(path: Path, timings: "Sequence[Timing]", growths: "Sequence[Growth]") -> None:
    from vit_jax.run.folder import environment

    times, exponents = [t.row() for t in timings], [g.row() for g in growths]
    if path.suffix == ".json":
        rows = [row | {"seconds": t.seconds} for row, t in zip(times, timings, strict=True)]
        content = {"environment": environment(), "times": rows, "growth": exponents}
        write_json(path, content)
        return
    write_atomically(path, _csv(times))
    if exponents:
        write_atomically(path.with_name(f"{path.stem}-growth.csv"), _csv(exponents))


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
