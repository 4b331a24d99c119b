"""compiled.py: which rows it makes, how it continues, and how it computes a row. No compiler."""

import importlib
import re
from pathlib import Path

import pytest
from plan.programs import LOOP

from vit_jax.plan.hlo import parse
from vit_jax.plan.traffic import count_bytes

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "speed"


@pytest.fixture(scope="module")
def compiled():
    return importlib.import_module("experiments.speed.compiled")


@pytest.fixture
def row(compiled):
    key = compiled.Key("v5e", "S/16", 224, 128, "unrolled")
    return compiled.make_row(key, "unrolled, pallas", 1.97e12, parse(LOOP), {})


def test_a_row_has_the_bytes_and_the_bound_of_the_program(compiled, row):
    """v5e: 819 GB/s and 197 TFLOP/s."""
    moved = count_bytes(parse(LOOP))
    assert row.mb_per_image == round(moved / 128 / 1e6, 1)
    assert row.memory_ms == round(moved / 819e9 * 1e3, 2)
    assert (row.compute_ms, row.bound_ms, row.limited_by) == (10.0, 10.0, "compute")
    assert row.memory_gib is None
    full = {"memory_bytes": 3 * 2**30, "compile_s": 12.34}
    whole = compiled.make_row(row.key, row.chose, 0.0, parse(LOOP), full)
    assert (whole.limited_by, whole.memory_gib, whole.compile_s) == ("memory", 3.0, 12.3)


def test_the_page_shows_the_file(compiled):
    page = (FOLDER / "compiled.md").read_text()
    shown = re.search(r"<!-- compiled.py --table -->\n\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert shown is not None
    assert shown[1] == compiled.table(compiled.read_rows().values())
    assert set(compiled.read_rows()) <= set(compiled.grid())
