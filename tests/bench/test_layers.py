import csv
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.__main__ import main
from vit_jax.bench.layers import (
    BACKWARD,
    FORWARD,
    LayerTimer,
    Spread,
    Timing,
    check_memory,
    compile_timers,
    fit_growth,
    median_over_rounds,
    num_heads,
    prepare,
)
from vit_jax.errors import MemoryLimitError
from vit_jax.models.complexity import LAYERS, Attention, Recurrence, measure

pytestmark = pytest.mark.slow

NAMES = [kind.name for kind in LAYERS]


def made_up(seconds, *, rounds, macs=lambda n, d: n * d, layer="a"):
    """Returns timings of N = 4, 16, 64 and D = 8, 32; `seconds(n, d, round)`."""
    return [
        Timing(layer, FORWARD, n, d, 1, 1, macs(n, d), 1, [seconds(n, d, r) for r in range(rounds)])
        for d in (8, 32)
        for n in (4, 16, 64)
    ]


def test_exponents_of_made_up_times_are_found_again():
    """Each round has another speed, and each width another exponent in N."""
    power = {8: 0.5, 32: 1.7}

    def seconds(n, d, round_):
        return (1 + round_) * 1e-6 * n ** power[d] * d**0.3

    in_n, in_d = fit_growth(made_up(seconds, rounds=6, macs=lambda n, d: n * d * d))
    assert (in_n.size, in_n.values, in_n.other) == ("tokens", (4, 16, 64), 32)
    assert [in_n.time.median, in_n.time.low, in_n.time.high] == pytest.approx([1.7] * 3)
    assert (in_d.size, in_d.values, in_d.other) == ("width", (8, 32), 64)
    by_hand = 0.3 + (1.7 - 0.5) * math.log(64) / math.log(4)
    assert [in_d.time.median, in_d.time.low, in_d.time.high] == pytest.approx([by_hand] * 3)
    assert (in_n.counted, in_d.counted) == pytest.approx((1, 2))


def test_the_interval_of_an_exponent_holds_the_rounds_that_it_should():
    """Ten rounds with exponents 1.0 to 1.9: the second and the ninth are the 95 % interval."""
    timings = made_up(lambda n, d, r: n ** (1 + r / 10) * d, rounds=10)
    in_n, in_d = fit_growth(timings)
    assert [in_n.time.median, in_n.time.low, in_n.time.high] == pytest.approx([1.45, 1.1, 1.8])
    assert [in_d.time.low, in_d.time.high] == pytest.approx([1, 1])


def test_one_size_has_no_growth():
    timings = [one for one in made_up(lambda n, d, r: n, rounds=1) if one.width == 8]
    (in_n,) = fit_growth(timings)
    assert (in_n.size, in_n.time.low) == ("tokens", None)
    assert fit_growth([one for one in timings if one.tokens == 4]) == []


@pytest.mark.parametrize(
    ("rounds", "ends"),
    [(1, None), (5, None), (6, (0, 5)), (9, (1, 7)), (20, (5, 14)), (40, (13, 26))],
)
def test_intervals_of_medians_are_order_statistics(rounds, ends):
    """The tables of the sign test: the largest k with P(Bin(n, 1/2) < k) <= 2.5 %."""
    found = median_over_rounds([float(i) for i in reversed(range(rounds))])
    low, high = (None, None) if ends is None else map(float, ends)
    assert found == Spread((rounds - 1) / 2, low, high)


def test_the_interval_holds_the_median_as_often_as_it_says():
    rng = np.random.default_rng(0)
    spreads = [median_over_rounds(list(rng.exponential(size=10))) for _ in range(2000)]
    inside = np.mean([s.low <= math.log(2) <= s.high for s in spreads])
    assert inside == pytest.approx(0.979, abs=0.01)  # 1 - 22 / 1024, because 10 values are few


def test_counted_exponents_equal_those_by_hand():
    """From N = 4 to 64 at D = 32, and from D = 16 to 32 at N = 64."""
    timers = compile_timers([4, 64], [16, 32], batch_size=1, backward=False)
    timings = [timer.timing for timer in timers]
    for timing in timings:
        timing.seconds.append(1.0)
    found = {(g.layer, g.size): g.counted for g in fit_growth(timings)}
    # 4 N D^2 + 2 N^2 D.
    n_low, n_high = 4 * 4 * 32**2 + 2 * 4**2 * 32, 4 * 64 * 32**2 + 2 * 64**2 * 32
    d_low = 4 * 64 * 16**2 + 2 * 64**2 * 16
    attention, *others = NAMES
    assert found[attention, "tokens"] == pytest.approx(math.log(n_high / n_low, 16))
    assert found[attention, "width"] == pytest.approx(math.log(n_high / d_low, 2))
    for name in others:
        assert found[name, "tokens"] == pytest.approx(1)
        assert found[name, "width"] == pytest.approx(2)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_batch_has_the_macs_of_its_sequences_and_the_backward_pass_twice_as_many(kind):
    layer = kind(8, 2, (3, 3), 0)
    forward, both = (LayerTimer(layer, 5, backward=b).timing for b in (False, True))
    assert forward.macs == 5 * measure(layer).macs
    assert both.macs == 3 * forward.macs
    assert (forward.mode, both.mode) == (FORWARD, BACKWARD)
    steps = 9 if kind is Recurrence else 1
    assert forward.steps == measure(layer).steps == steps
    assert both.steps == (18 if kind is Recurrence else 1)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_maps_each_sequence_of_a_batch_by_itself(kind):
    layer = kind(8, 2, (2, 2), 0)
    module = layer.build(nnx.Rngs(0))
    tokens = jax.random.normal(jax.random.key(1), (3, 4, 8))
    apart = jnp.concatenate([layer.apply(module, one[None]) for one in tokens])
    np.testing.assert_allclose(layer.apply(module, tokens), apart, atol=1e-5)


def test_a_sample_is_the_time_of_one_call_and_its_numbers_are_finite():
    timers = list(compile_timers([4], [8], batch_size=2, backward=True))
    prepare(timers)
    assert [timer.timing.mode for timer in timers] == [FORWARD] * 4 + [BACKWARD] * 4
    for timer in timers:
        timer.measure()
        (seconds,) = timer.timing.seconds
        assert 1e-7 < seconds < 1
        rate = 2 * timer.timing.macs / seconds / 1e9
        assert timer.timing.gflops_per_second == pytest.approx(rate)
        for leaf in jax.tree.leaves(timer._compiled(*timer._arrays)):
            assert jnp.isfinite(leaf).all()


def test_heads_divide_the_width_and_are_64_wide_or_wider():
    for width in range(1, 400):
        heads = num_heads(width)
        assert width % heads == 0
        assert heads == 1 or width // heads >= 64


def test_sizes_that_do_not_fit_are_refused_before_and_after_compiling(monkeypatch):
    """Attention of 1,024 tokens keeps 4 MiB a head; the lower bound knows of one head."""
    monkeypatch.setattr("vit_jax.memory.machine_bytes", lambda: 4_000_000)
    with pytest.raises(MemoryLimitError, match="self-attention of 1,024 tokens of width 8"):
        check_memory([16, 1024], [8], 1)
    check_memory([256], [128], 1)
    timer = LayerTimer(Attention(128, 8, (16, 16), 0), 4, backward=True)
    with pytest.raises(MemoryLimitError, match=r"self-attention, forward\+backward, 256 tokens"):
        prepare([timer])
    assert timer._arrays == ()


SMALL = ["bench", "layers", "--tokens=16,4", "--widths=8,16,8", "--rounds=1"]


def test_the_command_prints_a_row_for_each_layer_and_size_and_writes_csv(tmp_path, capsys):
    output = tmp_path / "layers.csv"
    assert main([*SMALL, f"--output={output}"]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    for kind in LAYERS:
        for n in (4, 16):
            for d in (8, 16):
                macs = measure(kind(d, 1, (math.isqrt(n),) * 2, 0)).macs
                start = [*kind.name.split(), str(n), str(d), f"{macs:,}"]
                assert sum(line[: len(start)] == start for line in lines) == 1
    assert "a 95 % interval needs 6" in out
    with output.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["layer"] for row in rows] == NAMES * 4
    assert [(row["tokens"], row["width"]) for row in rows[::4]] == [
        ("4", "8"), ("16", "8"), ("4", "16"), ("16", "16"),
    ]  # fmt: skip
    assert all(float(row["ms"]) > 0 and row["ms_low"] == "" for row in rows)
    with (tmp_path / "layers-growth.csv").open() as file:
        growth = list(csv.DictReader(file))
    assert [(row["layer"], row["size"]) for row in growth] == [
        (name, size) for size in ("tokens", "width") for name in NAMES
    ]
    assert float(growth[1]["counted_exponent"]) == pytest.approx(1)


def test_json_has_every_round_and_the_environment(tmp_path, capsys):
    output = tmp_path / "layers.json"
    options = ["--tokens=4", "--widths=8", "--rounds=6", "--backward", f"--output={output}"]
    assert main(["bench", "layers", *options]) == 0
    out = capsys.readouterr().out
    assert "Medians of 6 rounds [95 % interval of the median]" in out
    assert "Exponents of the growth" not in out
    content = json.loads(output.read_text())
    assert content["environment"]["device_count"] == 1
    assert content["growth"] == []
    assert [row["mode"] for row in content["times"]] == [FORWARD] * 4 + [BACKWARD] * 4
    for row in content["times"]:
        assert len(row["seconds"]) == row["rounds"] == 6
        assert row["ms_low"] == pytest.approx(min(row["seconds"]) * 1e3)
        assert row["ms"] == pytest.approx(float(np.median(row["seconds"])) * 1e3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tokens=65"], "65 is not the number of tokens of a square grid, unlike 64 or 81"),
        (["--tokens=2"], "unlike 1 or 4"),
        (["--tokens=0"], "'0' is not a positive whole number"),
        (["--tokens=many"], "'many' is not a positive whole number"),
        (["--tokens=64,,256"], "'' is not a positive whole number"),
        (["--tokens=-4"], "'-4' is not a positive whole number"),
        (["--widths=0"], "'0' is not a positive whole number"),
        (["--widths=1.5"], "'1.5' is not a positive whole number"),
        (["--batch_size=0"], "'0' is not a positive whole number"),
        (["--rounds=none"], "'none' is not a positive whole number"),
        (["--tokens=1000000000000"], "self-attention of 1,000,000,000,000 tokens of width 256"),
        (["--widths=100000000"], "use fewer --tokens, smaller --widths"),
        (["--batch_size=1000000000"], "use fewer --tokens, smaller --widths"),
        (["--output=/no/such/folder/x.csv"], "is not in an existing folder"),
        (["--output=x.txt"], "FILE.json or FILE.csv"),
        (["--config.seed=1"], "--config.seed=1 with bench layers"),
        (["--depth=3"], "unknown argument '--depth=3'"),
    ],
)
def test_errors_are_one_line(options, words, capsys):
    assert main(["bench", "layers", *options]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
