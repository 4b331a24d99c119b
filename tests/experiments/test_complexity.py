"""experiments/complexity: the page has the figures of its CSV files, and its counts are right."""

import runpy
from pathlib import Path

import pandas as pd
import pytest

from vit_jax.models.complexity import KINDS

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "complexity"


@pytest.fixture(scope="module")
def page():
    return runpy.run_path(str(FOLDER / "page.py"))


def test_the_table_of_the_page_is_that_of_the_file(page):
    text = (FOLDER / "README.md").read_text()
    between = text.partition("<!-- report -->")[2].partition("<!-- end of report -->")[0]
    assert between.strip() == page["table"]().strip()


def test_every_layer_was_timed_at_every_size_with_the_macs_of_the_formulas(page):
    times = pd.read_csv(page["TIMES"])
    assert len(times) == len(KINDS) * 4 * 2 * 2
    formulas = {
        "self-attention": lambda n, d: 4 * n * d * d + 2 * n * n * d,
        "convolution, 3x3 on the grid": lambda n, d: 9 * n * d * d,
        "convolution, 3 in sequence": lambda n, d: 3 * n * d * d,
        "recurrence (tanh RNN)": lambda n, d: 2 * n * d * d,
    }
    passes = {"forward": 1, "forward+backward": 3}
    for row in times.itertuples():
        assert row.macs == passes[row.mode] * formulas[row.layer](row.tokens, row.width)
        assert row.ms_low <= row.ms <= row.ms_high
        assert row.gflops_per_second == pytest.approx(2 * row.macs / row.ms / 1e6)
