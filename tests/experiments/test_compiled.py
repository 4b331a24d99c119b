"""compiled.py: which rows it makes, how it continues, and how it computes a row. No compiler."""

import dataclasses
import importlib
import re
from pathlib import Path

import pytest
from plan.programs import LOOP

from vit_jax.errors import UserError
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


def test_the_grid_has_each_row_once(compiled):
    grid = compiled.grid()
    assert len(grid) == len(set(grid)) == len(set(map(str, grid)))
    assert {(k.model, k.image_size) for k in grid} == {
        ("Ti/16", 224), ("S/16", 224), ("B/16", 224), ("L/16", 224), ("H/14", 224),
        ("B/16", 384), ("L/16", 384),
    }  # fmt: skip
    assert {k.chip for k in grid if k.variant == "cudnn"} == {"h100", "h200"}
    assert {k.chip for k in grid if k.variant == "pallas"} == {"v5e", "v6e", "v5p"}


def test_rows_are_selected_in_the_order_of_the_patterns(compiled):
    found = compiled.select("h200:L/16:224:*:auto,v5e:L/16:224:*:auto,*:L/16:224:*:auto")
    assert [(k.chip, k.images) for k in found] == [
        ("h200", 128), ("v5e", 32), ("v5e", 64), ("v6e", 32), ("v6e", 64), ("v5p", 32),
        ("v5p", 64), ("h100", 128),
    ]  # fmt: skip


def test_a_pattern_without_rows_is_an_error(compiled, capsys):
    with pytest.raises(UserError, match="'v5e:S/32:\\*', which matches no row"):
        compiled.select("v5e:*,v5e:S/32:*")
    assert compiled.main(["--rows=v9"]) == 2
    assert "matches no row" in capsys.readouterr().err


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


def test_rows_are_read_as_they_were_written(compiled, row, tmp_path):
    path = tmp_path / "compiled.csv"
    assert compiled.read_rows(path) == {}
    other = dataclasses.replace(row, variant="auto", memory_gib=1.5, compile_s=60.0)
    compiled.append_row(row, path)
    compiled.append_row(other, path)
    assert compiled.read_rows(path) == {row.key: row, other.key: other}
    newer = dataclasses.replace(row, mb_per_image=1.0)
    compiled.append_row(newer, path)
    compiled.sort_rows(path)  # In the order of the grid, without the row that was replaced.
    assert list(compiled.read_rows(path).values()) == [other, newer]
    assert len(path.read_text().splitlines()) == 3
    compiled.remove_rows([row.key], path)
    assert list(compiled.read_rows(path)) == [other.key]


def test_a_stopped_run_continues_where_it_was(compiled, row, tmp_path, monkeypatch, capsys):
    path, made = tmp_path / "compiled.csv", []

    def compile_row(key, rows, *, folder, full, movers):
        made.append((key.variant, full))
        if key.variant == "einsum":
            raise UserError("a program too large", "a small one", "use another")
        return dataclasses.replace(row, variant=key.variant)

    monkeypatch.setattr(compiled, "compile_row", compile_row)
    compiled.append_row(row, path)
    keys = compiled.select("v5e:S/16:*")
    folders = {"big_vision": tmp_path, "vision_transformer": None}
    options = {"full": False, "movers": 0}
    compiled.make_rows(keys, folders, path, **options)
    assert made == [
        (v, False) for v in ("auto", "scanned", "xla", "einsum", "pallas", "big_vision")
    ]
    shown = capsys.readouterr().out
    assert "rows of vision_transformer are skipped: --vision_transformer=FOLDER is not" in shown
    assert "v5e:S/16:224:128:einsum: a program too large" in shown
    made.clear()
    compiled.make_rows(keys, folders, path, **options)
    assert made == [("einsum", False)]
    made.clear()
    compiled.make_rows(keys[:1], folders, path, full=True, movers=0)  # It lacks the memory.
    assert made == [("auto", True)]
    made.clear()
    compiled.make_rows(compiled.select("h200:S/16:*:auto"), folders, path, **options)
    assert made == [("auto", True)]  # For GPUs always to the end.


def test_equal_steps_are_compiled_once(compiled, row):
    auto = dataclasses.replace(row.key, variant="auto")
    assert compiled.same_step(auto, "unrolled, pallas", [row], full=False) == row
    assert compiled.same_step(auto, "scanned, pallas", [row], full=False) is None
    assert compiled.same_step(auto, "unrolled, pallas", [row], full=True) is None
    larger = dataclasses.replace(auto, images=64)
    assert compiled.same_step(larger, "unrolled, pallas", [row], full=False) is None
    peer = dataclasses.replace(row, variant="big_vision")
    assert compiled.same_step(auto, "unrolled, pallas", [peer], full=False) is None


def test_the_page_shows_the_file(compiled):
    page = (FOLDER / "compiled.md").read_text()
    shown = re.search(r"<!-- compiled.py --table -->\n\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert shown is not None
    assert shown[1] == compiled.table(compiled.read_rows().values())
    assert set(compiled.read_rows()) <= set(compiled.grid())
